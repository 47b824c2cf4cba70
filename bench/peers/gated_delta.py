#!/usr/bin/env python3
"""Times the gated delta rule forward beside its peers on an NVIDIA card, and measures errors.

    gated_delta.py --library build/src/libflashdelta.so --out results.jsonl [--cases bars|all|table|decode]

Inputs are those of FlashQLA's public benchmark: nine head layouts x nineteen length sets, K = V = 128, bf16, q and k
normalised, beta = sigmoid(normal), an initial and a final state in fp32, and gates by --gates: mixed
(logsigmoid(normal) / 16, and 0 in a quarter of the heads), decaying (none are 0) or zero. Each peer's calls are a CUDA
graph; the graphs of a case are replayed in turn and their medians written, one JSON line a case, so that a run can go
on where another ended: lines that --out has are not measured again. Errors are relative L2 against a float64 recurrence
on the card.

--cases table is what gated_delta_report.py makes its page of: seven cases with each of the three gates, in every way
that there is and with errors; then the other 164 with mixed gates, this library (SM120's limits, exact) beside peers.

Peers, each where it can be imported: this library under SM120's limits and under the card's own, with context
parallelism exact and, by --decay-start or in the table, off and decay_start; flash-linear-attention (with
FLA_DISABLE_BACKEND_DISPATCH=1, its own Triton kernels); FlashQLA, whose parts of a sequence are decided by default,
with the gates known, and by its rule of lengths; FlashInfer. Packages whose pins clash run in processes of their own:
--peers picks, --out gathers.

flash-linear-attention compiles and tunes its kernels for each head layout. --compile has the layouts' kernels compiled
side by side first; with TRITON_CACHE_DIR kept, a later run needs neither.
"""
import argparse
import ctypes
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

DIM = 128
HEADS = [(16, 48), (2, 8), (16, 32), (16, 64), (4, 16), (8, 32), (8, 24), (16, 16), (32, 32)]
LENGTHS = ["1x32768", "1x16384", "1x8192", "1x4096", "1x2048", "28672+4096", "24576+8192", "16384+16384", "8192+24576",
           "4096+28672", "12288+4096", "6144+2048", "4096+4096", "2048+6144", "1024+7168", "8192x4", "4096x8", "2048x4",
           "1024x8"]
# What the table has of the cases that are not in BARS.
BRIEF = ("sm120", "fla", "flash-qla", "flash-qla-gates", "flash-qla-rule", "flashinfer")
BARS = [((16, 48), "1x32768"), ((16, 48), "1x8192"), ((16, 48), "8192x4"), ((16, 32), "1x32768"),
        ((16, 64), "1x32768"), ((2, 8), "1x32768"), ((16, 48), "1024x8")]


def lengths_of(text):
    if " of " in text:
        count, length = text.split(" of ")
        return [int(length)] * int(count)
    if text.startswith("1x"):
        return [int(text[2:])]
    if "x" in text:
        length, count = text.split("x")
        return [int(length)] * int(count)
    return [int(part) for part in text.split("+")]


# ---- The library, through its C ABI ----

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5)]


class Execution(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", ctypes.c_int32), ("device", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("arch", ctypes.c_int32), ("num_threads", ctypes.c_int32),
                ("progress", ctypes.c_void_p), ("progress_user", ctypes.c_void_p)]


TENSORS = ["q", "k", "v", "g", "beta", "A_log", "dt_bias", "a", "b", "o", "initial_state", "final_state", "checkpoints",
           "cu_seqlens", "initial_state_indices", "final_state_indices", "token_state_indices", "num_accepted_tokens"]


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", ctypes.c_size_t)] + [(name, Tensor) for name in TENSORS] +
                [("max_seqlen", ctypes.c_int64), ("host_cu_seqlens", ctypes.c_void_p), ("scale", ctypes.c_double),
                 ("beta_scale", ctypes.c_double), ("decay_threshold", ctypes.c_double),
                 ("checkpoint_every", ctypes.c_int64), ("chunk", ctypes.c_int32), ("qk_l2norm", ctypes.c_int32),
                 ("state_layout", ctypes.c_int32), ("context_parallel", ctypes.c_int32)])


