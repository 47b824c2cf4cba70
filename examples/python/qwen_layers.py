"""A small Qwen3.5 with random weights, its attention and gated delta layers through flashdelta.

pip install torch transformers flashdelta
python examples/python/qwen_layers.py
"""

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from flashdelta.integrations import transformers as fdelta

torch.manual_seed(0)
config = Qwen3_5TextConfig(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,  # three gated delta layers, then one of attention
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Qwen3_5ForCausalLM(config).to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
prompt = torch.randint(0, 512, (1, 100), device=device)

theirs = model.generate(prompt, max_new_tokens=16, do_sample=False)
fdelta.enable()
model.set_attn_implementation(fdelta.NAME)
ours = model.generate(prompt, max_new_tokens=16, do_sample=False)
print("torch      ", theirs[0, 100:].tolist())
print("flashdelta ", ours[0, 100:].tolist())
