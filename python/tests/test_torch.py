"""As torch sees the operations: torch.compile, gradients, streams and CUDA graphs."""

import pytest
import torch

import flashdelta
from reference import assert_close, attention, attention_inputs, delta_inputs, gated_delta


def test_compiled_attention(device):
    q, k, v = attention_inputs(1, 40, 40, 2, 2, 64, device=device)
    compiled = torch.compile(
        lambda q, k, v: flashdelta.attention_forward(q * 2, k, v, causal=True, return_lse=True),
        fullgraph=True,
        backend="aot_eager",
    )
    o, lse = compiled(q, k, v)
    eager, eager_lse = flashdelta.attention_forward(q * 2, k, v, causal=True, return_lse=True)
    assert torch.equal(o, eager) and torch.equal(lse, eager_lse)


def test_compiled_gated_delta(device):
    q, k, v, g, beta = delta_inputs(1, 70, 1, 2, device=device)
    pool = torch.randn(3, 2, 128, 128, device=device)
    indices = torch.tensor([2], device=device)

    def step(q, k, v, g, beta, pool):
        first = flashdelta.gated_delta_forward(q, k, v, g, beta, output_final_state=True, checkpoint_every=64)
        second = flashdelta.gated_delta_forward(
            q, k, v, g, beta, initial_state=pool, final_state=pool, initial_state_indices=indices
        )
        return first.o, first.final_state, first.checkpoints, second.o

    eager_pool = pool.clone()
    expected = step(q, k, v, g, beta, eager_pool)
    made = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v, g, beta, pool)
    assert all(torch.equal(x, y) for x, y in zip(made, expected))
    assert torch.equal(pool, eager_pool)


@pytest.mark.parametrize("name", ["attention_forward", "gated_delta_forward", "gated_delta_forward_into"])
def test_operations_pass_torchs_own_checks(name):
    q, k, v, g, beta = delta_inputs(1, 20, 1, 1, dtype=torch.float32)
    rest = (0, 0, [], None, 1.0, -9.0, 0, False, "kv", "exact", "auto", 0, 0)
    arguments = {
        "attention_forward": (q, k, v, *[None] * 6, 0, 0, [], [], None, 0.0, -1, -1, True, True, "auto", 0, 0),
        "gated_delta_forward": (q, k, v, g, beta, *[None] * 7, True, *rest),
        "gated_delta_forward_into": (
            q, k, v, g, beta, *[None] * 10, torch.zeros(1, 1, 128, 128), False, *rest,
        ),
    }[name]  # fmt: skip
    import flashdelta._torch  # noqa: F401

    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.flashdelta, name).default, arguments, test_utils=checks)


def gradient_calls():
    q, k, v, g, beta = delta_inputs(1, 8, 1, 1, dtype=torch.float32)
    state = torch.zeros(1, 1, 128, 128)
    return {
        "attention": (q, lambda q: flashdelta.attention_forward(q, k, v), "attention_backward"),
        "gated_delta": (q, lambda q: flashdelta.gated_delta_forward(q, k, v, g, beta).o, "gated_delta_backward"),
        "state": (
            state,
            lambda s: (
                flashdelta.gated_delta_forward(q, k, v, g, beta, initial_state=s, output_final_state=True).final_state
            ),
            "gated_delta_backward",
        ),
        "gate": (g, lambda g: flashdelta.gated_delta_forward(q, k, v, g, beta).o, "gated_delta_backward"),
        "pool": (
            q,
            lambda q: (
                flashdelta.gated_delta_forward(
                    q, k, v, g, beta, initial_state=state, initial_state_indices=torch.tensor([0])
                ).o
            ),
            "gated_delta_backward",
        ),
        "into": (
            q,
            lambda q: flashdelta.gated_delta_forward(q, k, v, g, beta, final_state=state.clone()).o,
            "gated_delta_backward",
        ),
    }


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", gradient_calls())
def test_no_gradient_is_ever_wrong(name, compiled):
    x, call, words = gradient_calls()[name]
    x = x.clone().requires_grad_()
    out = (torch.compile(call, backend="aot_eager") if compiled else call)(x)
    assert out.requires_grad
    with pytest.raises(NotImplementedError, match=f"{words}: not supported on cpu"):
        out.sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert not call(x).requires_grad


@pytest.mark.gpu
def test_backward_names_the_card():
    q = torch.randn(1, 8, 1, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(NotImplementedError, match=torch.cuda.get_device_name()):
        flashdelta.attention_forward(q, q, q).sum().backward()


@pytest.mark.gpu
def test_current_stream_is_used():
    q, k, v = attention_inputs(1, 512, 512, 4, 4, 128, device="cuda")
    stream = torch.cuda.Stream()
    flashdelta.attention_forward(q, k, v)  # loads the kernel
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late = q * 2
        o = flashdelta.attention_forward(late, k, v)
    assert not stream.query()  # the call returned before the stream was done
    stream.synchronize()
    assert_close(o, attention(q * 2, k, v)[0], torch.bfloat16)


@pytest.mark.gpu
def test_streams_share_no_workspace():
    """A call that waits on one stream, then calls of other inputs on another and in a graph: none sees another's."""
    parts = [delta_inputs(1, 200, 2, 4, device="cuda") for _ in range(3)]
    calls = [lambda part=part: flashdelta.gated_delta_forward(*part).o for part in parts]
    calls[0]()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(100_000_000)
        first = calls[0]()
    with torch.cuda.stream(streams[1]):
        second = [calls[1]() for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        third = calls[2]()
    with torch.cuda.stream(streams[1]):
        graph.replay()
        second.append(calls[1]())
    graph.replay()
    torch.cuda.synchronize()
    for made, part in ((first, parts[0]), *((x, parts[1]) for x in second), (third, parts[2])):
        assert_close(made, gated_delta(*part)[0], torch.bfloat16)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph():
    q, k, v, g, beta = delta_inputs(1, 300, 2, 4, device="cuda")

    def both():
        made = flashdelta.gated_delta_forward(q, k, v, g, beta, output_final_state=True)
        return made.o, made.final_state, flashdelta.attention_forward(q, k, v[:, :, :2], causal=True)

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, state, out = both()
    for x in (q, k, v):
        x.copy_(torch.randn_like(x) / 16)
    graph.replay()
    torch.cuda.synchronize()
    expected, states = gated_delta(q, k, v, g, beta)
    assert_close(o, expected, torch.bfloat16)
    assert_close(state, states[:, -1], torch.bfloat16)
    assert_close(out, attention(q, k, v[:, :, :2], causal=True)[0], torch.bfloat16)
