#!/usr/bin/env python3
"""Makes a page and a plot of gated_delta.py's lines, published numbers beside what has not run here.

    gated_delta_report.py FOLDER [RESULTS.jsonl ...]

Reads gated-delta-published.tsv in FOLDER (bench/results/h200), writes gated-delta-peers.md, gated-delta-peers.dat and
gated-delta-peers.gp there; `gnuplot gated-delta-peers.gp` in FOLDER draws gated-delta-peers.svg.
"""
import collections
import json
import math
import pathlib
import sys

PUBLISHED = ("flash_qla", "flashinfer", "fla")
PEERS = {"fla": "flash-linear-attention", "flash-qla": "FlashQLA", "flash-qla-gates": "FlashQLA, gates known",
         "flash-qla-rule": "FlashQLA, rule of lengths",
         "flashinfer": "FlashInfer"}
NAMES = {**PEERS, "best flash-qla": "FlashQLA at its best", "best": "the better of FlashQLA and FlashInfer",
         "published flash_qla": "FlashQLA, published", "published flashinfer": "FlashInfer, published",
         "published fla": "flash-linear-attention, published",
         "published best": "the better of FlashQLA and FlashInfer, published"}
OURS = {"sm120": "exact", "native": "exact, the card's own limits", "sm120-off": "off", "sm120-decay": "decay_start",
        "native-decay": "decay_start, the card's own limits"}


def published(folder):
    table = {}
    for line in (folder / "gated-delta-published.tsv").read_text().splitlines():
        if line.startswith(("#", "heads")):
            continue
        heads_k, heads_v, lengths, *ms = line.split("\t")
        case = {f"published {name}": float(x) for name, x in zip(PUBLISHED, ms)}
        case["published best"] = min(case["published flash_qla"], case["published flashinfer"])
        table[f"{heads_k}/{heads_v}", lengths] = case
    return table


def read(paths):
    """Cases by (heads, lengths, gates), a later file's numbers over an earlier one's; and what the runs say of
    themselves. What did not run goes into the cases too."""
    cases, runs = {}, []
    for path in paths:
        for line in map(json.loads, pathlib.Path(path).read_text().splitlines()):
            if "heads" not in line:
                runs.append(line)
                continue
            case = cases.setdefault((line["heads"], line["lengths"], line["gates"]), {"ms": {}, "error": {}, "not_run": {}})
            for part in case:
                case[part].update(line.get(part, {}))
    return cases, runs


def complete(cases, known):
    """With what is published and the best of peers that ran, in the published table's order."""
    places = {pair: place for place, pair in enumerate(known)}
    for (heads, lengths, gates), case in cases.items():
        ms = case["ms"]
        if ways := [ms[name] for name in ms if name.startswith("flash-qla")]:
            ms["best flash-qla"] = min(ways)
            if "flashinfer" in ms:
                ms["best"] = min(*ways, ms["flashinfer"])
        if gates == "mixed":
            ms |= known.get((heads, lengths), {})
    return dict(sorted(cases.items(), key=lambda item: places.get(item[0][:2], len(places))))


def geomean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def number(x, digits=3):
    return "" if x is None else f"{x:.{digits}f}"


def table(rows):
    head, *body = rows
    if not body:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"] +
                     ["| " + " | ".join(row) + " |" for row in body]) + "\n"


def against(cases, mine):
    """By peer, {(heads, lengths): how many times as long the peer takes}, mixed gates."""
    found = {name: {} for name in NAMES}
    for (heads, lengths, gates), case in cases.items():
        if gates != "mixed" or mine not in case["ms"]:
            continue
        for name, ratios in found.items():
            if name in case["ms"]:
                ratios[heads, lengths] = case["ms"][name] / case["ms"][mine]
    return {name: ratios for name, ratios in found.items() if ratios}


def ratio_rows(cases):
    yield ["flashdelta", "beside", "cases", "geometric mean", "least", "at", "over 5% slower in"]
    for mine in ("sm120", "native"):
        for name, ratios in against(cases, mine).items():
            heads, lengths = min(ratios, key=ratios.get)
            slower = sum(ratio < 1 / 1.05 for ratio in ratios.values())
            yield [OURS[mine], NAMES[name], str(len(ratios)), number(geomean(list(ratios.values())), 2),
                   number(ratios[heads, lengths], 2), f"{heads}, {lengths}", str(slower)]


