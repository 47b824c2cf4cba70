"""flashdelta under models of the transformers library (5.17 on): `enable()`, and `disable()` to take it back.

Attention goes through transformers' registry: a model runs it with `attn_implementation="fdelta"`. The gated delta
rule goes through the functions that the Qwen3-Next and Qwen3.5 layers call, which `enable()` exchanges, for every model
in the process. So do, on a card, the short convolution before it and the gated norm after it, each in one pass over
memory where transformers' torch functions take several and turn the channels round twice (Triton does it, which comes
with torch; without it, under torch.compile and where gradients are asked for, transformers' own stay). On every device
the convolution keeps packed sequences apart, which transformers refuses where causal_conv1d is not there.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from .. import _core
from ..compat import fla
from ..compat._common import rows
from . import _layers

NAME = "fdelta"  # transformers takes every name with "flash" in it for a build of flash-attn
_MODULES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
_originals: list[tuple[Any, str, Any]] = []


def enable(layers: bool = True) -> None:
    """Registers the attention and exchanges the gated delta functions. A second call changes nothing.

    layers=False leaves a layer's convolution (but for packed sequences) and norm to transformers.

    Raises ImportError where this transformers has none of the models' functions.
    """
    if _originals:
        return
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, attention_mask)
    for model in _MODULES:
        path = f"transformers.models.{model}.modeling_{model}"
        try:
            module = importlib.import_module(path)
        except ImportError:
            continue
        for name, function in (
            ("torch_chunk_gated_delta_rule", _delta_rule(fla.chunk_gated_delta_rule)),
            ("torch_recurrent_gated_delta_rule", _delta_rule(fla.fused_recurrent_gated_delta_rule)),
        ):
            _exchange(module, name, function)
        _exchange(module, "causal_conv1d_fn", _convolution(module.causal_conv1d_fn, layers))
        norms: list[Any] = [
            x for name, x in vars(module).items() if name.endswith("RMSNormGated") and isinstance(x, type)
        ]
        for norm in norms if layers else ():
            _exchange(norm, "forward", _gated_norm(norm.forward))
    if not _originals:
        raise ImportError(
            "transformers: expected one with the gated delta functions of Qwen3-Next or Qwen3.5 (5.17 on)"
        )


def disable() -> None:
    """Takes back what `enable()` did. Models that still name the attention "fdelta" then fail to find it."""
    while _originals:
        owner, name, function = _originals.pop()
        setattr(owner, name, function)
    for registry in (AttentionInterface, AttentionMaskInterface):
        registry._global_mapping.pop(NAME, None)


def _exchange(owner: Any, name: str, function: Callable[..., Any]) -> None:
    if hasattr(owner, name):
        original = getattr(owner, name)
        _originals.append((owner, name, original))
        setattr(owner, name, functools.wraps(original)(function))


# ---- Attention ----


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """What the attention needs of a padding mask [B,tokens]: None where nothing is padded, else [B,kv] as it is.

    It looks at the mask once a forward pass, as transformers' own masks do.
    """
    if isinstance(q_offset, int) and kv_offset + kv_length > q_offset + q_length and attention_mask is None:
        raise NotImplementedError(
            f"{NAME}: a cache with room after its last token (StaticCache) is not supported; supported: DynamicCache"
        )
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise NotImplementedError(
            f"{NAME}: an attention_mask of {attention_mask.dim()} dimensions is not supported; supported: [B, tokens]"
        )
    attention_mask = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    if attention_mask.shape[1] != kv_length:
        raise NotImplementedError(
            f"{NAME}: a cache with room after its last token (StaticCache) is not supported; supported: DynamicCache"
        )
    return None if attention_mask.all() else attention_mask


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [B,HQ,TQ,D], key and value [B,HK,TK,D]; returns ([B,TQ,HQ,DV], None).

    Packed sequences are told apart by cu_seq_lens_q, or by position_ids that start again in a batch of one. Padding on
    either side is cut off without a copy and without reading lengths on the host.
    """
    for name, value_given in (("dropout", dropout), ("position_bias", position_bias)):
        if value_given is not None and not (isinstance(value_given, float) and value_given == 0.0):
            raise NotImplementedError(f"{NAME}: {name} is not supported; supported: none")
    if output_attentions:
        raise NotImplementedError(f"{NAME}: output_attentions is not supported; supported: attn_implementation='eager'")
    q, k, v = (rows(x.transpose(1, 2)) for x in (query, key, value))
    options: dict[str, Any] = {
        "causal": getattr(module, "is_causal", True) if is_causal is None else is_causal,
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sink": s_aux,
        "window_left": -1 if sliding_window is None else sliding_window - 1,
    }
    if attention_mask is not None:
        return _padded(q, k, v, attention_mask, options), None
    if cu_seq_lens_q is None and position_ids is not None and q.shape[0] == 1 and q.shape[1] == k.shape[1] > 1:
        cu_seq_lens_q = cu_seq_lens_k = _restarts(position_ids)
    if cu_seq_lens_q is None:
        return _core.attention_forward(q, k, v, **options), None
    out = _packed(q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q or 0, max_length_k or 0, options)
    return out, None


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, max_q: int, max_k: int, options: dict[str, Any]
) -> Tensor:
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    out = _core.attention_forward(
        *flat,
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_q if cu_k is None else cu_k,
        max_seqlen_q=max_q,
        max_seqlen_k=max_k,
        **options,
    )
    return out.view(*q.shape[:-1], v.shape[-1])


