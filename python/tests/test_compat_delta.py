"""The gated delta drop-ins: against the definition, against transformers' torch functions, and what they refuse."""

import functools

import pytest
import torch

import flashdelta
from flashdelta.compat import fla, flash_qla, flashinfer
from reference import assert_close, delta_inputs, error, gated_delta

B16 = torch.bfloat16


def packed(parts):
    return tuple(torch.cat(x, 1) for x in zip(*parts))


def cumulative(lengths, device):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device=device)


# ---- flash-linear-attention ----


@pytest.mark.parametrize("function", [fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule])
def test_fla(device, function):
    q, k, v, g, beta = delta_inputs(2, 70, 2, 6, device=device, normalised=False)
    state = torch.randn(2, 6, 128, 128, device=device).to(B16)
    o, final = function(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True, scale=0.1
    )
    expected, states = gated_delta(q, k, v, g, beta, state, scale=0.1, l2norm=True)
    assert_close(o, expected, B16)
    assert_close(final, states[:, -1], B16)
    assert o.dtype == B16 and final.dtype == torch.float32
    o, none = function(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    assert none is None


def test_fla_agrees_with_transformers_torch_functions(device):
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, g, beta = delta_inputs(1, 100, 2, 4, device=device, normalised=False)
    for theirs, ours in (
        (module.torch_chunk_gated_delta_rule, fla.chunk_gated_delta_rule),
        (module.torch_recurrent_gated_delta_rule, fla.fused_recurrent_gated_delta_rule),
    ):
        theirs = getattr(theirs, "__wrapped__", theirs)  # what stands there may be flash-linear-attention
        keywords = {"g": g, "beta": beta, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        o, final = ours(q, k, v, **keywords)
        # transformers before 5.20 leaves it to the caller to repeat key heads
        expected, expected_final = theirs(*(x.repeat_interleave(2, 2) for x in (q, k)), v, **keywords)
        assert error(o, expected) < 6e-3 and error(final, expected_final) < 6e-3


@pytest.mark.gpu
def test_fla_agrees_with_the_package():
    theirs = pytest.importorskip("fla.ops.gated_delta_rule")
    q, k, v, g, beta = delta_inputs(1, 500, 2, 6, device="cuda", normalised=False)
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        keywords = {"g": g, "beta": beta, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        o, final = getattr(fla, name)(q, k, v, **keywords)
        expected, expected_final = getattr(theirs, name)(q, k, v, **keywords)
        assert error(o, expected) < 1.5e-2 and error(final, expected_final) < 1.5e-2


def test_fla_packed(device):
    lengths = [40, 1, 0, 90]
    parts = [delta_inputs(1, n, 1, 2, device=device) for n in lengths]
    cu = cumulative(lengths, device)
    states = torch.randn(4, 2, 128, 128, device=device)
    o, final = fla.chunk_gated_delta_rule(
        *packed(parts), initial_state=states, output_final_state=True, cu_seqlens=cu, cu_seqlens_cpu=cu.cpu()
    )
    expected = [gated_delta(*part, states[i : i + 1]) for i, part in enumerate(parts)]
    assert_close(o, torch.cat([x[0] for x in expected], 1), B16)
    ends = [x[1][0, -1] if n else states[i].double().cpu() for i, (x, n) in enumerate(zip(expected, lengths))]
    assert_close(final, torch.stack(ends), B16)


def test_fla_raw_gates_and_layout(device):
    q, k, v, _, _ = delta_inputs(1, 50, 1, 2, device=device)
    raw, logits = (torch.randn(1, 50, 2, device=device).to(B16) for _ in range(2))
    A_log, dt_bias = torch.randn(2, device=device), torch.randn(2, device=device)
    keywords = {
        "use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias, "use_beta_sigmoid_in_kernel": True,
        "allow_neg_eigval": True, "output_final_state": True, "state_v_first": True,
    }  # fmt: skip
    g = -A_log.exp() * torch.nn.functional.softplus(raw.float() + dt_bias)
    expected, states = gated_delta(q, k, v, g, 2 * logits.float().sigmoid())
    for function in (fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule):
        o, final = function(q, k, v, g=raw, beta=logits, **keywords)
        assert_close(o, expected, B16)
        assert_close(final, states[:, -1].transpose(2, 3), B16)


def test_fla_defaults(device):
    q, k, v, _, _ = delta_inputs(1, 9, 1, 2, device=device)
    o, _ = fla.fused_recurrent_gated_delta_rule(q, k, v)
    zero, one = torch.zeros(1, 9, 2), torch.ones(1, 9, 2)
    assert_close(o, gated_delta(q, k, v, zero, one)[0], B16)


def mtp_inputs(device, tokens=3):
    """Three sequences over a pool of twelve slots, the second one left out; and what they come to."""
    q, k, v, _, _ = delta_inputs(3, tokens, 2, 4, device=device, normalised=False)
    a, b = (torch.randn(3, tokens, 4, device=device).to(B16) for _ in range(2))
    A_log, dt_bias = torch.randn(4, device=device), torch.randn(4, device=device)
    pool = torch.randn(12, 4, 128, 128, device=device)
    slots = torch.tensor([4, -1, 1], dtype=torch.int32, device=device)
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    o, states = gated_delta(q, k, v, g, b.float().sigmoid(), pool[slots.long()].transpose(2, 3), l2norm=True)
    o[1] = 0
    return (q, k, v, pool, slots, A_log, a, dt_bias, b), o, states.transpose(3, 4)


INPUTS = delta_inputs(1, 4, 1, 1)
FLAT = [x[0] for x in INPUTS[:3]]
ROWS = torch.zeros(1, 1, 128, 128)
ONE = [x[:, :1] for x in INPUTS]
GATE = (torch.zeros(1), ONE[3], torch.zeros(1), ONE[4])  # A_log, a, dt_bias, b
MTP = mtp_inputs("cpu")[0]
MORE = delta_inputs(2, 4, 1, 1)
CU = torch.tensor([0, 4])


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, cp_context=1), NotImplementedError, "cp_context=1 .*one card"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, chunk_size=16), NotImplementedError, "chunk_size=16 .* 32 and 64"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, chunksize=16), TypeError, "chunksize"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, allow_neg_eigval=True), ValueError, "use_beta_sigmoid_in_kernel"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, use_gate_in_kernel=True), ValueError, "A_log"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, A_log=ROWS), ValueError, "use_gate_in_kernel: expected True"),
        (lambda: fla.chunk_gated_delta_rule(*MORE, cu_seqlens=CU), ValueError, "a batch of 1"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS, cu_seqlens=CU, initial_state=torch.zeros(2, 1, 128, 128)),
         ValueError, "initial_state: expected 1 states"),
        (lambda: fla.chunk_gated_delta_rule(*INPUTS[:4], None), TypeError, "beta: expected a torch tensor"),
        (lambda: fla.fused_recurrent_gated_delta_rule(*INPUTS[:3], gk=INPUTS[0]), NotImplementedError, "gk=a tensor"),
        (lambda: fla.fused_recurrent_gated_delta_rule(*INPUTS[:3], gv=INPUTS[0]), NotImplementedError, "gv=a tensor"),
        (lambda: fla.fused_recurrent_gated_delta_rule(*INPUTS[:3], beta=INPUTS[2]), NotImplementedError, "beta"),
        (lambda: flash_qla.chunk_gated_delta_rule(*INPUTS, head_first=True), NotImplementedError, "head_first"),
        (lambda: flash_qla.chunk_gated_delta_rule(*INPUTS, force_intra_cp=True), NotImplementedError, "force_intra"),
        (lambda: flash_qla.chunk_gated_delta_rule_fwd(*INPUTS, cp_context=1), NotImplementedError, "cp_context"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT), ValueError, "cu_seqlens"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU,
         prefix_lens=CU), NotImplementedError, "prefix_lens"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU,
         backend="cudnn"), NotImplementedError, "backend='cudnn'"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU,
         initial_state=torch.zeros(1, 1, 128, 128).half()), NotImplementedError, "initial_state=torch.float16"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU,
         state_indices=CU[:1]), ValueError, "pools of state_indices"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, use_cp="on"), ValueError, "use_cp: expected"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, dt_bias=ROWS), ValueError, "use_gate_in_k"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, beta_is_logit=True), ValueError, "beta: exp"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, checkpoint_cu_starts=CU), ValueError,
         "checkpoint_every_n_tokens: expected a multiple of 64 with checkpoint_cu_starts"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, checkpoint_every_n_tokens=64,
         state_checkpoints=ROWS, checkpoint_cu_starts=CU[:1]), ValueError, r"checkpoint_cu_starts: expected shape \[2"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, checkpoint_every_n_tokens=64,
         state_checkpoints=ROWS, checkpoint_cu_starts=CU), ValueError, r"expected \[0, 0\], the running count"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, checkpoint_every_n_tokens=64,
         state_checkpoints=ROWS.to(B16), checkpoint_cu_starts=0 * CU), NotImplementedError, "like the states"),
        (lambda: flashinfer.chunk_gated_delta_rule(*FLAT, cu_seqlens=CU, state_indices=CU[:1], initial_state=ROWS,
         output_state=ROWS.to(B16)), NotImplementedError, "output_state=torch.bfloat16 .*torch.float32"),
        (lambda: flashinfer.gated_delta_rule_mtp(*MTP, cache_replayssm=True), NotImplementedError, "cache_replayssm"),
        (lambda: flashinfer.gated_delta_rule_mtp(*MTP, replayssm_g=MTP[3]), NotImplementedError, "replayssm_g"),
        (lambda: flashinfer.gated_delta_rule_mtp(*MTP, ssm_state_indices=MTP[4]), ValueError, "disable_state_update"),
        (lambda: flashinfer.gated_delta_rule_mtp(*MTP, ssm_state_indices=MTP[4], intermediate_states_buffer=MTP[3],
         disable_state_update=False), ValueError, "expected one of the two, got both"),
        (lambda: flashinfer.gated_delta_rule_mtp(*MTP, intermediate_states_buffer=MTP[3]), ValueError,
         r"expected shape \[3 or more, 3 or more, 4, 128, 128\], got \[12"),
    ],
)  # fmt: skip
def test_what_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


