"""The planner: which tiles of an operation fit an architecture, which is likely the fastest, and why others are out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from . import _native

_DTYPES = {"bf16": 1, "bfloat16": 1, "fp16": 2, "float16": 2, "fp32": 3, "float32": 3}
_OPERATIONS = {"attention_forward": False, "gated_delta_forward": True}


@dataclass(frozen=True)
class Candidate:
    """One set of tile sizes and its verdict. Sizes of memory are bytes."""

    block_q: int
    block_kv: int
    block_v: int
    warps: int
    threads: int
    stages: int
    q_in_registers: bool
    padded_head_dim: int
    kernel: str | None
    shared_bytes: int
    parts: dict[str, int]
    resident_blocks: int
    kv_iterations: int | None
    fits: bool
    reason: str
    detail: str


@dataclass(frozen=True)
class Plan:
    """A plan; `print(plan)` shows it as the command line does."""

    operation: str
    arch: str
    algorithm: str
    target: str
    output_path: str
    shared_limit: int
    dtype: str
    head_dim: int
    head_dim_v: int
    seqlen: int | None
    chosen: int | None
    candidates: list[Candidate]
    table: str = field(repr=False)

    def __str__(self) -> str:
        return self.table


def plan(
    operation: Literal["attention_forward", "gated_delta_forward"],
    *,
    arch: str = "sm120",
    dtype: str = "bf16",
    head_dim: int = 128,
    head_dim_v: int = 0,
    seqlen: int | None = None,
    candidates: Sequence[str] = (),
) -> Plan:
    """Plans an operation for an architecture. No device is asked: every plan can be made anywhere.

    arch: "sm80", "sm86", "sm89", "sm90", "sm100", "sm120" or "sm121". head_dim_v: 0 means head_dim. candidates: texts
    such as "block_q=128,block_kv=64,warps=4,stages=2"; none: the library's own table, best first, and `chosen` is then
    0 where anything fits. A candidate that does not fit is an answer (`fits`, `reason`, `detail`), not an error.

    Raises ValueError for an unknown operation, architecture or dtype, and for numbers out of range.
    """
    if operation not in _OPERATIONS:
        raise ValueError(f"operation: expected {' or '.join(_OPERATIONS)}, got {operation!r}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype: expected bf16, fp16 or fp32, got {dtype!r}")
    report = _native.plan(_OPERATIONS[operation], arch, _DTYPES[dtype], head_dim, head_dim_v, seqlen, list(candidates))
    report["candidates"] = [Candidate(**row) for row in report["candidates"]]
    return Plan(**report)
