"""What stands around the gated delta rule in a layer, each in one pass over memory, as Triton kernels.

short_convolution: x [B,C,T] of any strides, weight [C,W] -> the causal convolution, a view [B,C,T] of memory [B,T,C].
    The rule reads a head's channels as rows, so nothing has to be turned round after it.
gated_norm: x, gate [rows,D], weight [D] -> weight RMSNorm(x) silu(gate), rounded where transformers rounds.

Triton comes with torch's builds for cards. `available(x)` says whether these may stand for the torch functions: on a
card, where no gradient is asked for and torch.compile is not looking.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def available(x: Tensor, *others: Tensor | None) -> bool:
    if triton is None or not x.is_cuda or x.dtype not in _DTYPES or torch.compiler.is_compiling():
        return False
    return not (torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in (x, *others)))


if triton is not None:

    @triton.jit
    def _convolve(
        x, weight, bias, sequence, out, tokens, channels, x_batch, x_channel, x_token,
        WIDTH: tl.constexpr, BIAS: tl.constexpr, PACKED: tl.constexpr, SILU: tl.constexpr, BLOCK_T: tl.constexpr,
        BLOCK_C: tl.constexpr,
    ):  # fmt: skip
        t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
        c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
        batch = tl.program_id(2).to(tl.int64)
        real = c < channels
        columns = x + batch * x_batch + c.to(tl.int64)[None, :] * x_channel
        sequence += batch * tokens
        if PACKED:
            own = tl.load(sequence + t, mask=t < tokens, other=-1)
        total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        for tap in tl.static_range(WIDTH):
            at = t - (WIDTH - 1 - tap)
            there = (at >= 0) & (at < tokens)
            if PACKED:  # a tap from another sequence counts as zero
                there = there & (tl.load(sequence + at, mask=there, other=-2) == own)
            row = tl.load(columns + at[:, None] * x_token, mask=there[:, None] & real[None, :], other=0)
            total += row.to(tl.float32) * tl.load(weight + c * WIDTH + tap, mask=real, other=0).to(tl.float32)[None, :]
        if BIAS:
            total += tl.load(bias + c, mask=real, other=0).to(tl.float32)[None, :]
        if SILU:
            total *= tl.sigmoid(total)
        where = out + (batch * tokens + t)[:, None] * channels + c[None, :]
        tl.store(where, total.to(out.dtype.element_ty), mask=(t < tokens)[:, None] & real[None, :])

    @triton.jit
    def _norm_and_gate(
        x, gate, weight, out, rows, x_row, gate_row, eps,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROUND: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        d = tl.arange(0, BLOCK)
        there = (r < rows)[:, None] & (d < WIDTH)[None, :]
        value = tl.load(x + r[:, None] * x_row + d[None, :], mask=there, other=0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(value * value, 1) / WIDTH + eps)
        value = (value * inverse[:, None]).to(x.dtype.element_ty).to(tl.float32)
        value *= tl.load(weight + d, mask=d < WIDTH, other=0).to(tl.float32)[None, :]
        if ROUND:  # weight and x are of one dtype, and so is their product
            value = value.to(x.dtype.element_ty).to(tl.float32)
        by = tl.load(gate + r[:, None] * gate_row + d[None, :], mask=there, other=0).to(tl.float32)
        value *= by * tl.sigmoid(by)
        tl.store(out + r[:, None] * WIDTH + d[None, :], value.to(out.dtype.element_ty), mask=there)


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, sequence: Tensor | None) -> Tensor:
    """sequence [B,T] or [1,T] (then B is 1): the number of the sequence that a token is of, where some are packed."""
    batch, channels, tokens = x.shape
    out = x.new_empty((batch, tokens, channels))
    if out.numel() == 0:
        return out.transpose(1, 2)
    block_t, block_c = 32, 256
    if x.stride(1) != 1:
        block_t, block_c = 64, 64
    grid = (triton.cdiv(tokens, block_t), triton.cdiv(channels, block_c), batch)
    if sequence is not None:
        sequence = sequence.expand(batch, tokens).contiguous()
    with torch.cuda.device(x.device):
        _convolve[grid](
            x, weight.contiguous(), bias, x if sequence is None else sequence, out, tokens, channels, x.stride(0),
            x.stride(1), x.stride(2), WIDTH=weight.shape[-1], BIAS=bias is not None, PACKED=sequence is not None,
            SILU=silu, BLOCK_T=block_t, BLOCK_C=block_c,
        )  # fmt: skip
    return out.transpose(1, 2)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows, width = x.shape
    out = x.new_empty((rows, width))
    if out.numel() == 0:
        return out
    x, gate = (y if y.stride(-1) == 1 else y.contiguous() for y in (x, gate))
    block = triton.next_power_of_2(width)
    at_once = max(4096 // block, 1)
    with torch.cuda.device(x.device):
        _norm_and_gate[(triton.cdiv(rows, at_once),)](
            x, gate, weight, out, rows, x.stride(0), gate.stride(0), eps, WIDTH=width, BLOCK=block,
            ROUND=weight.dtype == x.dtype, ROWS=at_once,
        )  # fmt: skip
    return out
