#!/usr/bin/env python3
"""Attention forward beside its peers: flashdelta through its C ABI, FlashAttention-2 (torch's flash backend) and cuDNN,
in one process on the same tensors, their launches interleaved in an order drawn anew for each run, medians.

    attention.py LIBRARY RESULTS.json [--runs 15] [--only TEXT]   time what RESULTS.json lacks, writing it case by case
    attention.py --report RESULTS.json                            the results as Markdown
    attention.py --plot RESULTS.json OUT.dat                      ratios and rates, for attention.gnuplot

flashdelta runs twice: held to SM120's limits ("sm120") and under the card's own ("native"). Decode cases hold at least
1 GiB of keys and values, and copies of them take turns, so that no cache serves a run with what the last one read.
"""
import argparse
import ctypes
import json
import math
import os
import random
import statistics

# name, B, HQ, HK, TQ, TK, D, causal
NINE = [(4, 8, 8, 8192, 128, False), (4, 16, 16, 4096, 128, False), (4, 16, 16, 4096, 128, True),
        (1, 16, 16, 16384, 128, True), (4, 32, 32, 4096, 64, False), (4, 32, 32, 4096, 64, True),
        (2, 16, 16, 4096, 256, False), (2, 16, 16, 4096, 256, True), (4, 16, 2, 4096, 256, True)]
QWEN = [(1, hq, hk, t, 256, True) for hq, hk in ((8, 2), (16, 4), (24, 4), (32, 2)) for t in (2048, 8192, 32768)]
DECODE = [(32, hq, hk, rows, t, d) for hq, hk, d in ((24, 4, 256), (32, 8, 128)) for rows in (1, 16)
          for t in (8192, 32768)]
MMA_TFLOPS = 644  # mma.sync m16n8k16 on an H200 as measured: src/core/profiles.cpp


def cases():
    for b, hq, hk, t, d, causal in NINE + QWEN:
        group = "nine" if (b, hq, hk, t, d, causal) in NINE else "qwen"
        yield {"group": group, "b": b, "hq": hq, "hk": hk, "tq": t, "tk": t, "d": d, "causal": causal}
    for b, hq, hk, rows, t, d in DECODE:
        yield {"group": "decode", "b": b, "hq": hq, "hk": hk, "tq": rows, "tk": t, "d": d, "causal": rows > 1}


def name_of(c):
    heads = f"{c['hq']}/{c['hk']}" if c["hq"] != c["hk"] else str(c["hq"])
    rows = f"{c['tq']} rows x " if c["group"] == "decode" else ""
    return f"{c['b']} x {heads}, {rows}{c['tk']}, D{c['d']}, {'causal' if c['causal'] else 'dense'}"


# ---- The C ABI ----

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5)]


class Arguments(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (n, Tensor) for n in ("q", "k", "v", "o", "lse", "sink", "cu_seqlens_q", "cu_seqlens_k", "seqused_k",
                              "cache_batch_idx", "page_table")
    ] + [("max_seqlen_q", ctypes.c_int64), ("max_seqlen_k", ctypes.c_int64), ("host_cu_seqlens_q", ctypes.c_void_p),
         ("host_cu_seqlens_k", ctypes.c_void_p), ("scale", ctypes.c_double), ("softcap", ctypes.c_double),
         ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64), ("causal", ctypes.c_int32),
         ("reserved", ctypes.c_int32)]


class Execution(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int32), ("device", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("arch", ctypes.c_int32), ("num_threads", ctypes.c_int32),
                ("progress", ctypes.c_void_p), ("progress_user", ctypes.c_void_p)]


CUDA, BF16 = 2, 1  # FLASHDELTA_BACKEND_CUDA, FLASHDELTA_BF16


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.flashdelta_last_error.restype = ctypes.c_char_p

    def call(self, function, *arguments):
        if getattr(self.c, function)(*arguments) != 0:
            raise RuntimeError(f"{function}: {self.c.flashdelta_last_error().decode()}")

    def attention(self, torch, q, k, v, o, causal, arch):
        """A function that launches the call; its descriptors and workspace are made here, once."""
        def view(x):
            t = Tensor(x.data_ptr(), BF16, x.dim())
            t.shape[:x.dim()], t.strides[:x.dim()] = x.shape, x.stride()
            return t
        a = Arguments()
        self.c.flashdelta_attention_forward_init(ctypes.byref(a))
        a.q, a.k, a.v, a.o, a.causal = view(q), view(k), view(v), view(o), int(causal)
        e = Execution(ctypes.sizeof(Execution), CUDA, 0, torch.cuda.current_stream().cuda_stream, arch, 0)
        size = ctypes.c_size_t()
        self.call("flashdelta_attention_forward_workspace", ctypes.byref(a), ctypes.byref(e), ctypes.byref(size))
        workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device="cuda")
        pointer = ctypes.c_void_p(workspace.data_ptr())
        return lambda held=workspace: self.call("flashdelta_attention_forward", ctypes.byref(a), ctypes.byref(e),
                                                pointer, size)


