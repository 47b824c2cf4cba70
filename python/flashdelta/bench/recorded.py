"""Results that were written down on a card, bench/results/CARD, as rows of the page: no card is needed to show them.

attention-*.json      bench/peers/attention.py: the library under SM120's limits and the card's own, and peers
gated-delta*.jsonl    bench/peers/gated_delta.py: the same of the gated delta rule, a line a case
gated-delta-published.tsv    what others publish of themselves for these cases on this card
python-*.json         `python -m flashdelta.bench --json`
qwen-models.jsonl, qwen-prefill.jsonl    bench/python/qwen_models.py, bench/python/qwen_prefill.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .report import OURS, Report, Row
from .timing import Time
from .workloads import delta_flops

_NAMES = {
    "sm120": OURS,
    "native": "flashdelta, card's own limits",
    "fa2": "FlashAttention-2",
    "cudnn": "cuDNN (wgmma)",
    "fla": "flash-linear-attention",
    "flash-qla": "FlashQLA",
    "flash-qla-gates": "FlashQLA, gates known",
    "flash-qla-rule": "FlashQLA, rule of lengths",
    "flash_qla": "FlashQLA",
    "flashinfer": "FlashInfer",
}
_Published = dict[tuple[str, str], dict[str, float]]  # milliseconds by heads and lengths
_GROUPS = {
    "nine": "Attention forward",
    "qwen": "Attention forward, Qwen3.5's heads",
    "decode": "Attention, few queries over long keys",
}


def read(folder: Path) -> Report:
    """FileNotFoundError where there is nothing that can be read."""
    report = Report(f"flashdelta on {folder.name.upper()}", {"profile": "sm120, and the card's own where said"}, [], {})
    for path in sorted(folder.glob("attention-*.json")):
        report.rows += _attention(json.loads(path.read_text()), report.facts)
    lines = [json.loads(x) for path in sorted(folder.glob("gated-delta*.jsonl")) for x in path.read_text().splitlines()]
    file = folder / "gated-delta-published.tsv"
    published = _published(file) if file.exists() else {}
    report.rows += _gated_delta(lines, published)
    for path in sorted(folder.glob("python-*.json")):
        _through_python(json.loads(path.read_text()), published, report)
    models, prefill = folder / "qwen-models.jsonl", folder / "qwen-prefill.jsonl"
    if models.exists():
        report.rows += _models([json.loads(line) for line in models.read_text().splitlines()])
    if prefill.exists():
        report.rows += _prefill([json.loads(line) for line in prefill.read_text().splitlines()])
    if not report.rows:
        raise FileNotFoundError(f"{folder}: no attention-*.json, gated-delta*.jsonl or python-*.json there")
    return report


def _times(milliseconds: dict[str, float], suffix: str = "") -> dict[str, Time]:
    return {_NAMES.get(name, name) + suffix: Time(ms * 1e-3, ms * 1e-3, ms * 1e-3) for name, ms in milliseconds.items()}


def _attention(data: dict[str, Any], facts: dict[str, str]) -> Iterator[Row]:
    facts.setdefault("attention measured on", data["machine"])
    for name, case in data["cases"].items():
        group = _GROUPS.get(case["group"], case["group"])
        row = Row(name, group, name, case["tflop"] * 1e12, _times(case["ms"]))
        if case["group"] == "decode":  # bound by memory: K and V read once
            row.flops, row.unit = case["gb"] * 1e9, "TB/s"
        yield row


def _published(path: Path) -> _Published:
    rows = [line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#")]
    return {(f"{row[0]}/{row[1]}", row[2]): dict(zip(rows[0][3:], map(float, row[3:]))) for row in rows[1:]}


def _tokens(lengths: str) -> int:
    if lengths.startswith("1x"):
        return int(lengths[2:])
    if "x" in lengths:
        length, count = lengths.split("x")
        return int(length) * int(count)
    return sum(int(part) for part in lengths.split("+"))


def _gated_delta(lines: list[dict[str, Any]], known: _Published) -> Iterator[Row]:
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for line in lines:
        if "heads" in line and " of " not in line["lengths"] and line.get("gates") == "mixed":
            ms = {who: t for who, t in line["ms"].items() if not who.startswith(("sm120-", "native"))}
            cases.setdefault((line["heads"], line["lengths"]), {}).update(ms)
    for (heads, lengths), ms in cases.items():
        flops = delta_flops(_tokens(lengths), int(heads.split("/")[1]), 128, 128)
        times = _times(ms) | _times(known.get((heads, lengths), {}), ", published")
        yield Row(f"{heads}, {lengths}", "Gated delta rule forward, key/value heads, lengths", lengths, flops, times)


def _lengths_of(shape: str) -> tuple[str, str]:
    """Heads and lengths as published tables name them, of "4 x 8192, 16/48, 128"."""
    lengths, heads, _ = shape.split(", ")
    batch, tokens = lengths.split(" x ")
    return heads, f"1x{tokens}" if batch == "1" else f"{tokens}x{batch}"


def _through_python(data: dict[str, Any], published: _Published, report: Report) -> None:
    for name in ("device", "versions", "command", "date"):
        if name in data["facts"]:
            report.facts[f"through Python: {name}"] = data["facts"][name]
    report.overhead |= data["overhead"]
    for row in data["rows"]:
        times = {who: Time(**time) for who, time in row["times"].items()}
        if row["operation"] == "gated_delta_forward":
            times |= _times(published.get(_lengths_of(row["shape"]), {}), ", published")
        group = "Through Python: " + row["operation"].replace("_", " ")
        report.rows.append(Row(row["name"], group, row["shape"], row["flops"], times))


def _models(lines: list[dict[str, Any]]) -> Iterator[Row]:
    """Prefill and token times of each model, a case each; how many run a second is the rate."""
    cases: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        cases.setdefault((line["model"], line["heads"]), {})[line["by"]] = line
    for what, title in (("prefill ms", "a prefill of 8192 tokens"), ("token ms", "a token for each of 8 sequences")):
        for (model, heads), by in cases.items():
            times = _times({who: line[what] for who, line in by.items() if line[what] is not None})
            yield Row(f"{model} {heads}", f"Models of four layers: {title}", heads, 1.0, times, unit="a second")


def _prefill(lines: list[dict[str, Any]]) -> Iterator[Row]:
    cases: dict[int, dict[str, float]] = {}
    for line in lines:
        cases.setdefault(line["tokens"], {})[line["by"]] = line["prefill ms"]
    for tokens, ms in cases.items():
        title = "Prefill of eight layers of the 27B layout, end to end"
        yield Row(f"{tokens} tokens", title, str(tokens), 1.0, _times(ms), unit="a second")