# ---- FlashQLA ----


def test_flash_qla(device):
    q, k, v, g, beta = delta_inputs(2, 150, 1, 2, device=device, normalised=False)
    o, final = flash_qla.chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, output_final_state=True)
    expected, states = gated_delta(q, k, v, g, beta, l2norm=True)
    assert_close(o, expected, B16)
    assert_close(final, states[:, -1], B16)


@pytest.mark.parametrize("auto_cp, normalise, expected", [(True, True, "decay_start"), (True, False, "exact"),
                                                         (False, True, "off")])  # fmt: skip
def test_flash_qla_leaves_nothing_out_of_keys_of_any_norm(monkeypatch, auto_cp, normalise, expected):
    asked = []

    def seen(*arguments, **keywords):
        asked.append((keywords["context_parallel"], keywords.get("decay_threshold")))
        return flashdelta.gated_delta_forward(*arguments, **keywords)

    monkeypatch.setattr(flash_qla._core, "gated_delta_forward", seen)
    flash_qla.chunk_gated_delta_rule(*INPUTS, use_qk_l2norm_in_kernel=normalise, auto_cp=auto_cp)
    assert asked.pop() == (expected, -10.0)
    flash_qla.chunk_gated_delta_rule_fwd(*INPUTS, auto_cp=auto_cp)
    assert asked.pop()[0] == ("exact" if auto_cp else "off")


