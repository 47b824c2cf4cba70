"""FlashInfer's gated delta rule (flashinfer-python 0.7.4), forward: prefill and decode. Its g is exp of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .. import _core
from ._common import float_or, refuse, require_tensors, rows

_PACKAGE = "flashdelta.compat.flashinfer"
_STATE_DTYPES = (torch.float32, torch.bfloat16)


def _check_states(**states: Tensor | None) -> None:
    for name, state in states.items():
        if state is not None and state.dtype not in _STATE_DTYPES:
            refuse(_PACKAGE, name, state.dtype, "states of float32 and bfloat16")


def _spread(x: Tensor, heads: int) -> Tensor:
    """Key and value heads repeated to as many as there are query heads."""
    return rows(x if x.shape[-2] == heads else x.repeat_interleave(heads // x.shape[-2], dim=-2))


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    output: Tensor | None = None,
    output_state: Tensor | None = None,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Literal["auto"] | bool = "auto",
    state_indices: Tensor | None = None,
    _cp_chunk_len: int | None = None,
    backend: str = "auto",
    max_seqlen: int | None = None,
    *,
    gate_domain: Literal["linear", "log"] = "linear",
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    cu_seqlens_cpu: Sequence[int] | Tensor | None = None,
    output_state_indices: Tensor | None = None,
    checkpoint_state_indices: Tensor | None = None,
    prefix_lens: Tensor | None = None,
) -> Any:
    """Stands for flashinfer.gdn_prefill.chunk_gated_delta_rule.

    q [T,HQ,D]; k [T,HK,D]; v [T,HV,D], sequences one after the other by cu_seqlens [N+1]; g, beta [T,max(HQ,HV)]. g is
    the factor itself, exp of a natural log (1 where None); gate_domain="log" takes the log. States are [N,H,V,K], or a
    pool with state_indices [N] (output_state is then the pool to write; a negative index skips its sequence).
    checkpoint_cu_starts [N+1] must be the running count of len // checkpoint_every_n_tokens, as FlashInfer asks.

    Returns o, or (o, state) with output_final_state: output_state, or a new one in float32.

    Differs: states of float16 and float8, pools of two dtypes, output_state_indices, checkpoint_state_indices,
    prefix_lens, _cp_chunk_len and the other backends raise NotImplementedError, so does backward. q and k are
    normalised in float32 and not rounded after it, nor is the sigmoid of beta.
    """
    require_tensors(q=q, k=k, v=v)
    if cu_seqlens is None:
        raise ValueError("cu_seqlens: expected a tensor [N+1], got None")
    if use_cp not in ("auto", True, False):
        raise ValueError(f"use_cp: expected 'auto', True or False, got {use_cp!r}")
    for name, value in (
        ("output_state_indices", output_state_indices),
        ("checkpoint_state_indices", checkpoint_state_indices),
        ("prefix_lens", prefix_lens),
        ("_cp_chunk_len", _cp_chunk_len),
    ):
        if value is not None:
            refuse(_PACKAGE, name, value, f"{name}=None")
    if backend not in ("auto", "flashinfer"):
        refuse(_PACKAGE, "backend", backend, "auto and flashinfer, which both mean flashdelta")
    _check_states(initial_state=initial_state, output_state=output_state, state_checkpoints=state_checkpoints)
    if state_indices is not None:
        if initial_state is None or output_state is None:
            raise ValueError("initial_state, output_state: expected the pools of state_indices, got None")
        if initial_state.dtype != output_state.dtype:
            refuse(_PACKAGE, "output_state", output_state.dtype, f"{initial_state.dtype}, the other pool's")
    _check_checkpoints(checkpoint_every_n_tokens, state_checkpoints, checkpoint_cu_starts, cu_seqlens)
    heads = max(q.shape[-2], v.shape[-2])
    if q.shape[-2] > v.shape[-2]:
        k, v = _spread(k, heads), _spread(v, heads)
    form = _gate(q, heads, g, gate_domain, use_gate_in_kernel, A_log, dt_bias)
    if beta is None:
        if beta_is_logit:
            raise ValueError("beta: expected a tensor with beta_is_logit=True, got None")
        beta = torch.ones(q.shape[0], heads, device=q.device)
    form["b" if beta_is_logit else "beta"] = float_or(beta, q.dtype)
    wants_state = output_final_state or output_state is not None
    final_state = output_state
    if wants_state and initial_state is not None:
        # The library's states are of one dtype; here the final one is float32 unless output_state says otherwise.
        wanted = torch.float32 if output_state is None else output_state.dtype
        if initial_state.dtype != wanted:
            initial_state = initial_state.float()
            final_state = output_state if wanted == torch.float32 else None
    state_dtype = next((x.dtype for x in (initial_state, final_state) if x is not None), torch.float32)
    if state_checkpoints is not None and state_checkpoints.dtype != state_dtype:
        refuse(_PACKAGE, "state_checkpoints", state_checkpoints.dtype, f"{state_dtype} here, like the states")
    o, state, _ = _core.gated_delta_forward(
        rows(q)[None],
        rows(k)[None],
        rows(v)[None],
        **{name: x if x is None or x.dim() == 1 else x[None] for name, x in form.items()},
        scale=scale or None,
        initial_state=initial_state,
        output_final_state=wants_state,
        final_state=final_state,
        state_layout="vk",
        initial_state_indices=state_indices,
        checkpoint_every=checkpoint_every_n_tokens,
        checkpoints=state_checkpoints,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen or 0,
        host_cu_seqlens=cu_seqlens_cpu,
        qk_l2norm=use_qk_l2norm_in_kernel,
        context_parallel="exact" if use_cp else "off",
        o=None if output is None else output[None],
    )
    o = o[0] if output is None else output
    if output_state is not None and state is not None and state is not output_state:
        state = output_state.copy_(state)
    return (o, state) if output_final_state else o


def _check_checkpoints(every: int, rows: Tensor | None, starts: Tensor | None, cu_seqlens: Tensor) -> None:
    if every == 0:
        for name, value in (("state_checkpoints", rows), ("checkpoint_cu_starts", starts)):
            if value is not None:
                raise ValueError(f"checkpoint_every_n_tokens: expected a multiple of 64 with {name}, got 0")
        return
    if rows is None or starts is None:
        raise ValueError(
            "state_checkpoints, checkpoint_cu_starts: expected tensors with checkpoint_every_n_tokens, got None"
        )
    if starts.shape != cu_seqlens.shape:
        raise ValueError(
            f"checkpoint_cu_starts: expected shape {list(cu_seqlens.shape)} like cu_seqlens, got {list(starts.shape)}"
        )
    if not starts.is_cuda and not cu_seqlens.is_cuda:  # elsewhere a look would wait for the card
        expected = [0, *(cu_seqlens.diff() // every).cumsum(0).tolist()]
        if starts.tolist() != expected:
            raise ValueError(f"checkpoint_cu_starts: expected {expected}, the running count, got {starts.tolist()}")


def _gate(
    q: Tensor,
    heads: int,
    g: Tensor | None,
    domain: str,
    in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
) -> dict[str, Any]:
    if in_kernel:
        if g is None or A_log is None or dt_bias is None:
            raise ValueError("g, A_log, dt_bias: expected tensors with use_gate_in_kernel=True, got None")
        return {"a": float_or(g, q.dtype), "A_log": float_or(A_log, q.dtype), "dt_bias": float_or(dt_bias, q.dtype)}
    if A_log is not None or dt_bias is not None:
        raise ValueError("use_gate_in_kernel: expected True with A_log and dt_bias, got False")
    if domain not in ("linear", "log"):
        raise ValueError(f"gate_domain: expected 'linear' or 'log', got {domain!r}")
    if g is None:
        return {"g": torch.zeros(q.shape[0], heads, device=q.device)}
    return {"g": rows(g.float().log() if domain == "linear" else g.float())}


def gated_delta_rule_decode_pretranspose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    disable_state_update: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Stands for flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose.

    q, k [B,T,H,K]; v [B,T,HV,V]; state [B,HV,V,K], changed in place, or a pool initial_state with
    initial_state_indices [B]. The gate is -exp(A_log) softplus(a + dt_bias), the step sigmoid(b); a, b [B,T,HV]. A
    negative index leaves its sequence out: output 0, no slot read or written, with bf16 states too.
    intermediate_states_buffer is as in `gated_delta_rule_mtp`.

    Returns (output, state or the pool). Differs: other backends raise.
    """
    require_tensors(q=q, k=k, v=v, A_log=A_log, a=a, dt_bias=dt_bias, b=b)
    if backend not in ("auto", "flashinfer"):
        refuse(_PACKAGE, "backend", backend, "auto and flashinfer, which both mean flashdelta")
    if disable_state_update and q.shape[1] == 1:
        raise ValueError("disable_state_update: expected False for one token, got True")
    if (initial_state is None) != (initial_state_indices is None):
        raise ValueError("initial_state, initial_state_indices: expected both or neither, got one")
    if (state is None) == (initial_state is None):
        raise ValueError("state, initial_state: expected one of the two, got " + ("none" if state is None else "both"))
    if output_state_indices is not None and initial_state is None:
        raise ValueError("output_state_indices: expected None without a pool, got a tensor")
    states = state if initial_state is None else initial_state
    assert states is not None
    step = _Step(q, k, v, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, "vk", states)
    if intermediate_states_buffer is None:
        return _decode(step, initial_state_indices, output_state_indices, not disable_state_update)
    indices = initial_state_indices
    if indices is None:
        indices = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    return _decode_into_buffer(
        step, intermediate_states_buffer, indices, output_state_indices, not disable_state_update
    )


