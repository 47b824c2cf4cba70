"""Both operations through Python against float64 definitions: CPU, a few on the emulator, and CUDA where it is."""

import pytest
import torch

import flashdelta
from reference import assert_close, attention, attention_inputs, delta_inputs, error, gated_delta

needs_emulator = pytest.mark.skipif(flashdelta.backends()["emulator"] != "", reason="no emulator in this build")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 65, 130, 4, 2, 128), (1, 1, 200, 8, 1, 64), (1, 70, 70, 6, 2, 256)])
def test_attention(device, dtype, shape):
    q, k, v = attention_inputs(*shape, dtype=dtype, device=device)
    o, lse = flashdelta.attention_forward(q, k, v, causal=True, return_lse=True)
    expected, expected_lse = attention(q, k, v, causal=True)
    assert_close(o, expected, dtype)
    assert error(lse, expected_lse) < 1e-3


def test_attention_options(device):
    q, k, v = attention_inputs(2, 40, 90, 4, 2, 64, device=device, dv=96)
    sink = torch.randn(4, device=device)
    options = {"scale": 0.2, "softcap": 20.0, "sink": sink}
    o = flashdelta.attention_forward(q, k, v, window_left=30, window_right=3, **options)
    assert_close(o, attention(q, k, v, left=30, right=3, **options)[0], torch.bfloat16)


def test_attention_fills_what_it_is_given(device):
    q, k, v = attention_inputs(1, 20, 20, 2, 2, 64, device=device)
    o, lse = torch.full((1, 20, 2, 64), torch.nan, device=device), torch.full((1, 2, 20), torch.nan, device=device)
    made = flashdelta.attention_forward(q, k, v, o=o, lse=lse)
    assert made is o
    assert_close(o, attention(q, k, v)[0], torch.bfloat16)
    assert torch.isfinite(lse).all()


def test_attention_packed_and_paged(device):
    lengths_q, lengths_k = [5, 0, 40], [30, 12, 40]
    q = torch.randn(45, 4, 64, device=device).bfloat16()
    k, v = (torch.randn(82, 2, 64, device=device).bfloat16() for _ in range(2))
    cu_q, cu_k = (torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32, device=device)
                  for x in (lengths_q, lengths_k))  # fmt: skip
    o = flashdelta.attention_forward(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    parts = [
        attention(q[None, cu_q[i] : cu_q[i + 1]], *(x[None, cu_k[i] : cu_k[i + 1]] for x in (k, v)), causal=True)[0][0]
        for i in range(3)
    ]
    expected = torch.cat(parts)
    assert_close(o, expected, torch.bfloat16)
    table = torch.full((3, 3), -7, dtype=torch.int32)
    pages = torch.full((2, 8, 16, 2, 64), torch.nan)
    free = iter([6, 1, 3, 0, 2, 5])
    for i in range(3):
        for page in range(-(-lengths_k[i] // 16)):
            table[i, page] = next(free)
            own = slice(int(cu_k[i]) + 16 * page, min(int(cu_k[i]) + 16 * page + 16, int(cu_k[i + 1])))
            pages[:, table[i, page], : own.stop - own.start] = torch.stack([k[own], v[own]]).float().cpu()
    table[table < 0] = 0
    paged_k, paged_v = pages.bfloat16().to(device)
    used = torch.tensor(lengths_k, dtype=torch.int32, device=device)
    o = flashdelta.attention_forward(
        q, paged_k, paged_v, causal=True, cu_seqlens_q=cu_q, page_table=table.to(device), seqused_k=used
    )
    assert_close(o, expected, torch.bfloat16)


@needs_emulator
def test_attention_emulator():
    q, k, v = attention_inputs(1, 70, 90, 2, 1, 64)
    o = flashdelta.attention_forward(q, k, v, causal=True, backend="emulator")
    assert_close(o, attention(q, k, v, causal=True)[0], torch.bfloat16)


@needs_emulator
def test_gated_delta_emulator():
    q, k, v, g, beta = delta_inputs(1, 70, 1, 2)
    made = flashdelta.gated_delta_forward(q, k, v, g, beta, output_final_state=True, backend="emulator")
    o, states = gated_delta(q, k, v, g, beta)
    assert_close(made.o, o, torch.bfloat16)
    assert_close(made.final_state, states[:, -1], torch.bfloat16)


@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_gated_delta(device, layout):
    q, k, v, g, beta = delta_inputs(2, 130, 2, 6, device=device, normalised=False)
    state = torch.randn(2, 6, 128, 128, device=device)
    given = state if layout == "kv" else state.transpose(2, 3).contiguous()
    made = flashdelta.gated_delta_forward(
        q, k, v, g, beta, initial_state=given, output_final_state=True, state_layout=layout, qk_l2norm=True,
        checkpoint_every=64,
    )  # fmt: skip
    o, states = gated_delta(q, k, v, g, beta, state, l2norm=True)
    turn = (lambda x: x) if layout == "kv" else (lambda x: x.transpose(-1, -2))
    assert_close(made.o, o, torch.bfloat16)
    assert_close(made.final_state, turn(states[:, -1]), torch.bfloat16)
    assert_close(made.checkpoints, turn(torch.stack([states[b, t] for b in (0, 1) for t in (63, 127)])), torch.bfloat16)


def test_gated_delta_raw_gates(device):
    q, k, v, _, _ = delta_inputs(1, 50, 1, 2, device=device)
    a, b = (torch.randn(1, 50, 2, device=device) for _ in range(2))
    A_log, dt_bias = torch.randn(2, device=device), torch.randn(2, device=device)
    made = flashdelta.gated_delta_forward(q, k, v, A_log=A_log, a=a, dt_bias=dt_bias, b=b, beta_scale=2.0)
    g = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    assert made.final_state is None and made.checkpoints is None
    assert_close(made.o, gated_delta(q, k, v, g, 2 * b.sigmoid())[0], torch.bfloat16)


def test_gated_delta_pool_in_place(device):
    q, k, v, g, beta = delta_inputs(3, 4, 1, 2, device=device)
    pool = torch.randn(5, 2, 128, 128, device=device)
    before = pool.clone()
    indices = torch.tensor([4, -1, 1], dtype=torch.int32, device=device)
    made = flashdelta.gated_delta_forward(
        q, k, v, g, beta, initial_state=pool, final_state=pool, initial_state_indices=indices
    )
    assert made.final_state is pool
    for row, slot in ((0, 4), (2, 1)):
        own = [x[row : row + 1] for x in (q, k, v, g, beta)]
        o, states = gated_delta(*own, before[slot][None])
        assert_close(made.o[row : row + 1], o, torch.bfloat16)
        assert_close(pool[slot], states[0, -1], torch.bfloat16)
    assert (made.o[1] == 0).all()
    assert torch.equal(pool[[0, 2, 3]], before[[0, 2, 3]])


def test_gated_delta_speculative(device):
    """A sequence goes on from the state after its last accepted token; every token's state is kept."""
    q, k, v, g, beta = delta_inputs(1, 3, 1, 1, device=device)
    pool = torch.randn(6, 1, 128, 128, device=device)
    before = pool.clone()
    slots = torch.tensor([[2, 5, 0]], dtype=torch.int32, device=device)
    accepted = torch.tensor([2], dtype=torch.int32, device=device)
    made = flashdelta.gated_delta_forward(
        q, k, v, g, beta, initial_state=pool, final_state=pool, token_state_indices=slots, num_accepted_tokens=accepted,
        final_state_indices=torch.tensor([4], dtype=torch.int32, device=device),
    )  # fmt: skip
    o, states = gated_delta(q, k, v, g, beta, before[5][None])
    assert_close(made.o, o, torch.bfloat16)
    for t in range(3):
        assert_close(pool[slots[0, t]], states[0, t], torch.bfloat16)
    assert torch.equal(pool[4], pool[slots[0, 2]])


def test_same_shapes_may_need_more_workspace(device):
    """What one call needed is the guess for the next of its shapes: lengths and options change what is right."""
    q, k, v = attention_inputs(1, 64, 4096, 4, 1, 64, device=device)
    for options in ({}, {"window_left": 8, "window_right": 0}, {"causal": True}):
        reference = {"causal": "causal" in options, "left": options.get("window_left", -1)}
        reference["right"] = options.get("window_right", -1)
        assert_close(
            flashdelta.attention_forward(q, k, v, **options), attention(q, k, v, **reference)[0], torch.bfloat16
        )
    parts = delta_inputs(1, 96, 1, 2, device=device)
    whole = gated_delta(*parts)[0]
    assert_close(flashdelta.gated_delta_forward(*parts).o, whole, torch.bfloat16)
    cu = torch.tensor([0, 1, 2, 3, 4, 40, 96], dtype=torch.int32, device=device)
    o = flashdelta.gated_delta_forward(*parts, cu_seqlens=cu).o
    ends = cu.tolist()
    for start, stop in zip(ends, ends[1:], strict=False):
        assert_close(o[:, start:stop], gated_delta(*(x[:, start:stop] for x in parts))[0], torch.bfloat16)
    assert_close(flashdelta.gated_delta_forward(*parts).o, whole, torch.bfloat16)


def test_same_inputs_same_bits(device):
    q, k, v, g, beta = delta_inputs(1, 200, 2, 4, device=device)
    first, second = (flashdelta.gated_delta_forward(q, k, v, g, beta, output_final_state=True) for _ in range(2))
    assert torch.equal(first.o, second.o) and torch.equal(first.final_state, second.final_state)


@pytest.mark.sm120
def test_runs_on_an_sm120_card():
    q, k, v = attention_inputs(1, 300, 300, 4, 2, 128, device="cuda")
    assert_close(flashdelta.attention_forward(q, k, v, causal=True), attention(q, k, v, causal=True)[0], torch.bfloat16)
