#!/usr/bin/env python3
"""Makes examples/data/gated_delta_qwen3next.safetensors: what a trained gated-delta layer hands to its kernel.

A small Qwen3-Next model (transformers' own classes, dense feed-forward, every fourth layer full attention) is trained
for a few minutes on the reStructuredText sources of the Python documentation, tokenised by a byte-level BPE vocabulary
that is trained on the spot. The held-out folder `tutorial` gives the loss and the sequence whose activations are kept.
The model is then run once in bfloat16, and each tensor is taken where the layer calls its chunked gated delta rule:

  q, k   [1, T, 2, 128]  bf16   after the short convolution and SiLU, before the L2 norm, one row a key head
  v      [1, T, 4, 128]  bf16   after the short convolution and SiLU
  g      [1, T, 4]       fp32   -exp(A_log) * softplus(a + dt_bias), natural log of the decay
  beta   [1, T, 4]       fp32   sigmoid(b), exact bf16 values

transformers' own pure-torch chunked rule, run in float32 on exactly these values, adds what it answers:

  torch_o            [1, T, 4, 128]    bf16
  torch_final_state  [1, 4, 128, 128]  fp32   [N, HV, K, V]

The text: apt-get download python3.11-doc && dpkg-deb -x python3.11-doc_*.deb pydoc
  --text pydoc/usr/share/doc/python3.11/html/_sources
Needs torch, transformers 5, tokenizers and safetensors, and neither fla nor causal_conv1d. It is no part of set-up.
"""

import argparse
import importlib.util
import math
import pathlib
import platform
import time

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

