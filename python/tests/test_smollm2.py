"""A real model's text: SmolLM2-135M-Instruct says the same through flashdelta as with PyTorch's own attention."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("accelerate")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
import smollm2  # noqa: E402
from flashdelta.integrations import transformers as fdelta  # noqa: E402


def test_same_text():
    try:
        file = smollm2.weights()
    except FileNotFoundError as why:
        pytest.skip(str(why))
    tokenizer, model = smollm2.load(file)
    question = "Name three primary colours."
    expected = smollm2.answer(tokenizer, model, question, "sdpa", 40)
    fdelta.enable()
    try:
        got = smollm2.answer(tokenizer, model, question, fdelta.NAME, 40)
    finally:
        fdelta.disable()
    assert got == expected
    assert "Red" in got and "Blue" in got
