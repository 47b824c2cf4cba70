"""python -m flashdelta.bench: times the case list and the peers' shapes, after a warm-up, on random inputs."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit("flashdelta.bench: expected torch to be installed (pip install torch); the library itself needs none")

import flashdelta

from . import peers, recorded, report, timing, workloads


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flashdelta.bench", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is a card")
    parser.add_argument("--arch", type=int, default=0, help="plan under another card's limits, as 120")
    parser.add_argument("--case", help="cases of the list whose names match this pattern (default: the timed ones)")
    parser.add_argument("--only", choices=["cases", "peers", "overhead"], help="this part alone")
    parser.add_argument("--scale", type=int, help="divide the peers' lengths by this (default: 1, on a CPU 16)")
    parser.add_argument("--repeat", type=int, default=11, help="timed runs (default 11)")
    parser.add_argument("--warmup", type=int, default=3, help="runs before them (default 3)")
    parser.add_argument("--html", type=Path, help="write the page here")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--recorded", type=Path, help="time nothing: make the page of results in this folder")
    return parser.parse_args(arguments)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} threads" if names else platform.machine()


def facts(device: str, arch: int) -> dict[str, str]:
    found = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "flashdelta": flashdelta.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "profile": f"sm{arch}" if arch else "the device's own",
        "versions": ", ".join(f"{name} {version}" for name, version in peers.versions().items()),
        "command": "python -m flashdelta.bench " + " ".join(sys.argv[1:]),
    }
    if device == "cuda":
        found["CUDA"] = str(torch.version.cuda)
    else:
        found["threads"] = str(torch.get_num_threads())
    return found


def time_workload(work: workloads.Workload, device: str, options: argparse.Namespace) -> report.Row:
    row = report.Row(work.name, work.operation, work.shape, work.flops)
    backend = "cuda" if device == "cuda" else "cpu"
    calls = {report.OURS: work.run(backend, options.arch), **peers.peers(work)}
    for who, call in calls.items():
        row.times[who] = timing.measure(call, device, options.repeat, options.warmup)
    return row


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.recorded:
        page = report.html(recorded.read(options.recorded))
        return 0 if (options.html or Path("report.html")).write_text(page) else 1
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    why = flashdelta.backends()["cuda" if device == "cuda" else "cpu"]
    if why:
        print(f"flashdelta.bench: {why}", file=sys.stderr)
        return 1
    scale = options.scale or (1 if device == "cuda" else 16)
    found = report.Report("flashdelta", facts(device, options.arch), [], {})
    for name, value in found.facts.items():
        print(f"{name}: {value}")
    with torch.no_grad():
        lists = []
        if options.only in (None, "cases"):
            lists.append(workloads.case_list(options.case, device))
        if options.only in (None, "peers") and options.case is None:
            lists.append(workloads.peer_shapes(device, scale))
        for works in lists:
            for work in works:
                found.rows.append(time_workload(work, device, options))
                print(report.table_line(found.rows[-1], 40), flush=True)
        if options.only in (None, "overhead") and options.case is None:
            backend = "cuda" if device == "cuda" else "cpu"
            found.overhead = timing.launch_overhead(device, backend, options.arch)
            for name, microseconds in found.overhead.items():
                print(f"{name}: {microseconds:.1f} us of the host a call")
    if options.case is not None and not found.rows:
        print(f"--case: expected a pattern that matches a case's name, got {options.case!r}", file=sys.stderr)
        return 2
    if options.html:
        options.html.write_text(report.html(found))
    if options.json:
        options.json.write_text(json.dumps(asdict(found), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
