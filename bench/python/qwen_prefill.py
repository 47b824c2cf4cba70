#!/usr/bin/env python3
"""Prefill and decode of the 27B layer layout, through transformers' own Qwen3.5 code: flashdelta beside others.

Eight layers of hidden size 5120 (six of 16/48 gated delta heads of 128, two of 24/4 attention heads of 256), random
weights, bf16, batch 1. Compared: flashdelta; flash-linear-attention with SDPA, as torch chooses it (on an H200 that is
cuDNN's wgmma kernel, which an SM120 card has not) and held to FlashAttention-2; transformers' torch functions with SDPA
and with eager attention, at the first length alone. variants.py says what each of them shares with the others.

    FLASHDELTA_ARCH=120 bench/python/qwen_prefill.py 8192 32768
"""

import argparse
import json
import re
import time
from pathlib import Path

import torch
import transformers
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as layers
from variants import Variants, compile_side_by_side, decode_milliseconds, milliseconds

from flashdelta.integrations import transformers as fdelta

KINDS = {  # of a kernel's name, in this order
    "our attention": "flashdelta_attention",
    "our gated delta": "flashdelta_gated",
    "our layers": "_convolve|_norm_and_gate",
    "attention": "cudnn.*(sdpa|flash|mha)|fmha|flash_fwd|pytorch_flash",
    "matrix products": "nvjet|gemm|cutlass|cublas|xmma_",
    "gated delta": "chunk_|recompute_w|solve_|l2norm",
    "convolution": "conv_depthwise|convolve",
    "copies": "copy|transpose|CatArray|Memcpy",
    "reductions": "reduce",
    "elementwise": "elementwise",
}


def make_model():
    config = Qwen3_5TextConfig(
        vocab_size=1024, hidden_size=5120, intermediate_size=17408, num_hidden_layers=8, num_attention_heads=24,
        num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return layers.Qwen3_5TextModel(config).eval()


def print_kernels(call, rows):
    """Where the card's time goes, by kind of kernel, and the longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as made:
        call()
        torch.cuda.synchronize()
    events = [e for e in made.key_averages() if e.self_device_time_total > 0 and e.device_type.name == "CUDA"]
    kinds = {}
    for event in events:
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, event.key)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + event.self_device_time_total * 1e-3
    shares = ", ".join(f"{kind} {ms:.1f}" for kind, ms in sorted(kinds.items(), key=lambda pair: -pair[1]))
    print(f"    ms: all {sum(kinds.values()):.1f}; {shares}")
    for event in sorted(events, key=lambda e: -e.self_device_time_total)[:rows]:
        print(f"    {event.self_device_time_total * 1e-3:9.2f} ms {event.count:4} x {event.key[:130]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="variants whose names match this, and flashdelta")
    parser.add_argument("--decode", type=int, default=16, help="timed tokens after each prefill; 0: none")
    parser.add_argument("--profile", type=int, help="print the time by kind of kernel, and so many kernels")
    parser.add_argument("--out", type=Path, help="write the rows here, a line each")
    options = parser.parse_args()
    lines = []
    torch.manual_seed(0)
    model, variants = make_model(), Variants(layers)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    if any("flash-linear" in name for name in variants.all):
        compile_side_by_side()
    with torch.no_grad():
        for length in options.lengths:
            ids = torch.randint(0, 1024, (1, length), device="cuda")
            first = {}
            for name in variants.all:
                if name != "flashdelta" and not re.search(options.only, name):
                    continue
                if name.startswith("torch") and length != options.lengths[0]:
                    continue
                variants.use(name, model)
                start = time.perf_counter()
                out = model(ids, use_cache=False).last_hidden_state.float()
                warm = time.perf_counter() - start
                ms = milliseconds(lambda: model(ids, use_cache=False), options.runs)
                first.setdefault("ms", ms), first.setdefault("out", out)
                differs = ((out - first["out"]).norm() / first["out"].norm()).item()
                token = decode_milliseconds(model, ids, options.decode) if options.decode else 0.0
                first.setdefault("token", token)
                print(
                    f"T {length:6}  {name:48} prefill {ms:8.2f} ms ({ms / first['ms']:.3f} of flashdelta's)  "
                    f"token {token:7.3f} ms ({token / first['token'] if token else 0:.3f})  "
                    f"differs {differs:.2e}  first call {warm:.1f} s",
                    flush=True,
                )
                lines.append(json.dumps({"tokens": length, "by": name, "prefill ms": ms, "token ms": token or None}))
                if options.out:
                    options.out.write_text("\n".join(lines) + "\n")
                if options.profile is not None:
                    print_kernels(lambda: model(ids, use_cache=False), options.profile)
                torch.cuda.empty_cache()
    fdelta.disable()


if __name__ == "__main__":
    main()
