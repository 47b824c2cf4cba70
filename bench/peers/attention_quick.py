#!/usr/bin/env python3
"""Times FlashAttention-2 (torch's flash backend) on the shapes of `attention_check time`: TFLOP/s, medians."""
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# B, HQ, HK, T, D, causal
SHAPES = [(4, 8, 8, 8192, 128, False), (4, 16, 16, 4096, 128, False), (4, 16, 16, 4096, 128, True),
          (1, 16, 16, 16384, 128, True), (4, 32, 32, 4096, 64, False), (4, 32, 32, 4096, 64, True),
          (2, 16, 16, 4096, 256, False), (2, 16, 16, 4096, 256, True), (4, 16, 2, 4096, 256, True)]


def time_ms(call, runs):
    for _ in range(3):
        call()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, flash backend")
    for b, hq, hk, t, d, causal in SHAPES:
        q, k, v = (torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for h in (hq, hk, hk))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            ms = time_ms(lambda: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=hq != hk), runs)
        flop = 4 * b * hq * t * t * d / (2 if causal else 1)
        print(f"{b} {hq}/{hk} {t} {d} {'causal' if causal else 'dense':6} {flop / ms * 1e-9:8.1f}", flush=True)


if __name__ == "__main__":
    main()