# ---- One case ----

def median_ms(torch, calls, runs):
    """calls: name -> functions that take turns."""
    times = {name: [] for name in calls}
    for name, functions in calls.items():
        for function in (functions * 3)[:3]:
            function()
    order = random.Random(1)
    for run in range(runs):
        # A kernel just after one that draws much power runs at a lower clock: each follows each.
        for name, functions in order.sample(list(calls.items()), len(calls)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            functions[run % len(functions)]()
            end.record()
            times[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) for name, pairs in times.items()}


def reference_rows(torch, c, q, k, v):
    """float64 o of a few heads and query rows, and which they are."""
    picks = []
    rows = sorted({0, c["tq"] // 3, c["tq"] // 2, c["tq"] - 1})
    for b, h in {(0, 0), (c["b"] - 1, c["hq"] - 1), (c["b"] // 2, c["hq"] // 3)}:
        key = k[b, :, h // (c["hq"] // c["hk"])].double()
        value = v[b, :, h // (c["hq"] // c["hk"])].double()
        s = q[b, rows, h].double() @ key.T * c["d"]**-0.5
        if c["causal"]:
            position = torch.tensor(rows, device="cuda")[:, None] + c["tk"] - c["tq"]
            s.masked_fill_(torch.arange(c["tk"], device="cuda")[None] > position, -math.inf)
        picks.append((b, rows, h, s.softmax(-1) @ value))
    return picks


def error_of(picks, o):
    off = sum(((o[b, rows, h].double() - want)**2).sum().item() for b, rows, h, want in picks)
    return math.sqrt(off / sum((want**2).sum().item() for _, _, _, want in picks))


def run_case(torch, library, c, runs):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    torch.manual_seed(1)

    def normal(t, heads):
        return torch.randn(c["b"], t, heads, c["d"], device="cuda", dtype=torch.bfloat16)
    bytes_kv = 4 * c["b"] * c["tk"] * c["hk"] * c["d"]
    turns = 2 if c["group"] == "decode" and bytes_kv < 3 << 30 else 1
    q, o = normal(c["tq"], c["hq"]), normal(c["tq"], c["hq"])
    keys = [(normal(c["tk"], c["hk"]), normal(c["tk"], c["hk"])) for _ in range(turns)]
    picks = reference_rows(torch, c, q, *keys[0])
    calls, errors = {}, {}
    for profile, arch in (("sm120", 120), ("native", 0)):
        calls[profile] = [library.attention(torch, q, k, v, o, c["causal"], arch) for k, v in keys]
        o.fill_(math.nan)
        calls[profile][0]()
        errors[profile] = error_of(picks, o)
    by_head = [tuple(x.transpose(1, 2) for x in (q, k, v)) for k, v in keys]
    # torch's is_causal is top-left: with fewer queries than keys its peers run dense, which is a few keys more.
    causal = c["causal"] and c["tq"] == c["tk"]
    for peer, backend in (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        def call(tensors, backend=backend):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal,
                                                                        enable_gqa=c["hq"] != c["hk"])
        try:
            got = call(by_head[0]).transpose(1, 2)
            torch.cuda.synchronize()
        except RuntimeError:
            continue
        if causal == c["causal"]:
            errors[peer] = error_of(picks, got)
        calls[peer] = [lambda t=t, call=call: call(t) for t in by_head]
    ms = median_ms(torch, calls, runs)
    scores = c["tq"] * c["tk"] / (2 if causal else 1)
    return {**c, "runs": runs, "ms": ms, "error": errors, "tflop": 4e-12 * c["b"] * c["hq"] * scores * c["d"],
            "gb": 1e-9 * bytes_kv}


def copy_rate(torch):
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    return 2 * (1 << 30) / median_ms(torch, {"copy": [lambda: b.copy_(a)]}, 15)["copy"] * 1e-9


def measure(options):
    import torch
    library = Library(options.library)
    results = {"cases": {}}
    if os.path.exists(options.results):
        with open(options.results) as file:
            results = json.load(file)
    results["machine"] = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    results.setdefault("copy_tb_per_s", copy_rate(torch))
    for c in cases():
        name = name_of(c)
        if name in results["cases"] or options.only not in f"{c['group']} {name}":
            continue
        results["cases"][name] = run_case(torch, library, c, options.runs)
        with open(options.results + ".new", "w") as file:
            json.dump(results, file, indent=1)
        os.replace(options.results + ".new", options.results)
        print(name, {n: round(x, 4) for n, x in results["cases"][name]["ms"].items()}, flush=True)


# ---- The results in words and pictures ----

def geometric_mean(x):
    return math.exp(statistics.mean(map(math.log, x)))


def report(results):
    print(f"{results['machine']}; a copy moves {results['copy_tb_per_s']:.2f} TB/s.\n")
    for group in ("nine", "qwen"):
        rows = [(n, c) for n, c in results["cases"].items() if c["group"] == group]
        print("| B x heads, T, D | sm120 | native | FA2 | cuDNN | sm120 / FA2 | native / FA2 | of mma.sync | error / FA2's |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name, c in rows:
            rate = {n: c["tflop"] / x * 1e3 for n, x in c["ms"].items()}
            peer = [f"{rate[n]:.0f}" if n in rate else "-" for n in ("fa2", "cudnn")]
            print(f"| {name} | {rate['sm120']:.0f} | {rate['native']:.0f} | {peer[0]} | {peer[1]} | "
                  f"{rate['sm120'] / rate['fa2']:.2f} | {rate['native'] / rate['fa2']:.2f} | "
                  f"{rate['sm120'] / MMA_TFLOPS:.0%} | {c['error']['sm120'] / c['error']['fa2']:.2f} |")
        for profile in ("sm120", "native"):
            ratios = [c["ms"]["fa2"] / c["ms"][profile] for _, c in rows]
            if ratios:
                print(f"\n{profile}: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
        print()
    print("| decode | sm120 ms | TB/s | of the copy | native | FA2 ms | cuDNN ms | error |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, c in results["cases"].items():
        if c["group"] != "decode":
            continue
        share = {n: c["gb"] / x / results["copy_tb_per_s"] for n, x in c["ms"].items()}
        peer = [f"{c['ms'][n]:.3f}" if n in c["ms"] else "-" for n in ("fa2", "cudnn")]
        print(f"| {name} | {c['ms']['sm120']:.3f} | {c['gb'] / c['ms']['sm120']:.2f} | {share['sm120']:.0%} | "
              f"{share['native']:.0%} | {peer[0]} | {peer[1]} | {c['error']['sm120']:.1e} |")


def plot_data(results, path):
    with open(path, "w") as file:
        for group in ("nine", "qwen", "decode"):
            for name, c in results["cases"].items():
                if c["group"] != group:
                    continue
                if group == "decode":
                    numbers = [c["gb"] / c["ms"][n] / results["copy_tb_per_s"] for n in ("sm120", "native")]
                else:
                    numbers = [c["ms"]["fa2"] / c["ms"][n] for n in ("sm120", "native")]
                cudnn = c["ms"].get("cudnn")
                peer = "NaN" if cudnn is None or group == "decode" else f"{c['ms']['fa2'] / cudnn:.4f}"
                file.write(f'"{name}" {numbers[0]:.4f} {numbers[1]:.4f} {peer}\n')
            file.write("\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("results", nargs="?")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose group or name has this in it")
    parser.add_argument("--report", metavar="RESULTS")
    parser.add_argument("--plot", nargs=2, metavar=("RESULTS", "OUT"))
    options = parser.parse_args()
    if options.report or options.plot:
        with open(options.report or options.plot[0]) as file:
            results = json.load(file)
        report(results) if options.report else plot_data(results, options.plot[1])
    elif options.results:
        measure(options)
    else:
        parser.error("LIBRARY and RESULTS, or --report, or --plot")


if __name__ == "__main__":
    main()