def slower_rows(cases):
    """Where a peer that ran takes less than 1 / 1.05 of the time."""
    yield ["heads, lengths", "beside", "exact", "theirs", "times as long"]
    for name, ratios in against(cases, "sm120").items():
        for (heads, lengths), ratio in sorted(ratios.items(), key=lambda item: item[1]):
            if name in PEERS and ratio < 1 / 1.05:
                ms = cases[heads, lengths, "mixed"]["ms"]
                yield [f"{heads}, {lengths}", NAMES[name], number(ms["sm120"]), number(ms[name]), number(ratio, 2)]


def group_rows(cases, place, title):
    """Geometric means by heads (place 0) or lengths (place 1)."""
    found = {name: ratios for name, ratios in against(cases, "sm120").items() if not name.startswith("flash-qla")}
    yield [title, *(NAMES[name] for name in found)]
    for key in dict.fromkeys(key[place] for key in cases):
        rows = [[ratio for case, ratio in ratios.items() if case[place] == key] for ratios in found.values()]
        if any(rows):
            yield [key, *(number(geomean(row), 2) if row else "" for row in rows)]


def whole_rows(cases):
    """Cases that ran in every way."""
    peers = [name for name in (*PEERS, "published best") if any(name in case["ms"] for case in cases.values())]
    yield ["heads, lengths", "gates", *OURS.values(), *(NAMES[name] for name in peers)]
    for (heads, lengths, gates), case in cases.items():
        if "sm120-decay" in case["ms"]:
            yield [f"{heads}, {lengths}", gates, *(number(case["ms"].get(name)) for name in (*OURS, *peers))]


def case_rows(cases):
    peers = [name for name in NAMES if any(name in case["ms"] for case in cases.values())]
    yield ["heads, lengths", "exact", *(NAMES[name] for name in peers)]
    for (heads, lengths, gates), case in cases.items():
        if gates == "mixed" and "sm120" in case["ms"]:
            yield [f"{heads}, {lengths}", *(number(case["ms"].get(name)) for name in ("sm120", *peers))]


def error_rows(cases):
    ways = [name for name in ("sm120", *PEERS) if any(name in case["error"] for case in cases.values())]
    names = ["exact" if name == "sm120" else NAMES[name] for name in ways]
    yield ["heads, lengths", "gates", *(f"{part}, {name}" for part in ("o", "final state") for name in names)]
    for (heads, lengths, gates), case in cases.items():
        if "sm120" in case["error"]:
            found = [case["error"].get(name, (None, None))[part] for part in (0, 1) for name in ways]
            yield [f"{heads}, {lengths}", gates, *("" if x is None else f"{x:.2e}" for x in found)]


def reasons(cases):
    """Why a peer did not run, and in how many cases."""
    found = collections.Counter(why for case in cases.values() for why in case["not_run"].items())
    return "".join(f"- {NAMES.get(name, name)} did not run ({count} of {len(cases)} cases): {why}\n"
                   for (name, why), count in found.items())


def decode_rows(cases, copy):
    yield ["sequences of tokens", "ms", "fused_recurrent of flash-linear-attention, ms", "states, TB/s",
           "of the copy rate"]
    for (heads, lengths, _), case in cases.items():
        count = int(lengths.split(" of ")[0])
        ms = case["ms"].get("sm120")
        if ms is None:
            continue
        rate = 2 * count * int(heads.split("/")[1]) * 128 * 128 * 4 / ms * 1e-9
        yield [lengths, number(ms, 4), number(case["ms"].get("fla"), 4), number(rate, 2), f"{rate / copy:.0%}"]


