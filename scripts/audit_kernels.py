#!/usr/bin/env python3
"""Compiles every kernel of the table for sm_120 and holds the compiler's word against the plan.

    audit_kernels.py GENERATE [--arch 120] [--nvcc nvcc] [--jobs 2]

GENERATE is the built generator (build/src/cuda/generate). Prints one line a row. Exits 1 where a row marked tuned
spills, or where registers, shared memory or resident blocks are not what the row promises; 2 where nvcc is missing.
"""
import argparse
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "src"

# Of an SM with compute capability 12.0, and of 9.0 for looking at the card that measurements are made on.
LIMITS = {
    "120": {"shared_sm": 102400, "shared_block": 101376, "threads": 1536},
    "90": {"shared_sm": 233472, "shared_block": 232448, "threads": 2048},
}
REGISTERS = 65536
RESERVED = 1024  # bytes of shared memory a resident block costs beyond its own


def resident_blocks(limits, shared, threads, registers):
    """Registers are handed out to warps in units of 8 a thread."""
    by_registers = REGISTERS // ((registers + 7) // 8 * 8 * threads)
    return min(limits["shared_sm"] // (shared + RESERVED), limits["threads"] // threads, by_registers)


def compile_row(nvcc, folder, arch, row):
    source = folder / f"{row['name']}.cu"
    command = [nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-lineinfo", "-cubin", f"-arch=sm_{arch}",
               "-Xptxas", "-v", f"-I{SOURCES}", str(source), "-o", str(source.with_suffix(".cubin"))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{row['name']} does not compile:\n{done.stderr}")
    numbers = {key: re.search(pattern, done.stderr) for key, pattern in
               {"registers": r"Used (\d+) registers", "spill": r"(\d+) bytes spill stores",
                "static": r"(\d+) bytes smem", "barriers": r"used (\d+) barriers"}.items()}
    return {key: int(match.group(1)) if match else 0 for key, match in numbers.items()}


def faults(row, found, limits):
    blocks = resident_blocks(limits, row["shared"] + found["static"], row["threads"], found["registers"])
    if row["tuned"] and found["spill"]:
        yield f"spills {found['spill']} bytes"
    if found["registers"] > row["ceiling"]:
        yield f"{found['registers']} registers, ceiling {row['ceiling']}"
    if found["static"]:
        yield f"{found['static']} bytes of static shared memory outside the plan"
    if row["shared"] > limits["shared_block"]:
        yield f"{row['shared']} bytes of shared memory, limit {limits['shared_block']}"
    if blocks < row["blocks"]:
        yield f"{blocks} resident blocks, planned {row['blocks']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generate")
    parser.add_argument("--arch", default="120", choices=sorted(LIMITS))
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    fetched = SOURCES.parent / ".nvcc" / "bin" / "nvcc"
    nvcc = shutil.which(fetched) or shutil.which(options.nvcc) or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        print("audit: nvcc not found", file=sys.stderr)
        return 2
    limits = LIMITS[options.arch]
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        listing = subprocess.run([options.generate, name], check=True, capture_output=True, text=True).stdout
        rows = []
        for line in listing.splitlines():
            fields = line.split("\t")
            keys = ("shared", "threads", "blocks", "ceiling", "tuned")
            rows.append({"name": fields[0], **dict(zip(keys, map(int, fields[1:])))})
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda row: compile_row(nvcc, folder, options.arch, row), rows))
    print(f"{'row':40} {'registers':>9} {'spill':>6} {'shared':>7} {'threads':>7} {'blocks':>6}  sm_{options.arch}")
    for row, found in zip(rows, results):
        blocks = resident_blocks(limits, row["shared"] + found["static"], row["threads"], found["registers"])
        problems = list(faults(row, found, limits))
        print(f"{row['name']:40} {found['registers']:9} {found['spill']:6} {row['shared']:7} {row['threads']:7} "
              f"{blocks:6}  {'; '.join(problems) if problems else 'ok'}{'' if row['tuned'] else ' (not tuned)'}")
        bad += bool(problems)
    print(f"{len(rows)} rows, {bad} with faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
