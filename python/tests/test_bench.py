"""The benchmark's pages of recorded results: what is in the folder is on them, and nothing is fetched."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashdelta.bench import __main__ as bench


def write(folder):
    case = {"group": "nine", "ms": {"sm120": 2.0, "native": 1.9, "fa2": 3.0, "cudnn": 1.5}, "tflop": 1.0, "gb": 0.1}
    decode = {"group": "decode", "ms": {"sm120": 0.25, "fa2": 0.5}, "tflop": 0.01, "gb": 1.0}
    data = {"machine": "a card", "cases": {"4 x 8, dense": case, "32 x 24/4 <few>": decode}}
    (folder / "attention-forward.json").write_text(json.dumps(data))
    line = {"heads": "16/48", "lengths": "8192x4", "gates": "mixed", "ms": {"sm120": 1.0, "fla": 2.5}}
    (folder / "gated-delta.jsonl").write_text(json.dumps({"copy_tb_per_s": 4.2}) + "\n" + json.dumps(line) + "\n")
    table = "# where from\nheads_k\theads_v\tlengths\tflash_qla\tfla\n16\t48\t8192x4\t0.809\t2.700\n"
    (folder / "gated-delta-published.tsv").write_text(table)
    times = {who: {"median": s, "least": s, "most": s, "why": ""} for who, s in (("flashdelta", 1e-3), ("FLA", 2e-3))}
    row = {"name": "made up", "operation": "gated_delta_forward", "shape": "4 x 8192, 16/48, 128", "flops": 1e12}
    facts = {"device": "a card", "date": "today"}
    python = {"facts": facts, "rows": [{**row, "times": times}], "overhead": {"attention_forward": 11.5}}
    (folder / "python-peers.json").write_text(json.dumps(python))
    model = {"model": "qwen3_5", "heads": "16/48", "prefill ms": 9.0, "token ms": 3.0}
    models = [{**model, "by": by} for by in ("flashdelta", "torch + eager")]
    (folder / "qwen-models.jsonl").write_text("\n".join(map(json.dumps, models)) + "\n")
    prefill = [{"tokens": 8192, "by": by, "prefill ms": ms} for by, ms in (("flashdelta", 95.0), ("other", 112.0))]
    (folder / "qwen-prefill.jsonl").write_text("\n".join(map(json.dumps, prefill)) + "\n")


def test_page_of_recorded_results(tmp_path):
    write(tmp_path)
    page = tmp_path / "page.html"
    assert bench.main(["--recorded", str(tmp_path), "--html", str(page)]) == 0
    text = page.read_text()
    for words in ("32 x 24/4 &lt;few&gt;", "4 TB/s", "500 TFLOP/s", "1.50 of our time", "FlashQLA, published", "11.5",
                  "0.81 of FlashQLA, published", "qwen3_5 16/48", "111 a second", "1.18 of other"):  # fmt: skip
        assert words in text, words
    assert text.count("<svg") == 7
    assert not re.search(r"(src|href)=|url\(|@import|https?:", text)


def test_no_recorded_results(tmp_path):
    with pytest.raises(FileNotFoundError, match="no attention"):
        bench.main(["--recorded", str(tmp_path)])


def test_page_of_gated_delta_peers(tmp_path):
    """Ratios are of one run where a peer ran, and of what is published; they name the case where they are least."""
    published = "# from\nheads_k\theads_v\tlengths\tflash_qla\tflashinfer\tfla\n"
    (tmp_path / "gated-delta-published.tsv").write_text(
        published + "2\t8\t1x2048\t2.0\t9.0\t4.0\n16\t48\t1x2048\t2.0\t1.5\t4.0\n"
    )
    run = {"date": "today", "device": "a card", "copy_tb_per_s": 4.2}
    times = {"sm120": 1.0, "fla": 3.0, "flash-qla": 0.9, "flash-qla-gates": 0.8, "flashinfer": 1.3, "sm120-decay": 0.7}
    errors = {"sm120": [4e-3, 3e-3], "flash-qla": [5e-3, 2e-3]}
    cases = [
        {"heads": "16/48", "lengths": "1x2048", "gates": "mixed", "ms": times, "error": errors},
        {"heads": "16/48", "lengths": "1x2048", "gates": "zero", "ms": {"sm120": 1.1, "sm120-decay": 1.2}},
        {"heads": "2/8", "lengths": "1x2048", "gates": "mixed", "ms": {"sm120": 0.5, "fla": 6.0}},
    ]
    cases[2]["not_run"] = {"flashinfer": "it is not there"}
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(map(json.dumps, [run, *cases])) + "\n")
    script = Path(__file__).parents[2] / "bench/peers/gated_delta_report.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), str(lines)], check=True)
    page = (tmp_path / "gated-delta-peers.md").read_text()
    for words in (
        "| exact | flash-linear-attention | 2 | 6.00 | 3.00 | 16/48, 1x2048 | 0 |",
        "| exact | the better of FlashQLA and FlashInfer | 1 | 0.80 | 0.80 | 16/48, 1x2048 | 1 |",
        "| exact | the better of FlashQLA and FlashInfer, published | 2 | 2.45 | 1.50 | 16/48, 1x2048 | 0 |",
        "| 16/48, 1x2048 | FlashQLA | 1.000 | 0.900 | 0.90 |",
        "| 16/48, 1x2048 | mixed | 4.00e-03 | 5.00e-03 | 3.00e-03 | 2.00e-03 |",
        "| 16/48, 1x2048 | zero | 1.100 |  |  | 1.200 |",
        "- FlashInfer did not run (1 of 3 cases): it is not there",
        "- date today; device a card",
    ):
        assert words in page, words
    assert page.index("| 2/8, 1x2048 | 0.500") < page.index("| 16/48, 1x2048 | 1.000"), "the published order"
    assert (tmp_path / "gated-delta-peers.dat").read_text().count("2048") == 2
