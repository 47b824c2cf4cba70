from collections.abc import Callable, Sequence
from typing import Any

def version() -> str: ...
def why_unavailable(backend: int) -> str: ...
def synchronize(device: int) -> None: ...
def attention_forward(
    arrays: tuple[Any, ...],
    return_lse: bool,
    max_seqlen_q: int,
    max_seqlen_k: int,
    host_cu_seqlens_q: Sequence[int],
    host_cu_seqlens_k: Sequence[int],
    scale: float | None,
    softcap: float,
    window_left: int,
    window_right: int,
    causal: bool,
    backend: int,
    arch: int,
    num_threads: int,
    stream: int,
    allocate: Callable[[int], Any] | None,
    new_outputs: bool,
) -> tuple[Any, Any]: ...
def gated_delta_forward(
    arrays: tuple[Any, ...],
    output_final_state: bool,
    max_seqlen: int,
    host_cu_seqlens: Sequence[int],
    scale: float | None,
    beta_scale: float,
    decay_threshold: float,
    checkpoint_every: int,
    chunk: int,
    qk_l2norm: bool,
    state_layout: int,
    context_parallel: int,
    backend: int,
    arch: int,
    num_threads: int,
    stream: int,
    allocate: Callable[[int], Any] | None,
    new_outputs: bool,
) -> tuple[Any, Any]: ...
def plan(
    gated_delta: bool,
    arch: str,
    dtype: int,
    head_dim: int,
    head_dim_v: int,
    seqlen: int | None,
    candidates: Sequence[str],
) -> dict[str, Any]: ...
def cases() -> list[dict[str, Any]]: ...
def case_inputs(name: str, seed: int) -> dict[str, Any]: ...