def gated_delta_rule_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Stands for flashinfer.gdn_decode.gated_delta_rule_decode: one token, state [B,HV,K,V], changed in place."""
    require_tensors(q=q, k=k, v=v, state=state, A_log=A_log, a=a, dt_bias=dt_bias, b=b)
    if backend not in ("auto", "flashinfer"):
        refuse(_PACKAGE, "backend", backend, "auto and flashinfer, which both mean flashdelta")
    if q.shape[1] != 1:
        raise ValueError(f"q: expected one token a sequence, got {q.shape[1]}")
    return _decode(_Step(q, k, v, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, "kv", state), None, None, True)


def gated_delta_rule_mtp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool | None = None,
    use_qk_l2norm: bool = True,
    output_state_indices: Tensor | None = None,
    cache_replayssm: bool = False,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Stands for flashinfer.gdn_decode.gated_delta_rule_mtp: a few tokens a sequence, whose states may all be kept.

    q, k [B,T,H,K]; v [B,T,HV,V]; initial_state is a pool [slots,HV,V,K], fp32 or bf16, and sequence i starts from slot
    initial_state_indices[i]. The gate is -exp(A_log) softplus(a + dt_bias), the step sigmoid(b); a, b [B,T,HV]. The
    state after the last token goes to slot output_state_indices[i] (initial_state_indices[i] without them) unless
    disable_state_update; a negative index there leaves the slot alone. None means True, as FlashInfer 0.7 has it.

    The state after each token is kept in intermediate_states_buffer [B or more, T or more, HV,V,K], of the pool's
    dtype, or in slots ssm_state_indices [B,T] of the pool, which then gets no other state. A negative
    initial_state_indices[i] leaves its sequence out: output 0, no state read or written.

    Returns (output, pool). Differs: cache_replayssm raises NotImplementedError, so does backward.
    """
    require_tensors(
        q=q, k=k, v=v, initial_state=initial_state, initial_state_indices=initial_state_indices, A_log=A_log, a=a,
        dt_bias=dt_bias, b=b,
    )  # fmt: skip
    if cache_replayssm:
        refuse(_PACKAGE, "cache_replayssm", True, "cache_replayssm=False, with intermediate_states_buffer")
    windows = {"rawv": replayssm_rawv, "rawk": replayssm_rawk, "g": replayssm_g, "beta": replayssm_beta}
    for name, value in windows.items():
        if value is not None:
            refuse(_PACKAGE, f"replayssm_{name}", value, "None")
    update = disable_state_update is False
    step = _Step(q, k, v, A_log, a, dt_bias, b, scale, output, use_qk_l2norm, "vk", initial_state)
    if ssm_state_indices is not None:
        if intermediate_states_buffer is not None:
            raise ValueError("ssm_state_indices, intermediate_states_buffer: expected one of the two, got both")
        if not update:
            raise ValueError("disable_state_update: expected False with ssm_state_indices, got True or None")
        return _decode(step, initial_state_indices, None, True, ssm_state_indices)
    if intermediate_states_buffer is not None:
        return _decode_into_buffer(
            step, intermediate_states_buffer, initial_state_indices, output_state_indices, update
        )
    return _decode(step, initial_state_indices, output_state_indices, update)


