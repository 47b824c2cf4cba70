#!/usr/bin/env python3
"""Makes a page and a plot of gated_delta.py's lines, published numbers beside what has not run here.

    gated_delta_report.py FOLDER [RESULTS.jsonl ...]

Reads gated-delta-published.tsv in FOLDER (bench/results/h200), writes gated-delta-peers.md, gated-delta-peers.dat and
gated-delta-peers.gp there; `gnuplot gated-delta-peers.gp` in FOLDER draws gated-delta-peers.svg.
"""
import json
import math
import pathlib
import sys

PUBLISHED = ("flash_qla", "flashinfer", "fla")
OURS = ("sm120", "native", "sm120-decay", "native-decay")


def published(folder):
    table = {}
    for line in (folder / "gated-delta-published.tsv").read_text().splitlines():
        if line.startswith(("#", "heads")):
            continue
        heads_k, heads_v, lengths, *ms = line.split("\t")
        table[f"{heads_k}/{heads_v}", lengths] = dict(zip(PUBLISHED, map(float, ms)))
    return table


def read(paths):
    """Cases by (heads, lengths, gates), a later file's numbers over an earlier one's; and what the runs say of themselves."""
    cases, runs = {}, []
    for path in paths:
        for line in map(json.loads, pathlib.Path(path).read_text().splitlines()):
            if "heads" not in line:
                runs.append(line)
                continue
            case = cases.setdefault((line["heads"], line["lengths"], line["gates"]), {"ms": {}, "error": {}})
            for part in ("ms", "error"):
                case[part].update(line.get(part, {}))
    return cases, runs


def geomean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def number(x, digits=3):
    return "-" if x is None else f"{x:.{digits}f}"


def table(rows):
    head, *body = rows
    return "\n".join(["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"] +
                     ["| " + " | ".join(row) + " |" for row in body]) + "\n"


def prefill_rows(cases, peers, known):
    shown = [name for name in (*OURS, "fla", "flash-qla", "flashinfer") if name in peers]
    yield ["heads, lengths", "gates", *shown, "published: FlashQLA", "FlashInfer", "FLA"]
    for (heads, lengths, gates), case in cases.items():
        other = known.get((heads, lengths), {}) if gates == "mixed" else {}
        yield [f"{heads}, {lengths}", gates, *(number(case["ms"].get(name)) for name in shown),
               *(number(other.get(name)) for name in PUBLISHED)]


def error_rows(cases):
    yield ["heads, lengths", "gates", "o", "FLA's", "final state", "FLA's"]
    for (heads, lengths, gates), case in cases.items():
        ours, fla = case["error"].get("sm120"), case["error"].get("fla")
        if ours is None:
            continue
        pair = [f"{x:.2e}" if x is not None else "-" for x in (ours[0], fla and fla[0], ours[1], fla and fla[1])]
        yield [f"{heads}, {lengths}", gates, *pair]


def decode_rows(cases, copy):
    yield ["sequences of tokens", "ms", "FLA's fused_recurrent, ms", "states, TB/s", "of the copy rate"]
    for (heads, lengths, _), case in cases.items():
        count = int(lengths.split(" of ")[0])
        ms = case["ms"].get("sm120")
        if ms is None:
            continue
        rate = 2 * count * int(heads.split("/")[1]) * 128 * 128 * 4 / ms * 1e-9
        yield [lengths, number(ms, 4), number(case["ms"].get("fla"), 4), number(rate, 2), f"{rate / copy:.0%}"]


def ratios(cases, known):
    """Geometric means over FlashQLA's list: how many times faster than each published number, mixed gates."""
    lines = []
    for mine in ("sm120", "native"):
        pairs = [(case["ms"][mine], known[key[:2]]) for key, case in cases.items()
                 if key[2] == "mixed" and mine in case["ms"] and key[:2] in known]
        if not pairs:
            continue
        against = {name: [other[name] / ms for ms, other in pairs] for name in PUBLISHED}
        against["the better of FlashQLA and FlashInfer"] = [min(o["flash_qla"], o["flashinfer"]) / ms for ms, o in pairs]
        text = ", ".join(f"{geomean(r):.2f} x {name}" for name, r in against.items())
        slower = sum(r < 1 / 1.05 for r in against["flash_qla"])
        lines.append(f"- {mine}: {text}; over 5% slower than FlashQLA in {slower} of {len(pairs)}.")
    return "\n".join(lines) + "\n"


def write_plot(folder, cases, known):
    rows = [(heads, lengths, case["ms"]["sm120"], known[heads, lengths]) for (heads, lengths, gates), case in cases.items()
            if gates == "mixed" and (heads, lengths) in known and "sm120" in case["ms"]]
    rows.sort(key=lambda r: r[3]["flash_qla"] / r[2])
    data = [f'"{heads} {lengths}" ' + " ".join(f"{other[name] / ms:.3f}" for name in PUBLISHED)
            for heads, lengths, ms, other in rows]
    (folder / "gated-delta-peers.dat").write_text("# case, how many times faster than FlashQLA, FlashInfer, FLA\n" +
                                                  "\n".join(data) + "\n")
    (folder / "gated-delta-peers.gp").write_text("""# gnuplot gated-delta-peers.gp
set terminal svg size 900,480
set output "gated-delta-peers.svg"
set title "Gated delta rule forward on an H200, SM120's limits: times faster than published numbers, mixed gates"
set xlabel "cases of FlashQLA's forward list, by the first curve"
set ylabel "ratio"
set logscale y 2
set grid y
set key left top
plot 1 notitle with lines lc "black", \\
  "gated-delta-peers.dat" using 0:2 title "FlashQLA" with points pt 7 ps 0.5, \\
  "" using 0:3 title "FlashInfer" with points pt 5 ps 0.5, "" using 0:4 title "FLA" with points pt 9 ps 0.5
""")


def main():
    folder, paths = pathlib.Path(sys.argv[1]), sys.argv[2:]
    known = published(folder)
    cases, runs = read(paths)
    decode = {key: case for key, case in cases.items() if " of " in key[1]}
    prefill = {key: case for key, case in cases.items() if " of " not in key[1]}
    peers = {name for case in prefill.values() for name in case["ms"]}
    copy = max((run["copy_tb_per_s"] for run in runs), default=float("nan"))
    (folder / "gated-delta-peers.md").write_text("\n".join([
        ratios(prefill, known), table(list(prefill_rows(prefill, peers, known))), table(list(error_rows(prefill))),
        f"Copy rate {copy:.2f} TB/s, read and written.\n", table(list(decode_rows(decode, copy)))]))
    write_plot(folder, prefill, known)


if __name__ == "__main__":
    main()
