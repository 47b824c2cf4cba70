"""FlashQLA's gated delta rule (flash-qla 0.1.3), forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._common import float_or, float_rows, refuse, require_packed, require_tensors, rows
from .fla import _run

_PACKAGE = "flashdelta.compat.flash_qla"
CHUNK_SIZE = 64
DECAY_THRESHOLD = -10.0  # where FlashQLA takes an old state to have decayed


def _context_parallel(auto_cp: bool, normalised: bool) -> _core.ContextParallel:
    """decay_start's error is bounded where the keys' norm is, so only where q and k are normalised inside."""
    if not auto_cp:
        return "off"
    return "decay_start" if normalised else "exact"


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
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    state_v_first: bool = False,
    auto_cp: bool = True,
    enable_fwd_cp_cache: bool = True,
    cp_context: Any = None,
    force_intra_cp: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Stands for flash_qla.chunk_gated_delta_rule. Shapes as in `compat.fla`; returns (o, final_state fp32 or None).

    auto_cp may start a segment from zero where the gates have decayed the old state by more than e^-10, as FlashQLA
    does, where q and k are normalised inside; else it is exact. enable_fwd_cp_cache serves backward alone, and has
    nothing to do here. Differs: head_first, cp_context and force_intra_cp raise, so does backward.
    """
    require_tensors(q=q, k=k, v=v, g=g, beta=beta)
    if head_first:
        refuse(_PACKAGE, "head_first", head_first, "head_first=False, [B,T,H,K]")
    if cp_context is not None:
        refuse(_PACKAGE, "cp_context", cp_context, "one card, cp_context=None")
    if force_intra_cp:
        refuse(_PACKAGE, "force_intra_cp", force_intra_cp, "force_intra_cp=False")
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
        gate_in_kernel=False,
        A_log=None,
        dt_bias=None,
        beta_sigmoid=False,
        neg_eigval=False,
        v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        context_parallel=_context_parallel(auto_cp, use_qk_l2norm_in_kernel),
        decay_threshold=DECAY_THRESHOLD,
    )


def chunk_gated_delta_rule_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    output_final_state: bool = True,
    output_h: bool = False,
    auto_cp: bool = True,
    state_v_first: bool = False,
    enable_fwd_cp_cache: bool = False,
    cp_context: Any = None,
    is_train: bool | None = None,
) -> tuple[Tensor, None, Tensor, Tensor | None, Tensor | None, None]:
    """Stands for flash_qla.chunk_gated_delta_rule_fwd.

    Returns (g_cumsum, A, o, h, final_state, cp_cache): g_cumsum is g added up within each chunk of 64, fp32; h
    [B,chunks,HV,K,V] in q's dtype, with output_h alone, is the state before each chunk of each sequence; A and cp_cache
    are None, since no kernel here makes them. The packed form reads cu_seqlens on the host. is_train and
    enable_fwd_cp_cache serve backward alone. Differs: cp_context raises.
    """
    require_tensors(q=q, k=k, v=v, g=g, beta=beta)
    if cp_context is not None:
        refuse(_PACKAGE, "cp_context", cp_context, "one card, cp_context=None")
    require_packed(q, initial_state, cu_seqlens)
    start = float_rows(initial_state)
    o, final_state, checkpoints = _core.gated_delta_forward(
        rows(q),
        rows(k),
        rows(v),
        float_or(g, q.dtype),
        float_or(beta, q.dtype),
        scale=scale,
        initial_state=start,
        output_final_state=output_final_state,
        state_layout="vk" if state_v_first else "kv",
        checkpoint_every=CHUNK_SIZE if output_h else 0,
        cu_seqlens=cu_seqlens,
        context_parallel="exact" if auto_cp else "off",
    )
    lengths = [q.shape[1]] * q.shape[0] if cu_seqlens is None else cu_seqlens.diff().tolist()
    h = None
    if checkpoints is not None:
        shape = _core.state_shape(q, v, cu_seqlens, "vk" if state_v_first else "kv")
        first = torch.zeros(shape, device=q.device) if start is None else start
        h = _states_before_chunks(first, checkpoints, lengths).to(q.dtype)
        h = h.reshape(q.shape[0], -1, *h.shape[1:])
    return _chunk_cumsum(g, lengths), None, o, h, final_state, None


def _states_before_chunks(first: Tensor, checkpoints: Tensor, lengths: list[int]) -> Tensor:
    """[chunks of all sequences, HV, K, V]: a sequence's first state, then those after its chunks but the last."""
    parts, row = [], 0
    for sequence, length in enumerate(lengths):
        chunks = -(-length // CHUNK_SIZE)
        if chunks > 0:
            parts += [first[sequence : sequence + 1], checkpoints[row : row + chunks - 1]]
        row += length // CHUNK_SIZE
    return torch.cat(parts) if parts else first[:0]


def _chunk_cumsum(g: Tensor, lengths: list[int]) -> Tensor:
    out = torch.zeros(g.shape, dtype=torch.float32, device=g.device)
    flat_in, flat_out = g.float().reshape(-1, g.shape[-1]), out.view(-1, g.shape[-1])
    start = 0
    for length in lengths:
        for chunk in range(start, start + length, CHUNK_SIZE):
            stop = min(chunk + CHUNK_SIZE, start + length)
            torch.cumsum(flat_in[chunk:stop], 0, out=flat_out[chunk:stop])
        start += length
    return out