def _decode_into_buffer(
    step: _Step, buffer: Tensor, indices: Tensor, out_indices: Tensor | None, update: bool
) -> tuple[Tensor, Tensor]:
    """The buffer [B,T,HV,V,K], as a pool of its own, takes the state after every token; the pool the last of them."""
    batch, tokens = step.q.shape[:2]
    pool = step.state
    if buffer.dim() != 5 or buffer.shape[0] < batch or buffer.shape[1] < tokens or buffer.shape[2:] != pool.shape[1:]:
        expected = f"[{batch} or more, {tokens} or more, {', '.join(map(str, pool.shape[1:]))}]"
        raise ValueError(f"intermediate_states_buffer: expected shape {expected}, got {list(buffer.shape)}")
    rows, columns = pool.shape[2:]
    inner = pool.shape[1] * rows * columns
    if buffer.stride()[1:] != (inner, rows * columns, columns, 1) or buffer.stride(0) % inner:
        raise ValueError("intermediate_states_buffer: expected a contiguous buffer, or its first tokens [:, :T]")
    if buffer.dtype != pool.dtype:
        raise ValueError(f"intermediate_states_buffer: expected {pool.dtype} like the pool, got {buffer.dtype}")
    steps = buffer.stride(0) // inner  # more than its shape says where it is a part of a longer one
    slots = buffer.as_strided(((batch - 1) * steps + tokens, *pool.shape[1:]), buffer.stride()[1:])
    first = torch.arange(batch, dtype=torch.int32, device=buffer.device) * steps
    each = first[:, None] + torch.arange(tokens, dtype=torch.int32, device=buffer.device)
    o, _ = _decode(step, indices, None, True, each, slots)
    if update:  # a sequence of no tokens ends in the state that it starts from; a negative index leaves it out
        q, k, v = (x[:, :0] for x in step[:3])
        gates = torch.empty_like(step.a[:, :0], dtype=torch.float32)
        last = torch.where(indices < 0, -1, first + (tokens - 1)).int()
        _core.gated_delta_forward(
            q,
            k,
            v,
            gates,
            gates,
            initial_state=slots,
            final_state=pool,
            state_layout="vk",
            initial_state_indices=last,
            final_state_indices=indices if out_indices is None else out_indices,
        )
    return o, pool