@pytest.mark.parametrize("v_first", [False, True])
def test_flash_qla_fwd(device, v_first):
    q, k, v, g, beta = delta_inputs(2, 150, 1, 2, device=device)
    state = torch.randn(2, 2, 128, 128, device=device)
    turn = (lambda x: x.transpose(-1, -2)) if v_first else (lambda x: x)
    g_sum, A, o, h, final, cache = flash_qla.chunk_gated_delta_rule_fwd(
        q, k, v, g, beta, initial_state=turn(state).contiguous(), output_h=True, state_v_first=v_first
    )
    expected, states = gated_delta(q, k, v, g, beta, state)
    assert A is None and cache is None and h.dtype == B16
    assert_close(o, expected, B16)
    assert_close(final, turn(states[:, -1]), B16)
    before = torch.stack([state.double().cpu(), states[:, 63], states[:, 127]], 1)
    assert_close(h, turn(before), B16)
    assert_close(g_sum[:, 64:128], g[:, 64:128].cumsum(1).cpu(), torch.float32)
    assert flash_qla.chunk_gated_delta_rule_fwd(q, k, v, g, beta, output_final_state=False)[3:5] == (None, None)


def test_flash_qla_fwd_packed(device):
    lengths = [70, 0, 64, 5]
    parts = [delta_inputs(1, n, 1, 2, device=device) for n in lengths]
    g_sum, _, o, h, _, _ = flash_qla.chunk_gated_delta_rule_fwd(
        *packed(parts), cu_seqlens=cumulative(lengths, device), output_h=True
    )
    expected = [gated_delta(*part) for part in parts]
    assert_close(o, torch.cat([x[0] for x in expected], 1), B16)
    assert h.shape == (1, 4, 2, 128, 128)
    assert (h[0, [0, 2, 3]] == 0).all()
    assert_close(h[0, 1], expected[0][1][0, 63], B16)
    assert_close(g_sum[0, 70:134], parts[2][3][0].cumsum(0).cpu(), torch.float32)


