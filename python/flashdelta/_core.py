"""The library's operations on arrays of any framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from . import _native
from ._arrays import FLOAT32, Array, framework, made_for

Backend = Literal["auto", "cpu", "cuda", "emulator"]
StateLayout = Literal["kv", "vk"]
ContextParallel = Literal["off", "exact", "decay_start"]

# Plans for another card's limits wherever a call says no arch of its own: FLASHDELTA_ARCH=120 in the environment.
_ARCH = int(os.environ.get("FLASHDELTA_ARCH", "0"))

_BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2, "emulator": 3}
_LAYOUTS = {"kv": 0, "vk": 1}
_CONTEXT_PARALLEL = {"off": 0, "exact": 1, "decay_start": 2}


class GatedDeltaResult(NamedTuple):
    """What `gated_delta_forward` returns; final_state and checkpoints are None where they were not asked for."""

    o: Array
    final_state: Array | None
    checkpoints: Array | None


_result = tuple.__new__  # as the class itself would make it, in half the time


def backends() -> dict[str, str]:
    """Each backend's name, and "" where it can run here, else why it cannot."""
    return {name: _native.why_unavailable(number) for name, number in _BACKENDS.items() if name != "auto"}


def _refuse_choices(*choices: tuple[str, dict[str, int], Any]) -> None:
    for name, table, value in choices:
        if not isinstance(value, str) or value not in table:
            raise ValueError(f"{name}: expected one of {', '.join(table)}, got {value!r}")


def _require_arrays(k: Array, v: Array) -> None:
    for name, array in (("k", k), ("v", v)):
        if not hasattr(array, "shape"):
            framework(array, name)


def _size(array: Array, dimension: int) -> int:
    """A size of an array's shape, 0 where it has no such dimension: the library's check then says what is wrong."""
    shape = array.shape
    return shape[dimension] if -len(shape) <= dimension < len(shape) else 0


def _lengths(lengths: Any) -> Sequence[int]:
    if lengths is None:
        return ()
    return lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)