class _Step(NamedTuple):
    """What a decode call computes from, whatever it does with states."""

    q: Tensor
    k: Tensor
    v: Tensor
    A_log: Tensor
    a: Tensor
    dt_bias: Tensor
    b: Tensor
    scale: float | None
    output: Tensor | None
    l2norm: bool
    layout: _core.StateLayout
    state: Tensor


def _decode(
    step: _Step,
    indices: Tensor | None,
    out_indices: Tensor | None,
    update: bool,
    token_indices: Tensor | None = None,
    to: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """token_indices: where states go, in `to` or else in the pool of the first ones, instead of the last one there."""
    q, state = step.q, step.state
    _check_states(state=state)
    if update and out_indices is not None:  # a negative one leaves its slot alone; the sequence is still run
        token_indices = torch.full(q.shape[:2], -1, dtype=out_indices.dtype, device=q.device)
        token_indices[:, -1:] = out_indices[:, None]
    o = _core.gated_delta_forward(
        rows(q),
        rows(step.k),
        rows(step.v),
        A_log=float_or(step.A_log, q.dtype),
        a=float_or(step.a, q.dtype),
        dt_bias=float_or(step.dt_bias, q.dtype),
        b=float_or(step.b, q.dtype),
        scale=step.scale,
        initial_state=state,
        final_state=(state if to is None else to) if update else None,
        state_layout=step.layout,
        initial_state_indices=indices,
        token_state_indices=token_indices,
        qk_l2norm=step.l2norm,
        o=step.output,
    ).o
    return o, state
