"""The examples run as they are, and say what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def run(name):
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu  # it is slow on a CPU, where test_transformers has smaller models
def test_qwen_layers():
    pytest.importorskip("transformers")
    theirs, ours = (line.split(maxsplit=1) for line in run("qwen_layers.py").splitlines()[-2:])
    assert theirs[0] == "torch" and ours[0] == "flashdelta" and theirs[1] == ours[1]


def test_other_arrays():
    pytest.importorskip("jax")
    lines = [line for line in run("other_arrays.py").splitlines() if "left out" not in line]
    assert lines
    for line in lines:
        assert float(line.partition("numpy by ")[2].partition(";")[0]) < 6e-3