KEY_HEADS, VALUE_HEADS, HEAD_DIM = 2, 4, 128
HELD_OUT = "tutorial"
SAMPLE = "tutorial/classes.rst.txt"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=pathlib.Path, required=True, help="folder of .rst.txt files")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for one file a captured layer")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1, 2, 4, 5, 6], help="linear layers to capture")
    parser.add_argument("--length", type=int, default=500, help="captured tokens")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--max-seconds", type=float, default=180.0, help="training ends here at the latest")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def read_tokens(folder, vocabulary):
    """Returns the tokenizer, the training tokens, the held-out tokens and the text to capture."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.rst.txt"))
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    train = [text for name, text in texts.items() if not name.startswith(HELD_OUT + "/")]
    held_out = [text for name, text in texts.items() if name.startswith(HELD_OUT + "/")]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(train, vocab_size=vocabulary, min_frequency=2, show_progress=False)
    encode = lambda parts: torch.tensor([i for e in tokenizer.encode_batch(parts) for i in e.ids])
    train_tokens, held_out_tokens = encode(train), encode(held_out)
    size = sum(len(text.encode()) for text in train)
    print(f"text: {len(train)} files, {size} bytes, {len(train_tokens)} tokens; held out {len(held_out_tokens)} tokens")
    return tokenizer, train_tokens, held_out_tokens, texts[SAMPLE]


def build_model(vocabulary):
    layers = 8
    config = Qwen3NextConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=VALUE_HEADS,
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
        mlp_only_layers=list(range(layers)),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = Qwen3NextForCausalLM(config)
    for module in model.modules():
        if isinstance(module, qwen3_next.Qwen3NextGatedDeltaNet):
            # transformers fills dt_bias with ones, for checkpoints to overwrite: a state that forgets within a token
            # or two. Training from scratch needs steps between 0.001 and 0.1, as the Mamba and DeltaNet papers do.
            step = torch.exp(torch.empty_like(module.dt_bias).uniform_(math.log(0.001), math.log(0.1)))
            module.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))  # softplus(dt_bias) = step
    return model


def random_batch(tokens, batch, context, device):
    start = torch.randint(len(tokens) - context - 1, (batch,))
    rows = torch.stack([tokens[s : s + context + 1] for s in start.tolist()])
    return rows.to(device, non_blocking=True)


def next_token_loss(model, rows):
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model, tokens, context, device):
    """Mean loss in nats a token over the first windows of the held-out text."""
    windows = min(32, (len(tokens) - 1) // context)
    rows = torch.stack([tokens[i * context : (i + 1) * context + 1] for i in range(windows)]).to(device)
    return sum(next_token_loss(model, part).item() * len(part) for part in rows.split(8)) / windows


def train(model, tokens, held_out, args, device):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    begin, warm_up, peak = time.monotonic(), 100, 2e-3
    report = max(1, args.steps // 15)
    for step in range(args.steps + 1):
        elapsed = time.monotonic() - begin
        progress = max(step / args.steps, elapsed / args.max_seconds)
        last = progress >= 1.0
        if step % report == 0 or last:
            loss = held_out_loss(model, held_out, args.context, device)
            print(f"step {step:5d}  {elapsed:6.1f} s  held-out loss {loss:.3f}", flush=True)
        if last:
            break
        rate = peak * min((step + 1) / warm_up, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = next_token_loss(model, random_batch(tokens, args.batch, args.context, device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % report == 0:
            print(f"step {step:5d}  train loss {loss.item():.3f}  rate {rate:.1e}", flush=True)


@torch.no_grad()
def continue_text(model, tokenizer, prompt, count, device):
    ids = tokenizer.encode(prompt).ids
    for _ in range(count):
        ids.append(model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, -1].argmax().item())
    return tokenizer.decode(ids)


@torch.no_grad()
def capture(model, ids, device):
    """Runs the model once and returns, for each linear layer in order, what it handed to the chunked rule."""
    calls = []
    original = qwen3_next.torch_chunk_gated_delta_rule

    def recorder(query, key, value, g, beta, **options):
        assert options["use_qk_l2norm_in_kernel"] and options.get("initial_state") is None
        calls.append((query, key, value, g, beta))
        return original(query, key, value, g=g, beta=beta, **options)

    qwen3_next.torch_chunk_gated_delta_rule = recorder
    try:
        model(input_ids=torch.tensor([ids], device=device), use_cache=False)
    finally:
        qwen3_next.torch_chunk_gated_delta_rule = original
    return calls


def one_row_a_key_head(x):
    """The layer repeats each key head for its value heads; the kernels here take it once."""
    repeat = VALUE_HEADS // KEY_HEADS
    once = x[:, :, ::repeat]
    assert torch.equal(once.repeat_interleave(repeat, dim=2), x)
    return once


def tensors_of(call):
    q, k, v, g, beta = (x.cpu() for x in call)
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16 and g.dtype == torch.float32
    o, state = qwen3_next.torch_chunk_gated_delta_rule(
        q.float(), k.float(), v.float(), g=g, beta=beta.float(), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    tensors = {
        "q": one_row_a_key_head(q),
        "k": one_row_a_key_head(k),
        "v": v,
        "g": g,
        "beta": beta.float(),
        "torch_o": o.bfloat16(),
        "torch_final_state": state,
    }
    return {name: x.contiguous() for name, x in tensors.items()}


def describe(layer, t):
    decay = t["g"].exp()
    quantiles = torch.quantile(decay.flatten(), torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99])).tolist()
    print(f"layer {layer}: g {t['g'].min():.3f} to {t['g'].max():.6f}, exp(g) at 1/25/50/75/99%:", end=" ")
    print(" ".join(f"{x:.4f}" for x in quantiles), end="; ")
    print(f"beta {t['beta'].min():.4f} to {t['beta'].max():.4f}, mean {t['beta'].mean():.3f}", end="; ")
    norms = [f"|{name}| {t[name].float().norm(dim=-1).median():.2f}" for name in "qkv"]
    print("median row norms", " ".join(norms), f"|state| {t['torch_final_state'].norm():.2f}")


def main():
    args = parse_arguments()
    for package in ("fla", "causal_conv1d"):
        if importlib.util.find_spec(package):
            raise SystemExit(f"{package} is installed: this script is meant for the pure-torch path")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{card}; {versions}")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer, tokens, held_out, sample = read_tokens(args.text, args.vocabulary)
    model = build_model(args.vocabulary).to(device)
    print(f"model: {sum(p.numel() for p in model.parameters())} parameters, {' '.join(model.config.layer_types)}")
    train(model, tokens, held_out, args, device)
    print(repr(continue_text(model, tokenizer, sample[:400], 40, device)))
    ids = tokenizer.encode(sample).ids[: args.length]
    calls = capture(model.bfloat16(), ids, device)
    linear = [i for i, kind in enumerate(model.config.layer_types) if kind == "linear_attention"]
    args.out.mkdir(parents=True, exist_ok=True)
    for layer, call in zip(linear, calls, strict=True):
        tensors = tensors_of(call)
        describe(layer, tensors)
        if layer in args.layers:
            facts = {"model": "small Qwen3-Next", "layer": str(layer), "qk_l2norm": "in the kernel", "made_on": card}
            save_file(tensors, args.out / f"gated_delta_qwen3next_layer{layer}.safetensors", facts)


if __name__ == "__main__":
    main()
