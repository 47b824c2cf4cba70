"""The operations as torch.library definitions, for torch.compile, and as autograd sees them: without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from . import _core


def card_name(tensor: Tensor) -> str:
    return torch.cuda.get_device_name(tensor.device) if tensor.is_cuda else str(tensor.device)


@torch.library.custom_op("flashdelta::no_gradient", mutates_args=())
def no_gradient(grads: Sequence[Tensor], like: Tensor, operation: str) -> Tensor:
    """Stands where a gradient would be computed; takes grads so that a compiled graph runs it in its backward part."""
    raise NotImplementedError(
        f"{operation}_backward: not supported on {card_name(like)}: this version has no gradient of "
        f"{operation}_forward; call it under torch.no_grad()"
    )


@no_gradient.register_fake
def _(grads: Sequence[Tensor], like: Tensor, operation: str) -> Tensor:
    return torch.empty_like(like)


def _no_gradients(ctx: Any, grads: Sequence[Tensor | None], operation: str) -> tuple[Tensor | None, ...]:
    there = [x for x in grads if x is not None]
    return tuple(None if x is None else no_gradient(there, x.detach(), operation) for x in ctx.wanted)


def _refuse_gradient(op: Any, operation: str) -> None:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.wanted = [x if isinstance(x, Tensor) and x.requires_grad else None for x in inputs]

    def backward(ctx: Any, *grads: Any) -> Any:
        return _no_gradients(ctx, grads, operation)

    op.register_autograd(backward, setup_context=setup_context)


@torch.library.custom_op("flashdelta::attention_forward", mutates_args=())
def _attention_op(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None, cache_batch_idx: Tensor | None, page_table: Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int, host_cu_seqlens_q: Sequence[int], host_cu_seqlens_k: Sequence[int], scale: float | None,
    softcap: float, window_left: int, window_right: int, causal: bool, return_lse: bool, backend: str, arch: int,
    num_threads: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with torch.no_grad():
        o, lse = _core.attention_forward(
            q, k, v, causal=causal, scale=scale, window_left=window_left, window_right=window_right, softcap=softcap,
            sink=sink, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, host_cu_seqlens_q=host_cu_seqlens_q, host_cu_seqlens_k=host_cu_seqlens_k,
            seqused_k=seqused_k, cache_batch_idx=cache_batch_idx, page_table=page_table, return_lse=True,
            backend=cast(_core.Backend, backend), arch=arch, num_threads=num_threads,
        )  # fmt: skip
    return o, lse


@_attention_op.register_fake
def _(
    q, k, v, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, cache_batch_idx, page_table, max_seqlen_q, max_seqlen_k,
    host_cu_seqlens_q, host_cu_seqlens_k, scale, softcap, window_left, window_right, causal, return_lse, backend, arch,
    num_threads,
):  # fmt: skip
    lse_shape = _core.attention_lse_shape(q, cu_seqlens_q)
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(lse_shape, dtype=torch.float32)


_refuse_gradient(_attention_op, "attention")


def attention(*arguments: Any) -> Any:
    *inputs, o, lse = arguments
    if o is not None or lse is not None:
        raise ValueError("o, lse: expected None under torch.compile and where gradients are asked for, got a tensor")
    return_lse = inputs[18]
    out, out_lse = _attention_op(*inputs)
    return (out, out_lse) if return_lse else out


_POOL_NAMES = (
    "q k v g beta A_log a dt_bias b initial_state cu_seqlens initial_state_indices final_state_indices "
    "token_state_indices num_accepted_tokens"
).split()


def _run_gated_delta(tensors: Sequence[Tensor | None], settings: Sequence[Any], **outputs: Any) -> Any:
    (checkpoint_every, max_seqlen, host_cu_seqlens, scale, beta_scale, decay_threshold, chunk, qk_l2norm,
     state_layout, context_parallel, backend, arch, num_threads) = settings  # fmt: skip
    inputs: dict[str, Any] = dict(zip(_POOL_NAMES, tensors, strict=False))  # the last ones may be left out
    with torch.no_grad():
        return _core.gated_delta_forward(
            **inputs, checkpoint_every=checkpoint_every, max_seqlen=max_seqlen,
            host_cu_seqlens=host_cu_seqlens, scale=scale, beta_scale=beta_scale, decay_threshold=decay_threshold,
            chunk=chunk, qk_l2norm=qk_l2norm, state_layout=state_layout, context_parallel=context_parallel,
            backend=backend, arch=arch, num_threads=num_threads, **outputs,
        )  # fmt: skip


def _absent(like: Tensor) -> Tensor:
    return like.new_empty((0,))


@torch.library.custom_op("flashdelta::gated_delta_forward", mutates_args=())
def _gated_delta_op(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, A_log: Tensor | None, a: Tensor | None,
    dt_bias: Tensor | None, b: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    initial_state_indices: Tensor | None, output_final_state: bool, checkpoint_every: int, max_seqlen: int,
    host_cu_seqlens: Sequence[int], scale: float | None, beta_scale: float, decay_threshold: float, chunk: int,
    qk_l2norm: bool, state_layout: str, context_parallel: str, backend: str, arch: int, num_threads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tensors = (q, k, v, g, beta, A_log, a, dt_bias, b, initial_state, cu_seqlens, initial_state_indices)
    settings = (checkpoint_every, max_seqlen, host_cu_seqlens, scale, beta_scale, decay_threshold, chunk, qk_l2norm,
                state_layout, context_parallel, backend, arch, num_threads)  # fmt: skip
    made = _run_gated_delta(tensors, settings, output_final_state=output_final_state)
    o, state, checkpoints = (_absent(q) if x is None else x for x in made)
    return o, state, checkpoints


def _state_like(q, v, initial_state, cu_seqlens, state_layout):
    shape = _core.state_shape(q, v, cu_seqlens, state_layout)
    return q.new_empty(shape, dtype=torch.float32 if initial_state is None else initial_state.dtype)


@_gated_delta_op.register_fake
def _(
    q, k, v, g, beta, A_log, a, dt_bias, b, initial_state, cu_seqlens, initial_state_indices, output_final_state,
    checkpoint_every, max_seqlen, host_cu_seqlens, scale, beta_scale, decay_threshold, chunk, qk_l2norm, state_layout,
    context_parallel, backend, arch, num_threads,
):  # fmt: skip
    state = _state_like(q, v, initial_state, cu_seqlens, state_layout)
    rows = _core.checkpoint_rows(q, checkpoint_every) if checkpoint_every > 0 else 0
    checkpoints = state.new_empty((rows, *state.shape[1:])) if rows else _absent(q)
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    return o, state if output_final_state else _absent(q), checkpoints


_refuse_gradient(_gated_delta_op, "gated_delta")


@torch.library.custom_op("flashdelta::gated_delta_forward_into", mutates_args=("final_state",))
def _gated_delta_into_op(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, A_log: Tensor | None, a: Tensor | None,
    dt_bias: Tensor | None, b: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    initial_state_indices: Tensor | None, final_state_indices: Tensor | None, token_state_indices: Tensor | None,
    num_accepted_tokens: Tensor | None, final_state: Tensor, in_place: bool, checkpoint_every: int, max_seqlen: int,
    host_cu_seqlens: Sequence[int], scale: float | None, beta_scale: float, decay_threshold: float, chunk: int,
    qk_l2norm: bool, state_layout: str, context_parallel: str, backend: str, arch: int, num_threads: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tensors = (q, k, v, g, beta, A_log, a, dt_bias, b, final_state if in_place else initial_state, cu_seqlens,
               initial_state_indices, final_state_indices, token_state_indices, num_accepted_tokens)  # fmt: skip
    settings = (checkpoint_every, max_seqlen, host_cu_seqlens, scale, beta_scale, decay_threshold, chunk, qk_l2norm,
                state_layout, context_parallel, backend, arch, num_threads)  # fmt: skip
    made = _run_gated_delta(tensors, settings, final_state=final_state)
    return made.o, _absent(q) if made.checkpoints is None else made.checkpoints


@_gated_delta_into_op.register_fake
def _(
    q, k, v, g, beta, A_log, a, dt_bias, b, initial_state, cu_seqlens, initial_state_indices, final_state_indices,
    token_state_indices, num_accepted_tokens, final_state, in_place, checkpoint_every, *settings,
):  # fmt: skip
    rows = _core.checkpoint_rows(q, checkpoint_every) if checkpoint_every > 0 else 0
    checkpoints = final_state.new_empty((rows, *final_state.shape[1:])) if rows else _absent(q)
    return torch.empty_like(v, memory_format=torch.contiguous_format), checkpoints


def gated_delta(*arguments: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    tensors, indices = arguments[:11], arguments[11:15]
    output_final_state, *settings = arguments[15:29]
    o, final_state, checkpoints = arguments[29:]
    if o is not None or checkpoints is not None:
        raise ValueError(
            "o, checkpoints: expected None under torch.compile and where gradients are asked for, got a tensor"
        )
    checkpoint_every = settings[0]
    if final_state is None:
        if any(x is not None for x in indices[1:]):
            raise ValueError("final_state: expected a pool, since indices of slots are given, got None")
        out, state, rows = _gated_delta_op(*tensors, indices[0], output_final_state, *settings)
        return out, state if output_final_state else None, rows if checkpoint_every > 0 else None
    initial_state = tensors[9]
    in_place = final_state is initial_state
    run: Callable[..., Any] = _gated_delta_into_op
    if torch.compiler.is_compiling():
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*tensors, final_state)):
            return _compiled_into_without_gradient(tensors, indices, settings, final_state)
    elif torch.is_grad_enabled():
        run = _IntoWithoutGradient.apply
    before = (*tensors[:9], None if in_place else initial_state, tensors[10])
    out, rows = run(*before, *indices, final_state, in_place, *settings)
    return out, final_state, rows if checkpoint_every > 0 else None


def _compiled_into_without_gradient(
    tensors: Sequence[Tensor | None], indices: Sequence[Tensor | None], settings: Sequence[Any], final_state: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """torch takes no autograd rule for an operation that writes its inputs: the state is made and then copied."""
    if any(x is not None for x in indices):
        raise NotImplementedError(
            "gated_delta_backward: not supported: a pool of states under torch.compile; call it under torch.no_grad()"
        )
    out, state, rows = _gated_delta_op(*tensors, None, True, *settings)
    final_state.copy_(state)
    return out, final_state, rows if settings[0] > 0 else None


class _IntoWithoutGradient(torch.autograd.Function):
    """The operation that writes a state of the caller's; autograd sees the state as changed by it."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        ctx.wanted = [x if isinstance(x, Tensor) and x.requires_grad else None for x in arguments]
        return _gated_delta_into_op(*[x.detach() if isinstance(x, Tensor) else x for x in arguments])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _no_gradients(ctx, grads, "gated_delta")