# ---- FlashInfer ----


@pytest.mark.parametrize("heads", [(2, 2, 6), (6, 2, 2), (2, 2, 2)])
def test_flashinfer(device, heads):
    hq, hk, hv = heads
    most = max(hq, hv)
    lengths = [40, 90]
    q, k, v = (torch.randn(130, h, 128, device=device).to(B16) for h in heads)
    alpha, beta = (torch.rand(130, most, device=device) * 0.9 + 0.1 for _ in range(2))
    state = torch.randn(2, most, 128, 128, device=device)
    o, final = flashinfer.chunk_gated_delta_rule(
        q, k, v, alpha, beta, None, state.transpose(2, 3).contiguous(), True, cumulative(lengths, device), True
    )
    spread = (lambda x: x.repeat_interleave(most // hv, 1)) if hq > hv else (lambda x: x)
    k, v = (spread(k), spread(v)) if hq > hv else (k, v)
    parts, ends = [], []
    for i, own in enumerate((slice(0, 40), slice(40, 130))):
        one = [x[None, own] for x in (q, k, v, alpha.log(), beta)]
        expected, states = gated_delta(*one, state[i : i + 1], l2norm=True)
        parts.append(expected[0])
        ends.append(states[0, -1].transpose(1, 2))
    assert_close(o, torch.cat(parts), B16)
    assert_close(final, torch.stack(ends), B16)


def test_flashinfer_pool_and_checkpoints(device):
    q, k, v, g, beta = (x[0] for x in delta_inputs(1, 130, 1, 1, device=device))
    pool = torch.randn(4, 1, 128, 128, device=device)
    before = pool.clone()
    rows = torch.full((2, 1, 128, 128), torch.nan, device=device)
    output = torch.empty_like(v)
    made = flashinfer.chunk_gated_delta_rule(
        q, k, v, g.exp(), beta, initial_state=pool, output_state=pool, output_final_state=True, output=output,
        cu_seqlens=cumulative([130], device), state_indices=torch.tensor([2], device=device), state_checkpoints=rows,
        checkpoint_cu_starts=torch.tensor([0, 2], device=device), checkpoint_every_n_tokens=64,
    )  # fmt: skip
    assert made[0] is output and made[1] is pool
    expected, states = gated_delta(*(x[None] for x in (q, k, v, g, beta)), before[2:3].transpose(2, 3))
    assert_close(output, expected[0], B16)
    assert_close(pool[2], states[0, -1].transpose(1, 2), B16)
    assert_close(rows, states[0, [63, 127]].transpose(2, 3), B16)


@pytest.mark.parametrize("first, last", [(B16, None), (B16, torch.float32), (torch.float32, B16)])
def test_flashinfer_states_of_two_dtypes(device, first, last):
    """A final state that the call makes is fp32, whatever the first one is; one that is given keeps its own dtype."""
    q, k, v, g, beta = (x[0] for x in delta_inputs(1, 70, 1, 2, device=device))
    state = torch.randn(1, 2, 128, 128, device=device).to(first)
    given = None if last is None else torch.empty_like(state, dtype=last)
    o, final = flashinfer.chunk_gated_delta_rule(
        q, k, v, g.exp(), beta, initial_state=state, output_final_state=True, output_state=given,
        cu_seqlens=cumulative([70], device),
    )  # fmt: skip
    assert final is given if given is not None else final.dtype == torch.float32
    expected, states = gated_delta(*(x[None] for x in (q, k, v, g, beta)), state.transpose(2, 3))
    assert_close(o, expected[0], B16)
    assert_close(final, states[:, -1].transpose(2, 3), B16)


@pytest.mark.parametrize("dtype", [torch.float32, B16])
@pytest.mark.parametrize("pooled", [False, True])
def test_flashinfer_decode(device, dtype, pooled):
    q, k, v, _, _ = delta_inputs(2, 1, 2, 4, device=device, normalised=False)
    a, b = (torch.randn(2, 1, 4, device=device).to(B16) for _ in range(2))
    A_log, dt_bias = torch.randn(4, device=device), torch.randn(4, device=device).to(B16)
    pool = torch.randn(5, 4, 128, 128, device=device).to(dtype)
    before = pool.clone().transpose(2, 3)
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    if pooled:
        slots = torch.tensor([4, 1], dtype=torch.int32, device=device)
        o, state = flashinfer.gated_delta_rule_decode_pretranspose(
            q, k, v, None, A_log, a, dt_bias, b, initial_state=pool, initial_state_indices=slots
        )
        own = [4, 1]
    else:
        o, state = flashinfer.gated_delta_rule_decode_pretranspose(q, k, v, pool[:2], A_log, a, dt_bias, b)
        own = [0, 1]
    expected, states = gated_delta(q, k, v, g, b.float().sigmoid(), before[own], l2norm=True)
    assert_close(o, expected, B16)
    assert_close(pool[own], states[:, -1].transpose(2, 3), B16)


@pytest.mark.parametrize("update", [None, True, False])
@pytest.mark.parametrize("part", [False, True])
def test_flashinfer_mtp_with_a_buffer(device, update, part):
    """Every token's state in a buffer, or in a part of a longer one; the pool changes where that is asked for."""
    inputs, expected, states = mtp_inputs(device)
    pool = inputs[3]
    before = pool.clone()
    buffer = torch.full((4, 5 if part else 3, 4, 128, 128), torch.nan, device=device)
    o, same = flashinfer.gated_delta_rule_mtp(
        *inputs, intermediate_states_buffer=buffer[:, :3], disable_state_update=update
    )
    assert same is pool
    assert_close(o, expected, B16)
    for row in (0, 2):
        assert_close(buffer[row, :3], states[row], B16)
    assert buffer[1].isnan().all() and buffer[3].isnan().all() and buffer[:, 3:].isnan().all()
    if update is False:
        assert torch.equal(pool[4], buffer[0, 2]) and torch.equal(pool[1], buffer[2, 2])
        before[[4, 1]] = pool[[4, 1]]
    assert torch.equal(pool, before)


def test_flashinfer_mtp_without_a_buffer(device):
    """Final states go where they are sent; a sequence that is sent nowhere runs all the same."""
    inputs, expected, states = mtp_inputs(device)
    pool = inputs[3]
    before = pool.clone()
    assert_close(flashinfer.gated_delta_rule_mtp(*inputs)[0], expected, B16)
    assert torch.equal(pool, before)
    to = torch.tensor([7, 8, -1], device=device)
    o, _ = flashinfer.gated_delta_rule_mtp(*inputs, disable_state_update=False, output_state_indices=to)
    assert_close(o, expected, B16)
    assert_close(pool[7], states[0, -1], B16)
    before[7] = pool[7]
    assert torch.equal(pool, before)
    buffer = torch.empty(3, 3, 4, 128, 128, device=device)
    flashinfer.gated_delta_rule_mtp(
        *inputs, intermediate_states_buffer=buffer, disable_state_update=False, output_state_indices=to
    )
    # A state that is kept after every token may be rounded otherwise than one that is kept after the last.
    assert error(pool[7], before[7]) < 1e-6
    before[7] = pool[7]
    assert torch.equal(pool, before)
    flashinfer.gated_delta_rule_mtp(*inputs, disable_state_update=False)
    assert_close(pool[4], states[0, -1], B16)
    assert_close(pool[1], states[2, -1], B16)


def test_flashinfer_mtp_keeps_states_in_slots(device):
    inputs, expected, states = mtp_inputs(device)
    pool = inputs[3]
    before = pool.clone()
    each = torch.tensor([[0, 2, 3], [5, 6, 7], [8, 9, 10]], dtype=torch.int32, device=device)
    o, _ = flashinfer.gated_delta_rule_mtp(*inputs, ssm_state_indices=each, disable_state_update=False)
    assert_close(o, expected, B16)
    for row in (0, 2):
        assert_close(pool[each[row].long()], states[row], B16)
        before[each[row].long()] = pool[each[row].long()]
    assert torch.equal(pool, before)


def test_flashinfer_decode_of_several_tokens_with_a_buffer(device):
    (q, k, v, pool, _, A_log, a, dt_bias, b), _, _ = mtp_inputs(device)
    state, buffer = pool[:3].clone(), torch.empty(3, 3, 4, 128, 128, device=device)
    inputs = (q, k, v, state, A_log, a, dt_bias, b)
    o, _ = flashinfer.gated_delta_rule_decode_pretranspose(*inputs, intermediate_states_buffer=buffer)
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    expected, states = gated_delta(q, k, v, g, b.float().sigmoid(), pool[:3].transpose(2, 3), l2norm=True)
    assert_close(o, expected, B16)
    assert_close(buffer, states.transpose(3, 4), B16)
    assert torch.equal(state, buffer[:, 2])


@pytest.mark.skipif(flashdelta.backends()["emulator"] != "", reason="no emulator in this build")
def test_flashinfer_mtp_on_the_emulator(monkeypatch):
    monkeypatch.setattr(
        flashinfer._core, "gated_delta_forward", functools.partial(flashdelta.gated_delta_forward, backend="emulator")
    )
    test_flashinfer_mtp_with_a_buffer("cpu", False, True)
    test_flashinfer_mtp_without_a_buffer("cpu")
    test_flashinfer_mtp_keeps_states_in_slots("cpu")


def test_flashinfer_mtp_in_a_pool_of_bf16(device):
    inputs, _, _ = mtp_inputs(device)
    pool = inputs[3].to(B16)
    buffer = torch.empty(3, 3, 4, 128, 128, device=device)
    with pytest.raises(ValueError, match="intermediate_states_buffer: expected torch.bfloat16 like the pool"):
        flashinfer.gated_delta_rule_mtp(*inputs[:3], pool, *inputs[4:], intermediate_states_buffer=buffer)
    o, _ = flashinfer.gated_delta_rule_mtp(*inputs[:3], pool, *inputs[4:], disable_state_update=False)
    assert (o[1] == 0).all() and torch.isfinite(pool).all() and not torch.equal(pool[4], inputs[3].to(B16)[4])


def test_flashinfer_decode_k_first(device):
    q, k, v, _, _ = delta_inputs(2, 1, 2, 4, device=device)
    a, b = (torch.randn(2, 1, 4, device=device).to(B16) for _ in range(2))
    A_log, dt_bias = torch.randn(4, device=device), torch.randn(4, device=device)
    state = torch.randn(2, 4, 128, 128, device=device)
    before = state.clone()
    o, same = flashinfer.gated_delta_rule_decode(q, k, v, state, A_log, a, dt_bias, b, use_qk_l2norm=False)
    g = -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    expected, states = gated_delta(q, k, v, g, b.float().sigmoid(), before)
    assert same is state
    assert_close(o, expected, B16)
    assert_close(state, states[:, -1], B16)


@pytest.mark.parametrize(
    "call",
    [
        lambda q: fla.chunk_gated_delta_rule(q, *INPUTS[1:])[0],
        lambda q: fla.fused_recurrent_gated_delta_rule(q, *INPUTS[1:3], INPUTS[3], beta=INPUTS[4])[0],
        lambda q: flash_qla.chunk_gated_delta_rule(q, *INPUTS[1:])[0],
        lambda q: flash_qla.chunk_gated_delta_rule_fwd(q, *INPUTS[1:])[2],
        lambda q: flashinfer.chunk_gated_delta_rule(q[0], *FLAT[1:], cu_seqlens=CU),
        lambda q: flashinfer.gated_delta_rule_decode(q[:, :1], *ONE[1:3], ROWS.clone(), *GATE)[0],
        lambda q: flashinfer.gated_delta_rule_decode_pretranspose(q[:, :1], *ONE[1:3], ROWS.clone(), *GATE)[0],
        lambda q: flashinfer.gated_delta_rule_mtp(q[:, :1], *ONE[1:3], ROWS.clone(), CU[:1], *GATE)[0],
    ],
)
def test_backward_is_refused(call):
    q = INPUTS[0].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="gated_delta_backward: not supported on cpu"):
        call(q).sum().backward()
    assert q.grad is None