def write_plot(folder, cases):
    """A column a case, those of the same heads side by side."""
    peers = [name for name in (*PEERS, "published flash_qla", "published flashinfer")
             if any(name in case["ms"] for case in cases.values())]
    rows = [(heads, lengths, [case["ms"].get(name, math.nan) / case["ms"]["sm120"] for name in peers])
            for (heads, lengths, gates), case in cases.items() if gates == "mixed" and "sm120" in case["ms"]]
    head = "# key/value heads, lengths, how many times as long as flashdelta: " + ", ".join(NAMES[name] for name in peers)
    lines = [f"{heads} {lengths} " + " ".join(f"{x:.3f}" for x in ratios) for heads, lengths, ratios in rows]
    (folder / "gated-delta-peers.dat").write_text("\n".join([head, *lines]) + "\n")
    columns = {}
    for column, (heads, _, _) in enumerate(rows):
        columns.setdefault(heads, []).append(column)
    ticks = [f'"{heads}" {sum(places) / len(places)}' for heads, places in columns.items()]
    edges = [f"set arrow from {places[0] - 0.5}, graph 0 rto 0, graph 1 nohead lc 'gray'" for places in columns.values()]
    looks = {"fla": "pt 9 lc '#bbbbbb'", "flash-qla": "pt 7 lc '#9fc0e6'",
             "flash-qla-gates": "pt 7 lc '#3b6fb6'", "flash-qla-rule": "pt 11 lc '#3b6fb6'",
             "flashinfer": "pt 5 lc '#c05020'",
             "published flash_qla": "pt 6 lc '#3b6fb6'", "published flashinfer": "pt 4 lc '#c05020'"}
    plots = [f'"gated-delta-peers.dat" using 0:{3 + i} title "{NAMES[name]}" with points ps 0.6 {looks[name]}'
             for i, name in enumerate(peers)]
    (folder / "gated-delta-peers.gp").write_text("""# gnuplot gated-delta-peers.gp
set terminal svg size 1400,520 font "sans,12" background "white"
set output "gated-delta-peers.svg"
set title "Gated delta rule forward on an H200, SM120's limits, exact, mixed gates"
set xlabel "key/value heads; in each the lengths of FlashQLA's list, in its order"
set ylabel "times as long as flashdelta"
set xtics scale 0 (""" + ", ".join(ticks) + """)
set xrange [-0.5:""" + str(len(rows) - 0.5) + """]
set logscale y 2
set grid y
set key outside
""" + "\n".join(edges) + """
plot 1 notitle with lines lc "black", \\
  """ + ", \\\n  ".join(plots) + "\n")


def main():
    folder, paths = pathlib.Path(sys.argv[1]), sys.argv[2:]
    known = published(folder)
    cases, runs = read(paths)
    decode = {key: case for key, case in cases.items() if " of " in key[1]}
    prefill = {key: case for key, case in cases.items() if " of " not in key[1]}
    prefill = complete(prefill, known)
    facts = ["; ".join(f"{name} {run[name]}" for name in run if name != "copy_tb_per_s") for run in runs]
    copy = max((run["copy_tb_per_s"] for run in runs), default=float("nan"))
    sections = [
        "# Gated delta rule forward beside peers on an H200\n",
        "bench/peers/gated_delta.py: bf16, K = V = 128, an initial and a final state, CUDA graphs replayed in turn, medians,"
        " ms. Published: gated-delta-published.tsv. Ratios are how many times as long the other takes, mixed gates. SM120's"
        " limits unless said.\n",
        "FlashQLA runs a sequence in parts: as it decides by default, with the gates known beforehand, or by its earlier"
        " releases' rule of lengths. A head that decays to e^-10 within a part starts the next from nothing; `exact` here"
        " does so from e^-104 on, less than fp32 holds.\n",
        "".join(f"- {fact}\n" for fact in facts),
        reasons(prefill),
        table(ratio_rows(prefill)),
        "![ratios by case](gated-delta-peers.svg)\n",
        "Over 5% slower than a peer that ran:\n",
        table(slower_rows(prefill)) or "None.\n",
        table(group_rows(prefill, 0, "heads")),
        table(group_rows(prefill, 1, "lengths")),
        "## Gates and ways\n",
        table(whole_rows(prefill)),
        "Relative L2 errors against a float64 recurrence on the card:\n",
        table(error_rows(prefill)),
        "## All cases, mixed gates\n",
        table(case_rows(prefill)),
    ]
    if decode:
        sections += ["## Few tokens\n", f"Copy rate {copy:.2f} TB/s, read and written.\n",
                     table(decode_rows(decode, copy))]
    (folder / "gated-delta-peers.md").write_text("\n".join(sections))
    write_plot(folder, prefill)


if __name__ == "__main__":
    main()
