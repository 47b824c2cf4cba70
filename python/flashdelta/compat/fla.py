"""flash-linear-attention's gated delta rule (fla-core 0.6.0), forward."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._common import float_or, float_rows, refuse, refuse_unknown, require_packed, require_tensors, rows

_PACKAGE = "flashdelta.compat.fla"


def _v_first(keywords: dict[str, Any], state_v_first: bool) -> bool:
    if "transpose_state_layout" not in keywords:
        return state_v_first
    if state_v_first:
        raise ValueError("transpose_state_layout: expected to be left out where state_v_first is given, got both")
    warnings.warn("transpose_state_layout is an old name of state_v_first", DeprecationWarning, stacklevel=3)
    return bool(keywords.pop("transpose_state_layout"))


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    *,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    l2norm: bool,
    gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    beta_sigmoid: bool,
    neg_eigval: bool,
    v_first: bool,
    cu_seqlens: Tensor | None,
    host_cu_seqlens: Tensor | None = None,
    chunk: int = 0,
    context_parallel: _core.ContextParallel = "exact",
    decay_threshold: float = -9.0,
) -> tuple[Tensor, Tensor | None]:
    require_packed(q, initial_state, cu_seqlens)
    if neg_eigval and not beta_sigmoid:
        raise ValueError("allow_neg_eigval: expected use_beta_sigmoid_in_kernel=True with it, got False")
    gate: dict[str, Any]
    if gate_in_kernel:
        if A_log is None or g is None:
            raise ValueError("A_log, g: expected both with use_gate_in_kernel=True, got None")
        bias = torch.zeros_like(A_log) if dt_bias is None else dt_bias
        gate = {"A_log": float_or(A_log, q.dtype), "a": float_or(g, q.dtype), "dt_bias": float_or(bias, q.dtype)}
    elif A_log is not None or dt_bias is not None:
        raise ValueError("use_gate_in_kernel: expected True with A_log and dt_bias, got False")
    else:
        gate = {"g": float_or(g, q.dtype)}
    step: dict[str, Any] = {"b" if beta_sigmoid else "beta": float_or(beta, q.dtype)}
    o, final_state, _ = _core.gated_delta_forward(
        rows(q),
        rows(k),
        rows(v),
        **gate,
        **step,
        beta_scale=2.0 if neg_eigval else 1.0,
        scale=scale,
        initial_state=float_rows(initial_state),  # the final state is fp32 whatever the first one is
        output_final_state=output_final_state,
        state_layout="vk" if v_first else "kv",
        cu_seqlens=cu_seqlens,
        host_cu_seqlens=host_cu_seqlens,
        qk_l2norm=l2norm,
        chunk=chunk,
        context_parallel=context_parallel,
        decay_threshold=decay_threshold,
    )
    return o, final_state


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Stands for fla.ops.gated_delta_rule.chunk_gated_delta_rule.

    q, k [B,T,H,K]; v [B,T,HV,V]; g [B,T,HV], natural log, or raw with use_gate_in_kernel (then A_log and dt_bias, both
    [HV]); beta [B,T,HV]. Returns (o, final_state fp32 [N,HV,K,V] or None).

    Differs: cp_context (several cards) and chunk_size 16 raise NotImplementedError, so does backward. chunk_size 64,
    the default, leaves the chunk to the plan. chunk_indices, which follow from cu_seqlens, are taken and not needed.
    """
    require_tensors(q=q, k=k, v=v, g=g, beta=beta)
    if cp_context is not None:
        refuse(_PACKAGE, "cp_context", cp_context, "one card, cp_context=None")
    v_first = _v_first(kwargs, state_v_first)
    chunk_size = kwargs.pop("chunk_size", 64)
    if chunk_size not in (32, 64):
        refuse(_PACKAGE, "chunk_size", chunk_size, "32 and 64")
    gate_in_kernel = kwargs.pop("use_gate_in_kernel", False)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    refuse_unknown("chunk_gated_delta_rule", kwargs)
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        l2norm=use_qk_l2norm_in_kernel,
        gate_in_kernel=gate_in_kernel,
        A_log=A_log,
        dt_bias=dt_bias,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        neg_eigval=allow_neg_eigval,
        v_first=v_first,
        cu_seqlens=cu_seqlens,
        host_cu_seqlens=cu_seqlens_cpu,
        chunk=0 if chunk_size == 64 else chunk_size,
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Stands for fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule: `chunk_gated_delta_rule` for few tokens.

    g None means no decay and beta None means 1. Differs: gk, gv (a gate for each row or column) and a beta of v's shape
    raise NotImplementedError, so does backward.
    """
    require_tensors(q=q, k=k, v=v)
    if gk is not None:
        refuse(_PACKAGE, "gk", gk, "g, one gate a head")
    if gv is not None:
        refuse(_PACKAGE, "gv", gv, "g, one gate a head")
    if beta is not None and beta.dim() == v.dim():
        refuse(_PACKAGE, "beta", beta, "beta of shape [B,T,HV]")
    v_first = _v_first(kwargs, state_v_first)
    refuse_unknown("fused_recurrent_gated_delta_rule", kwargs)
    if g is None and not use_gate_in_kernel:
        g = torch.zeros(v.shape[:-1], dtype=torch.float32, device=v.device)
    if beta is None:
        if use_beta_sigmoid_in_kernel:
            raise ValueError("beta: expected a tensor with use_beta_sigmoid_in_kernel=True, got None")
        beta = torch.ones(v.shape[:-1], dtype=torch.float32, device=v.device)
    return _run(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        l2norm=use_qk_l2norm_in_kernel,
        gate_in_kernel=use_gate_in_kernel,
        A_log=A_log,
        dt_bias=dt_bias,
        beta_sigmoid=use_beta_sigmoid_in_kernel,
        neg_eigval=allow_neg_eigval,
        v_first=v_first,
        cu_seqlens=cu_seqlens,
    )


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule
