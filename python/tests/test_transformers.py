"""transformers' Qwen3-Next and Qwen3.5 models through flashdelta: the same logits and the same tokens as eager.

Small random models with the published head layouts: 16/32 and 16/48 gated delta heads, 16/4 and 24/4 attention heads of
size 256.
"""

import pytest
import torch

from reference import error, same_tokens

transformers = pytest.importorskip("transformers")
from flashdelta.integrations import _layers  # noqa: E402
from flashdelta.integrations import transformers as fdelta  # noqa: E402

HEADS = {"16/32": (16, 32, 16, 4), "16/48": (16, 48, 24, 4)}
SIZES = {"vocab_size": 199, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 256}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of logits, relative L2, after four layers


def make(kind, heads, dtype, device):
    hk, hv, hq, hkv = HEADS[heads]
    common = {
        **SIZES, "num_attention_heads": hq, "num_key_value_heads": hkv, "linear_num_key_heads": hk,
        "linear_num_value_heads": hv, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }  # fmt: skip
    if kind == "qwen3_next":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        config = transformers.Qwen3NextConfig(**common, **experts, shared_expert_intermediate_size=32)
        model = transformers.Qwen3NextForCausalLM(config)
    else:
        model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**common))
    return model.eval().to(device, dtype)


MODELS = [
    pytest.param(kind, heads, dtype, id=f"{kind}-{heads}-{str(dtype)[6:]}")
    for kind, heads, dtype in (
        ("qwen3_next", "16/32", torch.bfloat16),
        ("qwen3_5", "16/48", torch.bfloat16),
        ("qwen3_5", "16/32", torch.float32),
        ("qwen3_next", "16/48", torch.float32),
    )
]


@pytest.fixture(autouse=True)
def quick_convolution(monkeypatch):
    """torch's convolution of single channels takes most of a model's time on a CPU; tap by tap it takes a hundredth."""
    original = torch.nn.functional.conv1d

    def convolution(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if x.is_cuda or groups != x.shape[1]:
            return original(x, weight, bias, stride, padding, dilation, groups)
        x = torch.nn.functional.pad(x, (padding, padding))
        tokens = x.shape[-1] - weight.shape[-1] + 1
        out = sum(x[..., t : t + tokens].float() * weight[:, :, t].float() for t in range(weight.shape[-1]))
        return (out if bias is None else out + bias[:, None].float()).to(x.dtype)

    monkeypatch.setattr(torch.nn.functional, "conv1d", convolution)


def eager(model, *inputs, **keywords):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(*inputs, **keywords).logits


def ours(model, call):
    fdelta.enable()
    try:
        model.set_attn_implementation(fdelta.NAME)
        with torch.no_grad():
            return call()
    finally:
        model.set_attn_implementation("eager")
        fdelta.disable()


@pytest.mark.parametrize("kind, heads, dtype", MODELS)
def test_model(kind, heads, dtype, device):
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("the GPU kernels take bf16 and fp16")
    model, tolerance = make(kind, heads, dtype, device), TOLERANCE[dtype]
    ids = torch.randint(0, 199, (2, 70), device=device)

    # prefill
    expected = eager(model, ids)
    assert error(ours(model, lambda: model(ids).logits), expected) < tolerance

    # padded on the left, and on the right
    for pad in (slice(0, 13), slice(57, 70)):
        mask = torch.ones_like(ids)
        mask[0, pad] = 0
        got = ours(model, lambda mask=mask: model(ids, attention_mask=mask).logits)
        seen = mask.bool()
        assert error(got[seen], eager(model, ids, attention_mask=mask)[seen]) < tolerance

    # packed: two sequences in one row are as if alone
    cu = torch.tensor([0, 20, 70], dtype=torch.int32, device=device)
    places = torch.cat([torch.arange(20), torch.arange(50)])[None].to(device)
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 50, "max_length_k": 50}
    got = ours(model, lambda: model(ids[:1], position_ids=places, **lengths).logits)
    alone = torch.cat([eager(model, ids[:1, :20]), eager(model, ids[:1, 20:])], 1)
    assert error(got, alone) < tolerance

    # token by token, with a cache, over a padded batch
    mask = torch.ones_like(ids)
    mask[0, :13] = 0
    asked = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0,
             "output_logits": True, "return_dict_in_generate": True}  # fmt: skip
    model.set_attn_implementation("eager")
    expected = model.generate(ids, **asked)
    got = ours(model, lambda: model.generate(ids, **asked))
    logits, expected_logits = torch.stack(got.logits), torch.stack(expected.logits)
    assert error(logits[0], expected_logits[0]) < tolerance
    count = same_tokens(logits, expected_logits, got.sequences[:, 70:], expected.sequences[:, 70:])
    if count == 24 or dtype == torch.float32:
        assert count == 24 and error(logits, expected_logits) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("turned", [False, True])
def test_convolution_in_one_pass(dtype, turned):
    """As transformers' torch function; packed, as each sequence alone. The result's channels lie side by side."""
    batch, channels, tokens = 2, 300, 150
    x = torch.randn(batch, tokens, channels, device="cuda").to(dtype).transpose(1, 2)
    x = x if turned else x.contiguous()
    weight, bias = (torch.randn(channels, *shape, device="cuda").to(dtype) for shape in ((4,), ()))
    exact = [y.double() for y in (x, weight[:, None], bias)]

    def expected(start, stop):
        own = exact[0][..., start:stop]
        return torch.nn.functional.conv1d(own, *exact[1:], padding=3, groups=channels)[..., : stop - start]

    tolerance = 1e-6 if dtype == torch.float32 else 3e-3
    with torch.no_grad():
        made = _layers.short_convolution(x, weight, bias, True, None)
        assert error(made, torch.nn.functional.silu(expected(0, tokens))) < tolerance
        sequence = (torch.arange(tokens, device="cuda") >= 67).long()[None]
        packed = _layers.short_convolution(x, weight, bias, False, sequence)
    assert made.stride() == packed.stride() == (channels * tokens, 1, channels)
    assert error(packed, torch.cat([expected(0, 67), expected(67, tokens)], -1)) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gated_norm_in_one_pass(dtype):
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    norm = Qwen3_5RMSNormGated(128).to("cuda", dtype)
    x, gate = torch.randn(77, 128, device="cuda").to(dtype), torch.randn(77, 256, device="cuda").to(dtype)[:, 128:]
    with torch.no_grad():
        norm.weight.normal_()
        made = _layers.gated_norm(x, gate, norm.weight, norm.variance_epsilon)
        assert error(made, norm(x, gate)) < (1e-6 if dtype == torch.float32 else 1e-3)


@pytest.mark.gpu
def test_layers_leave_gradients_to_transformers():
    x = torch.randn(1, 8, 8, device="cuda", requires_grad=True)
    assert not _layers.available(x) and _layers.available(x.detach())
    with torch.no_grad():
        assert _layers.available(x)


def test_enable_twice_and_disable():
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    original = module.torch_chunk_gated_delta_rule
    fdelta.enable()
    fdelta.enable()
    assert module.torch_chunk_gated_delta_rule is not original
    fdelta.disable()
    assert module.torch_chunk_gated_delta_rule is original
    fdelta.disable()


def test_packed_by_positions_alone():
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=64
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 99, (1, 30))
    places = torch.cat([torch.arange(12), torch.arange(18)])[None]
    got = ours(model, lambda: model(ids, position_ids=places).logits)
    alone = torch.cat([eager(model, ids[:, :12]), eager(model, ids[:, 12:])], 1)
    assert error(got, alone) < 1e-5


def test_right_padding_then_new_tokens():
    """A cached step after padding on the right: the mask has holes."""
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=64
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 99, (2, 20))
    mask = torch.ones_like(ids)
    mask[0, 12:] = 0
    more = torch.cat([mask, torch.ones(2, 3, dtype=mask.dtype)], 1)

    def two_steps():
        first = model(ids, attention_mask=mask, use_cache=True)
        again = model(ids[:, :3], attention_mask=more, past_key_values=first.past_key_values)
        return again.logits

    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = two_steps()
    assert error(ours(model, two_steps), expected) < 1e-5


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"dropout": 0.1}, "dropout"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"output_attentions": True}, "output_attentions"),
    ],
)
def test_what_is_refused(keywords, words):
    x = torch.zeros(1, 2, 4, 64)
    with pytest.raises(NotImplementedError, match=words):
        fdelta.attention(torch.nn.Module(), x, x, x, None, **keywords)


def test_static_caches_are_refused():
    with pytest.raises(NotImplementedError, match="StaticCache"):
        fdelta.attention_mask(1, 4, 64)
    with pytest.raises(NotImplementedError, match="4 dimensions"):
        fdelta.attention_mask(1, 4, 4, attention_mask=torch.ones(1, 1, 4, 4))


def test_gradients_are_refused():
    model = make("qwen3_5", "16/32", torch.float32, "cpu").train()
    fdelta.enable()
    try:
        model.set_attn_implementation(fdelta.NAME)
        ids = torch.randint(0, 199, (1, 8))
        with pytest.raises(NotImplementedError, match="_backward: not supported on cpu"):
            model(ids, labels=ids).loss.backward()
    finally:
        fdelta.disable()