DTYPES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3, torch.int32: 4, torch.int64: 5}
CUDA, OFF, EXACT, DECAY_START = 2, 0, 1, 2


def view(t):
    pad = [0] * (5 - t.dim())
    return Tensor(t.data_ptr(), DTYPES[t.dtype], t.dim(), (ctypes.c_int64 * 5)(*t.shape, *pad),
                  (ctypes.c_int64 * 5)(*t.stride(), *pad))


class Flashdelta:
    """arch 0: the card's own limits; 120: SM120's."""

    def __init__(self, path, arch, parallel):
        self.lib = ctypes.CDLL(path)
        self.lib.flashdelta_last_error.restype = ctypes.c_char_p
        self.arch, self.parallel = arch, parallel

    def call(self, x):
        args = Args()
        self.lib.flashdelta_gated_delta_forward_init(ctypes.byref(args))
        o, final = torch.full_like(x["v"], float("nan")), torch.full_like(x["state"], float("nan"))
        tensors = {"o": o, "final_state": final, "initial_state": x["state"],
                   **{name: x[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens")}}
        for name, tensor in tensors.items():
            setattr(args, name, view(tensor))
        args.max_seqlen = max(x["lengths"])
        host = (ctypes.c_int64 * len(x["offsets"]))(*x["offsets"])
        args.host_cu_seqlens = ctypes.cast(host, ctypes.c_void_p)
        args.context_parallel = self.parallel
        execution = Execution(ctypes.sizeof(Execution), CUDA, 0, None, self.arch, 0, None, None)
        size = ctypes.c_size_t()
        self.check(self.lib.flashdelta_gated_delta_forward_workspace(ctypes.byref(args), ctypes.byref(execution),
                                                                     ctypes.byref(size)))
        workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device="cuda")

        def run(keep=(tensors, host, workspace)):
            execution.stream = torch.cuda.current_stream().cuda_stream
            self.check(self.lib.flashdelta_gated_delta_forward(ctypes.byref(args), ctypes.byref(execution),
                                                               ctypes.c_void_p(workspace.data_ptr()), size))
            return o, final
        return run

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.flashdelta_last_error().decode())


# ---- Peers ----

def fla_call(x):
    """Metadata of the chunks is made once, as FLA's users under CUDA graphs do."""
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd
    from fla.ops.utils.index import prepare_chunk_indices
    cu = x["cu_seqlens"].long()
    indices = prepare_chunk_indices(cu, 64)

    def run():
        out = chunk_gated_delta_rule_fwd(x["q"], x["k"], x["v"], x["g"], x["beta"], scale=DIM ** -0.5,
                                         initial_state=x["state"], output_final_state=True, cu_seqlens=cu,
                                         chunk_indices=indices)
        return out[1], out[3]
    return run


def compile_fla(heads):
    """Compiles what fla_call would choose from for a head layout, and runs none of it."""
    from triton.runtime.autotuner import Autotuner

    def compile_all(self, *args, **kwargs):
        for config in self.configs:
            self.fn.run(*args, **{**kwargs, **config.all_kwargs(), "warmup": True})

    Autotuner.run = compile_all
    fla_call(make_inputs(heads, [128, 64], "mixed"))()


def compile_side_by_side(layouts):
    """A process a layout, since Triton compiles under Python's lock."""
    begin = time.monotonic()
    command = [sys.executable, __file__, "--library", "", "--out", os.devnull, "--compile-only"]
    running = [subprocess.Popen([*command, f"{hk}/{hv}"]) for hk, hv in layouts]
    failed = sum(process.wait() != 0 for process in running)
    print(f"compiled for {len(layouts)} layouts, {failed} failed: {time.monotonic() - begin:.0f} s", flush=True)


def fla_recurrent_call(x):
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
    cu = x["cu_seqlens"].long()
    return lambda: fused_recurrent_gated_delta_rule(x["q"], x["k"], x["v"], x["g"], beta=x["beta"], scale=DIM ** -0.5,
                                                    initial_state=x["state"], output_final_state=True, cu_seqlens=cu)


def flash_qla_call(x, **options):
    from flash_qla import chunk_gated_delta_rule_fwd

    def run():
        out = chunk_gated_delta_rule_fwd(x["q"], x["k"], x["v"], x["g"], x["beta"], scale=DIM ** -0.5,
                                         initial_state=x["state"], output_final_state=True, output_h=False,
                                         cu_seqlens=x["cu_seqlens"], auto_cp=True, **options)
        return out[2], out[4]
    return run


def flash_qla_gates_call(x):
    """By itself FlashQLA decides on parts as if no gate decayed; here it has read the gates, once."""
    from flash_qla.ops.gated_delta_rule.chunk import CHUNK_SIZE, build_cp_context
    return flash_qla_call(x, cp_context=build_cp_context(x["cu_seqlens"], enable_intra=True, num_v_heads=x["v"].shape[2],
                                                         chunk_size=CHUNK_SIZE, g=x["g"]))


def flash_qla_rule_call(x):
    """With the rule by lengths alone that its earlier releases had, and this one has for cards that it does not know."""
    from flash_qla.ops.gated_delta_rule.chunk import CHUNK_SIZE
    from flash_qla.ops.gated_delta_rule.chunk.cp import context
    chunks = [-(-length // CHUNK_SIZE) for length in x["lengths"]]
    divide, longest = context._heuristic_intra_cp(chunks, x["v"].shape[2], False)
    parts = (context._build_intra_cp_context(x["cu_seqlens"], CHUNK_SIZE, chunks, longest) if divide else
             context.FlashQLACPContext(cu_seqlens=x["cu_seqlens"]))
    return flash_qla_call(x, cp_context=parts)


def flashinfer_call(x):
    from flashinfer.gdn_prefill import chunk_gated_delta_rule
    alpha, state = x["g"][0].exp(), x["state"].transpose(2, 3).contiguous()  # it takes exp(g) and [V, K]
    cu = x["cu_seqlens"].long()  # what its Hopper kernel reads, so that no call converts it
    return lambda: chunk_gated_delta_rule(q=x["q"][0], k=x["k"][0], v=x["v"][0], g=alpha, beta=x["beta"][0],
                                          scale=DIM ** -0.5, initial_state=state, cu_seqlens=cu,
                                          output_final_state=True)


def peers_of(options):
    known = {"sm120": lambda: Flashdelta(options.library, 120, EXACT).call,
             "native": lambda: Flashdelta(options.library, 0, EXACT).call}
    if options.decay_start or options.cases == "table":
        known["sm120-off"] = lambda: Flashdelta(options.library, 120, OFF).call
        known["sm120-decay"] = lambda: Flashdelta(options.library, 120, DECAY_START).call
        known["native-decay"] = lambda: Flashdelta(options.library, 0, DECAY_START).call
    known["fla"] = lambda: fla_recurrent_call if options.cases == "decode" else fla_call
    if options.cases != "decode":
        known["flash-qla"], known["flash-qla-gates"] = lambda: flash_qla_call, lambda: flash_qla_gates_call
        known["flash-qla-rule"], known["flashinfer"] = lambda: flash_qla_rule_call, lambda: flashinfer_call
    wanted = options.peers.split(",") if options.peers else list(known)
    return {name: known[name]() for name in wanted if name in known}


# ---- Inputs and the answer ----

def make_inputs(heads, lengths, gates, seed=1):
    torch.manual_seed(seed)
    heads_k, heads_v = heads
    tokens = sum(lengths)
    unit = lambda: F.normalize(torch.randn(1, tokens, heads_k, DIM, device="cuda"), dim=-1).bfloat16()  # noqa: E731
    x = {"lengths": lengths, "offsets": [0]}
    for length in lengths:
        x["offsets"].append(x["offsets"][-1] + length)
    x["cu_seqlens"] = torch.tensor(x["offsets"], dtype=torch.int32, device="cuda")
    x["q"], x["k"] = unit(), unit()
    x["v"] = torch.randn(1, tokens, heads_v, DIM, device="cuda", dtype=torch.bfloat16)
    x["g"] = F.logsigmoid(torch.randn(1, tokens, heads_v, device="cuda")) / 16
    if gates == "zero":
        x["g"].zero_()
    elif gates == "mixed":
        x["g"][:, :, torch.randperm(heads_v, device="cuda")[:heads_v // 4]] = 0
    x["beta"] = torch.randn(1, tokens, heads_v, device="cuda").sigmoid()
    x["state"] = torch.randn(len(lengths), heads_v, DIM, DIM, device="cuda")
    return x


@triton.jit
def recurrence_kernel(q, k, v, g, beta, state, cu_seqlens, o, final, scale, heads_k, heads_v, D: tl.constexpr,
                      B: tl.constexpr):
    n, h, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    hk = h // (heads_v // heads_k)
    keys, values = tl.arange(0, D), block * B + tl.arange(0, B)
    at = (n * heads_v + h).to(tl.int64) * D * D + keys[:, None] * D + values[None, :]
    s = tl.load(state + at).to(tl.float64)
    for t in range(tl.load(cu_seqlens + n), tl.load(cu_seqlens + n + 1)):
        row, key_row = (t.to(tl.int64) * heads_v + h), (t.to(tl.int64) * heads_k + hk)
        kt = tl.load(k + key_row * D + keys).to(tl.float64)
        qt = tl.load(q + key_row * D + keys).to(tl.float64)
        s *= tl.exp(tl.load(g + row).to(tl.float64))
        vt = tl.load(v + row * D + values).to(tl.float64)
        u = tl.load(beta + row).to(tl.float64) * (vt - tl.sum(s * kt[:, None], 0))
        s += kt[:, None] * u[None, :]
        tl.store(o + row * D + values, (scale * tl.sum(s * qt[:, None], 0)).to(tl.float32))
    tl.store(final + at, s.to(tl.float32))


def recurrence(x):
    heads_k, heads_v, block = x["q"].shape[2], x["v"].shape[2], 8
    o, final = torch.empty(x["v"].shape, device="cuda"), torch.empty_like(x["state"])
    recurrence_kernel[(len(x["lengths"]), heads_v, DIM // block)](
        x["q"], x["k"], x["v"], x["g"], x["beta"], x["state"], x["cu_seqlens"], o, final, DIM ** -0.5, heads_k, heads_v,
        D=DIM, B=block, num_warps=4)
    return o, final


def relative_error(got, want):
    difference = (got.float().reshape(-1) - want.reshape(-1)).double()
    return (difference.norm() / want.double().norm()).item()


# ---- Timing ----

def capture(run):
    """A graph of so many calls that its launch does not count, how many they are, and what they return. The graph goes
    with what it calls, whose buffers it holds by address alone."""
    torch.cuda.synchronize()  # the inputs are made on another stream than the one that captures
    stream = torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):  # what is lazy happens before the capture
        for _ in range(3):
            begin.record()
            out = run()
            end.record()
    torch.cuda.synchronize()
    calls = max(1, min(10, round(1 / max(begin.elapsed_time(end), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            out = run()
    return (graph, calls, run), out


def medians(graphs, runs):
    """The graphs in turn, so that the clock's and the neighbours' moods meet all of them."""
    times = {name: [] for name in graphs}
    for _ in range(runs):
        for name, (graph, _, _) in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()  # its own data is what the cache holds
            begin.record()
            graph.replay()
            end.record()
            times[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) / graphs[name][1]
            for name, pairs in times.items()}


def measure(case, peers, options):
    heads, lengths, gates = case
    errors = options.errors
    if options.cases == "table":
        errors = (heads, lengths) in BARS
        peers = {name: call for name, call in peers.items() if errors or name in BRIEF}
    x = make_inputs(heads, lengths_of(lengths), gates)
    line = {"heads": f"{heads[0]}/{heads[1]}", "lengths": lengths, "gates": gates, "ms": {}, "error": {}, "not_run": {}}
    graphs, outputs = {}, {}
    for name, call in peers.items():
        try:
            graphs[name], outputs[name] = capture(call(x))
        except Exception as fault:  # noqa: BLE001: a peer that fails is a result
            line["not_run"][name] = (str(fault).strip().splitlines() or [repr(fault)])[0][:200]
            torch.cuda.synchronize()  # raises after a fault of the card, which would spoil all later cases
    line["ms"] = medians(graphs, options.runs)
    if errors:
        want = recurrence(x)
        for name, out in outputs.items():
            state = out[1].transpose(2, 3) if name == "flashinfer" else out[1]
            line["error"][name] = [relative_error(out[0], want[0]), relative_error(state, want[1])]
    return line


def facts():
    """What the numbers hold for."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    packages = {name: version(name) for name in ("fla-core", "flash-qla", "tilelang", "flashinfer-python")}
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "device": torch.cuda.get_device_name(),
            "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
            "torch": torch.__version__, "triton": triton.__version__,
            **{name: found for name, found in packages.items() if found}, "command": " ".join(sys.argv[1:])}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def copy_rate():
    """TB/s, read and written, of the faster of a device copy and a kernel that copies, 1 GiB of random numbers."""
    a = torch.empty(1 << 28, device="cuda").normal_()
    b = torch.empty_like(a)
    ways = {"copy": lambda: b.copy_(a), "kernel": lambda: torch.add(a, 0.0, out=b)}
    times = medians({name: capture(way)[0] for name, way in ways.items()}, 9)
    return 2 * a.numel() * 4 / min(times.values()) * 1e-9


def decode_cases():
    return [((16, 48), f"{sequences} of {tokens}", "mixed") for sequences in (64, 256, 8, 1) for tokens in (1, 4, 16)]


def cases_of(options):
    if options.cases == "decode":
        return decode_cases()
    others = [(heads, lengths) for heads in HEADS for lengths in LENGTHS if (heads, lengths) not in BARS]
    if options.cases == "table":
        bars = [(*pair, gates) for pair in BARS for gates in ("mixed", "decaying", "zero")]
        return bars + [(*pair, "mixed") for pair in others]
    pairs = BARS if options.cases == "bars" else BARS + others
    return [(*pair, gates) for gates in options.gates.split(",") for pair in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libflashdelta.so")
    parser.add_argument("--out", required=True, help="JSON lines, added to")
    parser.add_argument("--cases", choices=["bars", "all", "table", "decode"], default="bars")
    parser.add_argument("--gates", default="mixed", help="of mixed, decaying, zero, with commas")
    parser.add_argument("--peers", default="", help="names with commas; all that can run by default")
    parser.add_argument("--decay-start", action="store_true", help="this library's off and decay_start too")
    parser.add_argument("--compile", action="store_true", help="compile flash-linear-attention's kernels first")
    parser.add_argument("--compile-only", metavar="HK/HV", help=argparse.SUPPRESS)
    parser.add_argument("--errors", action="store_true", help="against the float64 recurrence")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no case is begun")
    options = parser.parse_args()
    if options.compile_only:
        return compile_fla(tuple(map(int, options.compile_only.split("/"))))
    begin = time.monotonic()
    done = set()
    if os.path.exists(options.out):
        with open(options.out, encoding="utf-8") as file:
            done = {(x["heads"], x["lengths"], x["gates"]) for x in map(json.loads, file) if "heads" in x}
    cases = [case for case in cases_of(options) if (f"{case[0][0]}/{case[0][1]}", case[1], case[2]) not in done]
    peers = peers_of(options)
    if options.compile and "fla" in peers:
        compile_side_by_side(dict.fromkeys(heads for heads, _, _ in cases))
    left = 0
    with open(options.out, "a", encoding="utf-8") as file:
        def write(line):
            print(json.dumps(line), file=file, flush=True)
        write({**facts(), "copy_tb_per_s": copy_rate()})
        for case in cases:
            if time.monotonic() - begin > options.budget:
                left += 1
                continue
            line = measure(case, peers, options)
            write(line)
            print(line["heads"], line["lengths"], line["gates"], {n: round(t, 4) for n, t in line["ms"].items()},
                  line["error"], line["not_run"], flush=True)
    print(f"{left} cases left; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
