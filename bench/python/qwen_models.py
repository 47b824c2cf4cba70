#!/usr/bin/env python3
"""Small random Qwen3.5 and Qwen3-Next models in bf16 on a card: flashdelta beside eager, SDPA, flash-linear-attention.

Four layers (three gated delta, one attention) with the published head layouts: 16/32 and 16/48 gated delta heads, 16/4
and 24/4 attention heads of size 256. For each model and way to run it: errors of logits (relative L2) from those of the
same weights in fp32 through transformers' eager functions, for a prefill, a batch padded on the left, two sequences
packed in one row; how many of 2 x 24 greedy tokens after a padded prompt are eager's (a row is counted up to the first
that is not, which eager's own logits must all but allow); the time of a prefill of 1 x 8192 tokens and of a token after
8 x 1024.

    FLASHDELTA_ARCH=120 bench/python/qwen_models.py --out models.jsonl
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import torch
import transformers
from variants import Variants, compile_side_by_side, decode_milliseconds, milliseconds

from flashdelta.integrations import transformers as fdelta

sys.path.append(str(Path(__file__).parents[2] / "python/tests"))
from reference import error, same_tokens  # noqa: E402

HEADS = {"16/32": (16, 32, 16, 4), "16/48": (16, 48, 24, 4)}
NEW = 24


def make(kind, heads):
    hk, hv, hq, hkv = HEADS[heads]
    common = {
        "vocab_size": 1024, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 4, "head_dim": 256,
        "num_attention_heads": hq, "num_key_value_heads": hkv, "linear_num_key_heads": hk,
        "linear_num_value_heads": hv, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }  # fmt: skip
    with torch.device("cuda"):
        if kind == "qwen3_next":
            # Every token goes to every expert: which two a router picks of random ones is for rounding to decide.
            experts = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 512}
            config = transformers.Qwen3NextConfig(**common, **experts, shared_expert_intermediate_size=512)
            return transformers.Qwen3NextForCausalLM(config).eval()
        return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**common)).eval()


def packed_arguments(first, total):
    cu = torch.tensor([0, first, total], dtype=torch.int32, device="cuda")
    places = torch.cat([torch.arange(first), torch.arange(total - first)])[None].cuda()
    longest = max(first, total - first)
    return {
        "position_ids": places, "cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest,
        "max_length_k": longest,
    }  # fmt: skip


class Inputs:
    def __init__(self):
        self.ids = torch.randint(0, 1024, (2, 700), device="cuda")
        self.mask = torch.ones_like(self.ids)
        self.mask[0, :130] = 0
        self.cut = 190

    def logits(self, model, packs):
        """Prefill, padded, packed: float logits of the real tokens. A model that does not pack has each alone."""
        padded = model(self.ids, attention_mask=self.mask).logits[self.mask.bool()]
        row = self.ids[:1]
        if packs:
            packed = model(row, **packed_arguments(self.cut, row.shape[1])).logits
        else:
            packed = torch.cat([model(row[:, : self.cut]).logits, model(row[:, self.cut :]).logits], 1)
        return {"prefill": model(self.ids).logits, "padded": padded, "packed": packed}

    def tokens(self, model):
        made = model.generate(
            self.ids, attention_mask=self.mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return torch.stack(made.logits), made.sequences[:, self.ids.shape[1] :]


def compare(kind, heads, options):
    model = make(kind, heads)
    variants = Variants(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"))
    inputs = Inputs()
    long = torch.randint(0, 1024, (1, 8192), device="cuda")
    many = torch.randint(0, 1024, (8, 1024), device="cuda")
    variants.use("torch + eager", model)
    exact = inputs.logits(model, False)
    model = model.to(torch.bfloat16)
    expected = inputs.tokens(model)
    for name in variants.all:
        if not re.search(options.by, name):
            continue
        variants.use(name, model)
        row = {"model": kind, "heads": heads, "by": name}
        made = inputs.logits(model, name.startswith("flashdelta"))  # transformers alone does not pack sequences
        row["error"] = {what: error(made[what], exact[what]) for what in exact}
        logits, ids = inputs.tokens(model)
        try:
            row["same tokens"] = same_tokens(logits, expected[0], ids, expected[1])
        except AssertionError:  # a token that eager's logits do not allow
            row["same tokens"] = None
        row["of"] = ids.numel()
        row["prefill ms"] = milliseconds(lambda: model(long, use_cache=False, logits_to_keep=1), options.runs)
        row["token ms"] = decode_milliseconds(model, many, options.decode, logits_to_keep=1)
        yield row
        torch.cuda.empty_cache()
    fdelta.disable()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--decode", type=int, default=32, help="timed tokens")
    parser.add_argument("--only", help="models whose names match this, as 'qwen3_5 16/48'")
    parser.add_argument("--by", default="", help="ways whose names match this")
    parser.add_argument("--out", type=Path, help="write the rows here, a line each")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    lines = []
    with torch.no_grad():
        for kind in ("qwen3_5", "qwen3_next"):
            for heads in HEADS:
                if options.only and not re.search(options.only, f"{kind} {heads}"):
                    continue
                for row in compare(kind, heads, options):
                    lines.append(json.dumps(row))
                    errors = " ".join(f"{what} {x:.2e}" for what, x in row["error"].items())
                    print(
                        f"{kind:10} {heads}  {row['by']:48} {errors}  tokens {row['same tokens']}/{row['of']}  prefill "
                        f"{row['prefill ms']:7.2f} ms  token {row['token ms']:6.2f} ms",
                        flush=True,
                    )
                    if options.out:
                        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    try:
        compile_side_by_side()
    except ImportError:
        pass
    main()
