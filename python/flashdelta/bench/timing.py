"""Times of calls: on a card by CUDA events, on the CPU by the clock; and what a call costs the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import flashdelta


@dataclass
class Time:
    """Seconds; or why there are none."""

    median: float = 0.0
    least: float = 0.0
    most: float = 0.0
    why: str = ""


def measure(call: Callable[[], Any], device: str, repeat: int, warmup: int) -> Time:
    try:
        for _ in range(warmup):
            call()
        seconds = [_on_card(call) if device == "cuda" else _by_clock(call) for _ in range(repeat)]
    except Exception as why:
        words = str(why).splitlines()
        return Time(why=f"{type(why).__name__}: {words[0] if words else ''}"[:120])
    return Time(statistics.median(seconds), min(seconds), max(seconds))


def _on_card(call: Callable[[], Any]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def _by_clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def launch_overhead(device: str, backend: str, arch: int, calls: int = 200, rounds: int = 15) -> dict[str, float]:
    """Microseconds of the host for one call on small inputs, without graphs: the least over rounds of calls."""
    x = torch.randn(1, 64, 2, 64, device=device).bfloat16()
    g = -torch.rand(1, 64, 2, device=device)
    o, state = torch.empty_like(x), torch.zeros(1, 2, 64, 64, device=device)
    y, h = x[:, :1].contiguous(), g[:, :1].contiguous()
    per_head, raw = torch.zeros(2, device=device), h.bfloat16()
    with torch.no_grad():
        from ..compat import fla, flash_attn, flash_qla, flashinfer

        where: Any = backend
        turned = x.transpose(1, 2)
        probes: dict[str, Callable[[], Any]] = {
            "attention_forward": lambda: flashdelta.attention_forward(x, x, x, causal=True, backend=where, arch=arch),
            "attention_forward, o given": lambda: flashdelta.attention_forward(
                x, x, x, causal=True, o=o, backend=where, arch=arch
            ),
            "gated_delta_forward": lambda: flashdelta.gated_delta_forward(x, x, x, g, g, backend=where, arch=arch),
            "gated_delta_forward, o given": lambda: flashdelta.gated_delta_forward(
                x, x, x, g, g, o=o, backend=where, arch=arch
            ),
            "gated_delta_forward, state in place": lambda: flashdelta.gated_delta_forward(
                x, x, x, g, g, initial_state=state, final_state=state, backend=where, arch=arch
            ),
            "gated_delta_forward, one token, state in place": lambda: flashdelta.gated_delta_forward(
                y, y, y, h, h, initial_state=state, final_state=state, backend=where, arch=arch
            ),
            "compat.flash_attn_func": lambda: flash_attn.flash_attn_func(x, x, x, causal=True),
            "compat.fla chunk, states": lambda: fla.chunk_gated_delta_rule(
                x, x, x, g, g, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
            ),
            "compat.fla fused_recurrent, one token": lambda: fla.fused_recurrent_gated_delta_rule(
                y, y, y, h, beta=h, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
            ),
            "compat.flash_qla chunk, states": lambda: flash_qla.chunk_gated_delta_rule(
                x, x, x, g, g, initial_state=state, output_final_state=True
            ),
            "compat.flashinfer decode, one token": lambda: flashinfer.gated_delta_rule_decode_pretranspose(
                y, y, y, state, per_head, raw, per_head, raw
            ),
            "torch SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(
                turned, turned, turned, is_causal=True
            ),
        }
        return {name: _host_microseconds(probe, device, calls, rounds) for name, probe in probes.items()}


def _host_microseconds(call: Callable[[], Any], device: str, calls: int, rounds: int) -> float:
    for _ in range(20):
        call()
    found = []
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls)
    return min(found) * 1e6
