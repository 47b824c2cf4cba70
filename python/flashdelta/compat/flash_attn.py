"""flash-attn's interface (2.8.3), forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import _core
from ._common import refuse, require_tensors, rows

_PACKAGE = "flashdelta.compat.flash_attn"


def _refuse_options(dropout_p: float, alibi_slopes: Tensor | None) -> None:
    if dropout_p != 0.0:
        refuse(_PACKAGE, "dropout_p", dropout_p, "dropout_p=0.0")
    if alibi_slopes is not None:
        refuse(_PACKAGE, "alibi_slopes", alibi_slopes, "alibi_slopes=None")


def _padded(x: Tensor, short: int) -> Tensor:
    """Head sizes that are no multiple of 8 are filled up with zeros, which change no dot product."""
    return pad(x, (0, short)) if short else rows(x)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool, window: tuple[int, int], softcap: float,
    with_lse: bool, **lengths: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    short, short_v = -head_dim % 8, -head_dim_v % 8
    out = _core.attention_forward(
        _padded(q, short),
        _padded(k, short),
        _padded(v, short_v),
        causal=causal,
        scale=head_dim**-0.5 if scale is None else scale,
        window_left=max(window[0], -1),
        window_right=max(window[1], -1),
        softcap=softcap,
        return_lse=with_lse,
        **lengths,
    )
    o, lse = out if with_lse else (out, None)
    if lse is not None:  # a row that sees no key has +inf there, and -inf here
        lse = torch.where(lse == -torch.inf, torch.inf, lse)
    return o[..., :head_dim_v] if short_v else o, lse


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Stands for flash_attn.flash_attn_func.

    q [B,TQ,HQ,D]; k, v [B,TK,HK,D]. Masks align bottom-right. Returns o, or with return_attn_probs (o, lse [B,HQ,TQ],
    an empty tensor: there is no dropout whose pattern it could show). Results are deterministic either way. Differs:
    dropout_p and alibi_slopes raise NotImplementedError, so does backward.
    """
    require_tensors(q=q, k=k, v=v)
    _refuse_options(dropout_p, alibi_slopes)
    o, lse = _attend(q, k, v, softmax_scale, causal, window_size, softcap, return_attn_probs)
    return (o, lse, q.new_empty(0)) if return_attn_probs else o


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Stands for flash_attn.flash_attn_varlen_func.

    q [total_q,HQ,D]; k, v [total_k,HK,D], or pages [pages,page_size,HK,D] with block_table [B,pages a sequence]. lse is
    [HQ,total_q]. Otherwise as `flash_attn_func`.
    """
    require_tensors(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _refuse_options(dropout_p, alibi_slopes)
    keys: dict[str, Any] = {"cu_seqlens_k": cu_seqlens_k}
    if block_table is not None:
        keys = {"page_table": block_table, "seqused_k": cu_seqlens_k.diff()}
    o, lse = _attend(
        q, k, v, softmax_scale, causal, window_size, softcap, return_attn_probs, cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k), **keys,
    )  # fmt: skip
    return (o, lse, q.new_empty(0)) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Stands for flash_attn.flash_attn_with_kvcache.

    q [B,TQ,HQ,D]; k_cache, v_cache [rows,TK,HK,D], or pages [pages,page_size,HK,D] with block_table. k, v [B,T,HK,D]
    are first written to the cache at cache_seqlens. Returns o, or (o, lse [B,HQ,TQ]) with return_softmax_lse.

    Differs: rotary_cos, rotary_sin (and rotary_interleaved=False, which is for them), cache_leftpad and alibi_slopes
    raise NotImplementedError, and so does a num_splits over 1: how the keys are cut is the plan's choice.
    """
    require_tensors(q=q, k_cache=k_cache, v_cache=v_cache)
    _refuse_options(0.0, alibi_slopes)
    for name, value in (
        ("rotary_cos", rotary_cos),
        ("rotary_sin", rotary_sin),
        ("cache_leftpad", cache_leftpad),
    ):
        if value is not None:
            refuse(_PACKAGE, name, value, f"{name}=None")
    if not rotary_interleaved:
        refuse(_PACKAGE, "rotary_interleaved", rotary_interleaved, "True, without rotary_cos")
    if num_splits not in (0, 1):
        refuse(_PACKAGE, "num_splits", num_splits, "0, the plan's choice")
    if (k is None) != (v is None):
        raise ValueError("k, v: expected both or neither, got one")
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError("cache_batch_idx: expected None with block_table, got a tensor")
    if block_table is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: expected lengths with block_table, got None")
    batch = q.shape[0]
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    used = cache_seqlens
    if k is not None and v is not None:
        if cache_seqlens is None:
            raise ValueError("cache_seqlens: expected where k and v go in the cache, got None")
        require_tensors(k=k, v=v)
        _append(k_cache, k, cache_seqlens, cache_batch_idx, block_table)
        _append(v_cache, v, cache_seqlens, cache_batch_idx, block_table)
        used = cache_seqlens + k.shape[1]
    o, lse = _attend(
        q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, return_softmax_lse, seqused_k=used,
        cache_batch_idx=cache_batch_idx, page_table=block_table,
    )  # fmt: skip
    return (o, lse) if return_softmax_lse else o


def _append(cache: Tensor, new: Tensor, lengths: Tensor, rows_of: Tensor | None, table: Tensor | None) -> None:
    """cache[b, lengths[b] + t] = new[b, t], through the page table where there is one; no host synchronisation."""
    batch, tokens = new.shape[:2]
    at = lengths.long()[:, None] + torch.arange(tokens, device=new.device)
    if table is not None:
        size = cache.shape[1]
        pages = table.long().gather(1, at // size)
        cache[pages, at % size] = new
        return
    rows = torch.arange(batch, device=new.device) if rows_of is None else rows_of.long()
    cache[rows[:, None].expand(batch, tokens), at] = new
