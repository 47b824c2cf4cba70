"""What is timed: the library's case list, and the shapes that flashdelta and its peers share."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import flashdelta

from .. import _native


@dataclass
class Workload:
    """One shape: its inputs on a device, what flashdelta runs, and the arithmetic that it is counted as."""

    name: str
    operation: str  # "attention_forward" or "gated_delta_forward"
    inputs: dict[str, Tensor]
    options: dict[str, Any]
    flops: float
    shape: str
    dense: bool = False  # peers can run it: no option that is the library's own
    extra: dict[str, Any] = field(default_factory=dict)

    def run(self, backend: str, arch: int) -> Callable[[], Any]:
        function = getattr(flashdelta, self.operation)
        keywords = {**self.inputs, **self.options, **self.extra, "backend": backend, "arch": arch}
        q, k, v = (keywords.pop(name) for name in "qkv")
        return lambda: function(q, k, v, **keywords)


def attention_flops(lengths_q: list[int], lengths_k: list[int], heads: int, d: int, dv: int, causal: bool) -> float:
    pairs = 0.0
    for q, k in zip(lengths_q, lengths_k):
        pairs += q * k - (q * (q - 1) / 2 if causal and k >= q else 0)
    return 2.0 * pairs * heads * (d + dv)


def delta_flops(tokens: int, heads: int, d: int, dv: int) -> float:
    """The recurrence's own: S^T k, k u^T and S^T q, whatever an algorithm spends on them."""
    return 6.0 * tokens * heads * d * dv


def case_list(pattern: str | None, device: str) -> Iterator[Workload]:
    """The C++ case list: those marked for timing, or those whose names match. fp32 has no GPU kernel."""
    for row in _native.cases():
        if not (row["bench"] if pattern is None else fnmatch.fnmatch(row["name"], pattern)):
            continue
        made = _native.case_inputs(row["name"], 1)
        inputs = {name: torch.from_dlpack(array).to(device) for name, array in made.items()}
        q, v = inputs["q"], inputs["v"]
        if device == "cuda" and q.dtype == torch.float32:
            continue
        operation = row["operation"].replace("-", "_")
        lengths = row["lengths_q"]
        shape = f"{len(lengths)} x {max(lengths, default=0)}, {row['heads_q']}/{row['heads_k']}, {row['head_dim']}"
        extra: dict[str, Any] = {}
        if operation == "attention_forward":
            keys = row["lengths_k"] or lengths
            flops = attention_flops(lengths, keys, row["heads_q"], q.shape[-1], v.shape[-1], row["options"]["causal"])
        else:
            flops = delta_flops(sum(lengths), row["heads_q"], q.shape[-1], v.shape[-1])
            pooled = {"initial_state_indices", "token_state_indices"} & set(inputs)
            if pooled:
                extra["final_state"] = inputs["initial_state"].clone()
            else:
                extra["output_final_state"] = True
        yield Workload(row["name"], operation, inputs, row["options"], flops, shape, extra=extra)


# batch, query heads, key heads, tokens, head size, causal
ATTENTION_SHAPES = [
    (4, 8, 8, 8192, 128, False),
    (4, 16, 16, 4096, 128, True),
    (1, 16, 16, 16384, 128, True),
    (4, 32, 32, 4096, 64, True),
    (2, 16, 16, 4096, 256, True),
    (1, 24, 4, 8192, 256, True),
]
# batch, key heads, value heads, tokens
DELTA_SHAPES = [
    (1, 16, 48, 8192),
    (1, 16, 48, 32768),
    (4, 16, 48, 8192),
    (1, 16, 32, 8192),
    (1, 2, 8, 32768),
    (8, 16, 16, 1024),
]


def peer_shapes(device: str, scale: int) -> Iterator[Workload]:
    """The shapes of published tables, on random inputs. scale divides the lengths, for machines that are slow."""
    for batch, hq, hk, tokens, d, causal in ATTENTION_SHAPES:
        tokens = max(tokens // scale, 64)
        q, k, v = (torch.randn(batch, tokens, h, d, device=device).bfloat16() for h in (hq, hk, hk))
        name = f"attention {batch}x{tokens} {hq}/{hk} d{d}{' causal' if causal else ''}"
        flops = attention_flops([tokens] * batch, [tokens] * batch, hq, d, d, causal)
        shape = f"{batch} x {tokens}, {hq}/{hk}, {d}"
        yield Workload(name, "attention_forward", {"q": q, "k": k, "v": v}, {"causal": causal}, flops, shape, True)
    for batch, hk, hv, tokens in DELTA_SHAPES:
        tokens = max(tokens // scale, 64)
        q, k, v = (torch.randn(batch, tokens, h, 128, device=device) for h in (hk, hk, hv))
        q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        g = -torch.rand(batch, tokens, hv, device=device) * 0.2
        inputs = {"q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16(), "g": g, "beta": torch.rand_like(g)}
        name = f"gated delta {batch}x{tokens} {hk}/{hv}"
        flops = delta_flops(batch * tokens, hv, 128, 128)
        shape = f"{batch} x {tokens}, {hk}/{hv}, 128"
        yield Workload(name, "gated_delta_forward", inputs, {}, flops, shape, True, {"output_final_state": True})