def _torch_watches(q: Array) -> bool:
    """Whether torch may have to see the call as an operation: it is being compiled, or gradients may be asked for."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        return False
    return isinstance(q, torch.Tensor)


def _goes_through_torch(arrays: tuple[Array | None, ...]) -> bool:
    """Of a call that torch watches: whether it is being compiled, or an array asks for its gradient."""
    if sys.modules["torch"].compiler.is_compiling():
        return True
    return any(x is not None and getattr(x, "requires_grad", False) for x in arrays)


def _refuse_given(**outputs: Array | None) -> None:
    for name, array in outputs.items():
        if array is not None:
            raise ValueError(f"{name}: expected None, since a {type(array).__name__} may not be written, got one")


def attention_forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sink: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    host_cu_seqlens_q: Sequence[int] | Array | None = None,
    host_cu_seqlens_k: Sequence[int] | Array | None = None,
    seqused_k: Array | None = None,
    cache_batch_idx: Array | None = None,
    page_table: Array | None = None,
    return_lse: bool = False,
    o: Array | None = None,
    lse: Array | None = None,
    backend: Backend = "auto",
    arch: int = 0,
    num_threads: int = 0,
) -> Any:
    """Softmax attention: o = softmax(scale q k^T + mask) v.

    q [B,TQ,HQ,D], or packed [total_q,HQ,D] with cu_seqlens_q [B+1]. Keys and values are dense k [B,TK,HK,D],
    v [B,TK,HK,DV]; or packed with cu_seqlens_k [B+1]; or paged, k [pages,page_size,HK,D] with page_table and seqused_k.
    bf16, fp16 or (on the CPU) fp32, all three the same; D and DV are multiples of 8 up to 512; query head h reads key
    head h // (HQ // HK). The last dimension is contiguous, other strides are free.

    causal and windows align bottom-right: query i sits at key position i + TK - TQ, and sees the keys from window_left
    before it to window_right after it; -1 is no bound. softcap 0 is off. sink [HQ] is one more logit a head, in the
    denominator alone. max_seqlen_* and host_cu_seqlens_* are hints for planning where lengths lie on a card; without
    them nothing is read back, and the plan takes the largest length that there could be.

    Returns o, q's dtype and shape [.., DV]; with return_lse also lse, the natural log of the denominator, fp32
    [B,HQ,TQ] or [HQ,total_q]. A row that sees no key has o = 0 and lse = -inf. o and lse may be given to be filled (not
    with jax, whose arrays are never written).

    backend "auto" runs where q lies. "emulator" runs the GPU kernels' own code on the CPU, slowly, as an SM120 card.
    arch (80, 86, 89, 90, 100, 120, 121) plans under another card's limits; 0: FLASHDELTA_ARCH of the environment, or
    the card's own.

    Raises ValueError (a wrong shape, range or device), TypeError (no array, or a dtype that the library has not),
    NotImplementedError (right, but not on this backend). Gradients are not supported: backward raises.
    """
    try:
        number = _BACKENDS[backend]
    except (KeyError, TypeError):
        _refuse_choices(("backend", _BACKENDS, backend))
        raise
    if not type(q) is type(k) is type(v):
        _require_arrays(k, v)
    if _torch_watches(q) and _goes_through_torch((q, k, v, sink)):
        from . import _torch

        return _torch.attention(
            q, k, v, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, cache_batch_idx, page_table, max_seqlen_q,
            max_seqlen_k, _lengths(host_cu_seqlens_q), _lengths(host_cu_seqlens_k), scale, softcap, window_left,
            window_right, causal, return_lse, backend, arch, num_threads, o, lse,
        )  # fmt: skip
    library = made_for(type(q)) or framework(q)
    if not library.makes_outputs:
        if library.immutable:
            _refuse_given(o=o, lse=lse)
        if o is None:
            o = library.empty(q, (*q.shape[:-1], _size(v, -1)))
        if lse is None and return_lse:
            lse = library.empty(q, attention_lse_shape(q, cu_seqlens_q), FLOAT32)
    o, lse = _native.attention_forward(
        (q, k, v, o, lse, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, cache_batch_idx, page_table),
        return_lse,
        max_seqlen_q,
        max_seqlen_k,
        _lengths(host_cu_seqlens_q),
        _lengths(host_cu_seqlens_k),
        scale,
        softcap,
        window_left,
        window_right,
        causal,
        number,
        arch or _ARCH,
        num_threads,
        0 if library.makes_outputs else library.stream(q),
        None if library.makes_outputs else library.workspace(q),
        library.immutable,
    )
    if not library.makes_outputs:
        library.finish(q)
    return (o, lse) if return_lse else o


def attention_lse_shape(q: Array, cu_seqlens_q: Array | None) -> tuple[int, ...]:
    if cu_seqlens_q is not None:
        return (_size(q, 1), _size(q, 0))
    return (_size(q, 0), _size(q, 2), _size(q, 1))


def gated_delta_forward(
    q: Array,
    k: Array,
    v: Array,
    g: Array | None = None,
    beta: Array | None = None,
    *,
    A_log: Array | None = None,
    a: Array | None = None,
    dt_bias: Array | None = None,
    b: Array | None = None,
    beta_scale: float = 1.0,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    final_state: Array | None = None,
    state_layout: StateLayout = "kv",
    initial_state_indices: Array | None = None,
    final_state_indices: Array | None = None,
    token_state_indices: Array | None = None,
    num_accepted_tokens: Array | None = None,
    checkpoint_every: int = 0,
    checkpoints: Array | None = None,
    cu_seqlens: Array | None = None,
    max_seqlen: int = 0,
    host_cu_seqlens: Sequence[int] | Array | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    chunk: int = 0,
    context_parallel: ContextParallel = "exact",
    decay_threshold: float = -9.0,
    o: Array | None = None,
    backend: Backend = "auto",
    arch: int = 0,
    num_threads: int = 0,
) -> GatedDeltaResult:
    """The gated delta rule: S <- exp(g) S; S += k (beta (v - S^T k))^T; o = scale S^T q, token by token.

    q, k [B,T,HK,K]; v [B,T,HV,V]; value head h reads key head h // (HV // HK). With cu_seqlens [N+1], B is 1 and the
    sequences lie one after the other. The gate is g [B,T,HV], a natural logarithm, or A_log [HV], a [B,T,HV] and
    dt_bias [HV]: g = -exp(A_log) softplus(a + dt_bias). beta is beta [B,T,HV], or b [B,T,HV]: beta_scale sigmoid(b).

    States are [N,HV,K,V], or [N,HV,V,K] with state_layout "vk", fp32 or bf16. With initial_state_indices [N],
    initial_state is a pool of slots and so is final_state, which the caller then gives (it may be initial_state);
    a negative index skips its sequence. token_state_indices [N,T] also keeps the state after each token in a slot of
    final_state, and num_accepted_tokens [N] says from which of them a sequence goes on. checkpoint_every (a multiple
    of 64) writes the state after every so many tokens to checkpoints.

    qk_l2norm normalises q and k first: x * rsqrt(sum x^2 + 1e-6). context_parallel "exact" may cut a sequence where
    that pays, with the same result up to rounding; "decay_start" may leave out what decay_threshold has made small.

    Returns (o, final_state, checkpoints). final_state is made where output_final_state asks for it, in the dtype of
    initial_state, else fp32; o, final_state and checkpoints may be given to be filled (not with jax). Errors are those
    of `attention_forward`. Gradients are not supported: backward raises.
    """
    try:
        number, layout = _BACKENDS[backend], _LAYOUTS[state_layout]
        parallel = _CONTEXT_PARALLEL[context_parallel]
    except (KeyError, TypeError):
        _refuse_choices(
            ("backend", _BACKENDS, backend),
            ("state_layout", _LAYOUTS, state_layout),
            ("context_parallel", _CONTEXT_PARALLEL, context_parallel),
        )
        raise
    if not type(q) is type(k) is type(v):
        _require_arrays(k, v)
    if output_final_state and final_state is None and initial_state_indices is not None:
        raise ValueError("final_state: expected a pool, since initial_state is one (initial_state_indices), got None")
    if _torch_watches(q) and _goes_through_torch((q, k, v, g, beta, A_log, a, dt_bias, b, initial_state)):
        from . import _torch

        return GatedDeltaResult(
            *_torch.gated_delta(
                q, k, v, g, beta, A_log, a, dt_bias, b, initial_state, cu_seqlens, initial_state_indices,
                final_state_indices, token_state_indices, num_accepted_tokens, output_final_state, checkpoint_every,
                max_seqlen, _lengths(host_cu_seqlens), scale, beta_scale, decay_threshold, chunk, qk_l2norm,
                state_layout, context_parallel, backend, arch, num_threads, o, final_state, checkpoints,
            )
        )  # fmt: skip
    library = made_for(type(q)) or framework(q)
    if library.makes_outputs:
        if o is None and type(v) is type(q):  # cheaper than through the exchange table
            o = library.empty_like(v) if v.is_contiguous() else library.empty_as(v)
    else:
        if library.immutable:
            _refuse_given(o=o, final_state=final_state, checkpoints=checkpoints)
        if o is None:
            o = library.empty(q, v.shape)
        if final_state is None and output_final_state:
            like, kind = (q, FLOAT32) if initial_state is None else (initial_state, None)
            final_state = library.empty(like, state_shape(q, v, cu_seqlens, state_layout), kind)
    if checkpoints is None and checkpoint_every > 0:
        shape = (checkpoint_rows(q, checkpoint_every), *state_shape(q, v, cu_seqlens, state_layout)[1:])
        state = initial_state if final_state is None else final_state
        checkpoints = library.zeros(q, shape, FLOAT32 if state is None else str(state.dtype).removeprefix("torch."))
    o, final_state = _native.gated_delta_forward(
        (
            q, k, v, g, beta, A_log, dt_bias, a, b, o, initial_state, final_state, checkpoints, cu_seqlens,
            initial_state_indices, final_state_indices, token_state_indices, num_accepted_tokens,
        ),
        output_final_state,
        max_seqlen,
        _lengths(host_cu_seqlens),
        scale,
        beta_scale,
        decay_threshold,
        checkpoint_every,
        chunk,
        qk_l2norm,
        layout,
        parallel,
        number,
        arch or _ARCH,
        num_threads,
        0 if library.makes_outputs else library.stream(q),
        None if library.makes_outputs else library.workspace(q),
        library.immutable,
    )  # fmt: skip
    if not library.makes_outputs:
        library.finish(q)
    return _result(GatedDeltaResult, (o, final_state, checkpoints))


def state_shape(q: Array, v: Array, cu_seqlens: Array | None, layout: str) -> tuple[int, ...]:
    sequences = _size(q, 0) if cu_seqlens is None else max(_size(cu_seqlens, 0) - 1, 0)
    inner = (_size(q, -1), _size(v, -1))
    return (sequences, _size(v, 2), *(inner if layout == "kv" else inner[::-1]))


def checkpoint_rows(q: Array, every: int) -> int:
    return _size(q, 0) * (_size(q, 1) // every)