def _restarts(position_ids: Tensor) -> Tensor | None:
    """cu_seqlens of the sequences whose positions start again at 0 in one row; None where there is one sequence."""
    positions = position_ids[0] if position_ids.dim() == 3 else position_ids
    starts = (positions.flatten()[1:] == 0).nonzero().flatten() + 1
    if starts.numel() == 0:
        return None
    ends = torch.tensor([positions.numel()], device=starts.device)
    return torch.cat([torch.zeros_like(ends), starts, ends]).int()


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """A row's real tokens and the padding before and after them become three sequences of one packed call.

    Rows whose mask has holes (padding on the right, then new tokens) have their real keys moved together first.
    """
    tokens_k, tokens_q = k.shape[1], q.shape[1]
    real = mask.sum(1)
    if tokens_q < tokens_k:  # with a cache: new tokens after padding leave holes, moving keys left closes them
        order = torch.argsort(mask.logical_not().to(torch.uint8), dim=1, stable=True)
        k, v = (x.gather(1, order[:, :, None, None].expand_as(x)) for x in (k, v))
        first, last = torch.zeros_like(real), real
    else:
        first = mask.to(torch.uint8).argmax(1)
        last = first + real
    queries_real = mask[:, -tokens_q:].sum(1)
    first_q = mask[:, -tokens_q:].to(torch.uint8).argmax(1)
    cu_q = _three_parts(first_q, first_q + queries_real, tokens_q)
    cu_k = _three_parts(first, last, tokens_k)
    return _packed(q, k, v, cu_q, cu_k, tokens_q, tokens_k, options)


def _three_parts(first: Tensor, last: Tensor, tokens: int) -> Tensor:
    rows_at = torch.arange(first.shape[0], device=first.device) * tokens
    ends = torch.stack([rows_at + first, rows_at + last, rows_at + tokens], 1).flatten()
    return torch.cat([torch.zeros_like(ends[:1]), ends]).int()


# ---- Gated delta rule ----

_RULE_NAMES = (
    "scale",
    "initial_state",
    "output_final_state",
    "use_qk_l2norm_in_kernel",
    "cu_seqlens",
)


def _delta_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **kwargs: Any) -> Any:
        # The layers hand on every keyword of the model's forward; these are the rule's.
        kept = {name: kwargs[name] for name in _RULE_NAMES if kwargs.get(name) is not None}
        return function(query, key, value, g=g, beta=beta, **kept)

    return rule


def _convolution(original: Callable[..., Any], always: bool) -> Callable[..., Any]:
    def convolution(
        hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
    ) -> Tensor:
        sequence = _sequence_of_token(kwargs, hidden_states)
        known = activation in (None, "silu", "swish")
        if known and (always or sequence is not None) and _layers.available(hidden_states, weight, bias):
            return _layers.short_convolution(hidden_states, weight, bias, activation is not None, sequence)
        if sequence is None:
            return original(hidden_states, weight, bias, activation=activation, **kwargs)
        return _separate_convolution(hidden_states, weight, bias, activation, sequence)

    return convolution


def _gated_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, hidden_states: Tensor, gate: Tensor) -> Tensor:
        if hidden_states.dim() == 2 and self.activation == "silu" and hidden_states.shape == gate.shape:
            if _layers.available(hidden_states, gate, self.weight):
                return _layers.gated_norm(hidden_states, gate, self.weight, self.variance_epsilon)
        return original(self, hidden_states, gate)

    return forward


def _sequence_of_token(kwargs: dict[str, Any], hidden_states: Tensor) -> Tensor | None:
    if kwargs.get("seq_idx") is not None:
        return kwargs["seq_idx"]
    cu_seqlens = kwargs.get("cu_seq_lens_q")
    if cu_seqlens is None:
        return None
    tokens = torch.arange(hidden_states.shape[-1], device=hidden_states.device)
    return torch.searchsorted(cu_seqlens.long(), tokens, right=True)[None]


def _separate_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, sequence: Tensor
) -> Tensor:
    """The causal convolution x [B,C,T] * weight [C,W], where a tap from another sequence counts as zero."""
    width, tokens = weight.shape[-1], x.shape[-1]
    out = torch.zeros_like(x, dtype=torch.float32)
    for tap in range(width):
        back = width - 1 - tap
        moved = functional.pad(x, (back, 0))[..., :tokens]
        same = functional.pad(sequence, (back, 0), value=-1)[:, :tokens] == sequence
        out += torch.where(same[:, None], moved, 0).float() * weight[:, tap, None].float()
    if bias is not None:
        out += bias[:, None].float()
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"{NAME}: a convolution with {activation} is not supported; supported: silu")
    return (functional.silu(out) if activation else out).to(x.dtype)
