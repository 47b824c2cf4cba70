#!/usr/bin/env python3
"""Prefill and decode of the 27B layer layout, through transformers' own Qwen3.5 code: flashdelta beside others.

Eight layers of hidden size 5120 (six of 16/48 gated delta heads of 128, two of 24/4 attention heads of 256), random
weights, bf16, batch 1. Compared: flashdelta; flash-linear-attention with SDPA, as torch chooses it (on an H200 that is
cuDNN's wgmma kernel, which an SM120 card has not) and held to FlashAttention-2; transformers' torch functions with SDPA
and with eager attention, at the first length alone. All share the layers' other parts, the torch convolution too.

    FLASHDELTA_ARCH=120 bench/python/qwen_prefill.py 8192 32768
"""

import argparse
import functools
import inspect
import statistics
import time

import torch
import transformers
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as layers

from flashdelta.integrations import transformers as fdelta

RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def make_model():
    config = Qwen3_5TextConfig(
        vocab_size=1024, hidden_size=5120, intermediate_size=17408, num_hidden_layers=8, num_attention_heads=24,
        num_key_value_heads=4, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=48,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return layers.Qwen3_5TextModel(config).eval()


def set_rules(functions):
    for name, function in zip(RULES, functions):
        setattr(layers, name, function)


def of_package():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    def rule(function):
        known = set(inspect.signature(function).parameters)
        return lambda q, k, v, **kw: function(
            q, k, v, **{name: x for name, x in kw.items() if name in known - {"kwargs"}}
        )

    return [rule(chunk_gated_delta_rule), rule(fused_recurrent_gated_delta_rule)]


def variants(torch_rules):
    def switch(functions, attention):
        fdelta.disable()
        set_rules(functions)
        return attention

    def ours():
        fdelta.disable()
        fdelta.enable()
        return fdelta.NAME

    yield "flashdelta", ours
    try:
        yield "flash-linear-attention + SDPA", functools.partial(switch, of_package(), "sdpa")
        yield "flash-linear-attention + SDPA (FlashAttention-2)", functools.partial(switch, of_package(), "sdpa")
    except ImportError as why:
        print(f"flash-linear-attention: {why}")
    yield "torch + SDPA", functools.partial(switch, torch_rules, "sdpa")
    yield "torch + eager", functools.partial(switch, torch_rules, "eager")


def milliseconds(call, runs):
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


def decode_milliseconds(model, ids, steps):
    cache = DynamicCache(config=model.config)
    model(ids, past_key_values=cache, use_cache=True)
    for _ in range(3):
        model(ids[:, :1], past_key_values=cache, use_cache=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        model(ids[:, :1], past_key_values=cache, use_cache=True)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", help="variants whose names hold this")
    parser.add_argument("--decode", type=int, default=16, help="timed tokens after each prefill; 0: none")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = make_model()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    torch_rules = [getattr(getattr(layers, name), "__wrapped__", getattr(layers, name)) for name in RULES]
    with torch.no_grad():
        for length in options.lengths:
            ids = torch.randint(0, 1024, (1, length), device="cuda")
            first = {}
            for name, use in variants(torch_rules):
                if options.only and options.only not in name and name != "flashdelta":
                    continue
                if name.startswith("torch") and length != options.lengths[0]:
                    continue
                model.set_attn_implementation(use())
                torch.backends.cuda.enable_cudnn_sdp("FlashAttention-2" not in name)
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
                torch.cuda.empty_cache()
    fdelta.disable()


if __name__ == "__main__":
    main()
