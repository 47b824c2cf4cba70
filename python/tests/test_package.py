"""The package as a new user meets it: import, plan, arrays of other frameworks, and what is said of wrong input."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import flashdelta
from reference import assert_close, attention


def test_imports_alone():
    code = (
        "import time; t = time.perf_counter(); import flashdelta; t = time.perf_counter() - t; import sys;"
        "assert not {'torch', 'numpy', 'jax', 'cupy'} & set(sys.modules); print(t)"
    )
    best = min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
               for _ in range(3))  # fmt: skip
    assert best < 0.3


def test_version_and_backends():
    assert flashdelta.__version__ == "0.1.0"
    there = flashdelta.backends()
    assert there["cpu"] == ""
    assert set(there) == {"cpu", "cuda", "emulator"}


def test_plan():
    plan = flashdelta.plan(
        "attention_forward", arch="sm120", head_dim=128, candidates=["block_q=128,block_kv=128,stages=2"]
    )
    assert plan.shared_limit == 101376 and plan.chosen is None
    assert not plan.candidates[0].fits and plan.candidates[0].reason == "shared_memory_over_limit"
    assert plan.candidates[0].shared_bytes == 160 * 1024 == sum(plan.candidates[0].parts.values())
    assert "shared_memory_over_limit" in str(plan)
    assert flashdelta.plan("gated_delta_forward").chosen == 0


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"operation": "attention"}, "operation: expected"),
        ({"operation": "attention_forward", "arch": "sm75"}, "arch"),
        ({"operation": "attention_forward", "dtype": "int8"}, "dtype: expected bf16, fp16 or fp32, got 'int8'"),
        ({"operation": "attention_forward", "candidates": ["block_q=0,block_kv=64"]}, "block_q: expected"),
    ],
)
def test_plan_names_what_is_wrong(keywords, words):
    with pytest.raises(ValueError, match=words):
        flashdelta.plan(**keywords)


def test_numpy_in_numpy_out():
    q, k = np.random.randn(2, 33, 4, 64).astype(np.float32), np.random.randn(2, 50, 2, 64).astype(np.float32)
    o, lse = flashdelta.attention_forward(q, k, k, causal=True, return_lse=True)
    assert isinstance(o, np.ndarray) and o.dtype == np.float32 and isinstance(lse, np.ndarray)
    expected, expected_lse = attention(*(torch.tensor(x) for x in (q, k, k)), causal=True)
    assert_close(torch.tensor(o), expected, torch.float32)
    assert_close(torch.tensor(lse), expected_lse, torch.float32)


def test_jax_in_jax_out(device):
    jax = pytest.importorskip("jax")
    try:
        own = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    except RuntimeError as why:
        pytest.skip(str(why))
    with jax.default_device(own):
        q, k = (jax.random.normal(jax.random.key(i), (1, 40, 2, 64), "bfloat16") for i in range(2))
        g = jax.numpy.full((1, 40, 2), -0.1)
        o, lse = flashdelta.attention_forward(q, k, k, return_lse=True)
        made = flashdelta.gated_delta_forward(q, k, k, g, g + 1, qk_l2norm=True, output_final_state=True)
        assert isinstance(o, jax.Array) and o.dtype == "bfloat16"
        assert {x.device for x in (o, lse, *made[:2])} == {own}
        tq, tk, got, state = (torch.tensor(np.asarray(x.astype("float32"))) for x in (q, k, o, made.final_state))
    assert_close(got, attention(tq, tk, tk)[0], torch.bfloat16)
    again = flashdelta.gated_delta_forward(
        tq.bfloat16(), tk.bfloat16(), tk.bfloat16(), torch.full((1, 40, 2), -0.1), torch.full((1, 40, 2), 0.9),
        qk_l2norm=True, output_final_state=True,
    )  # fmt: skip
    assert_close(state, again.final_state, torch.bfloat16)


def test_jax_arrays_are_not_written():
    jax = pytest.importorskip("jax")
    x, g = jax.numpy.zeros((1, 4, 1, 64)), jax.numpy.zeros((1, 4, 1))
    state = jax.numpy.zeros((1, 1, 64, 64))
    with pytest.raises(ValueError, match="o: expected None, since a .* may not be written"):
        flashdelta.attention_forward(x, x, x, o=x)
    with pytest.raises(ValueError, match="final_state: expected None"):
        flashdelta.gated_delta_forward(x, x, x, g, g, initial_state=state, final_state=state)


@pytest.mark.gpu
def test_cupy_in_cupy_out():
    cupy = pytest.importorskip("cupy")
    q = cupy.random.standard_normal((1, 40, 2, 64), dtype=cupy.float32).astype(cupy.float16)
    with cupy.cuda.Stream():
        o = flashdelta.attention_forward(q, q, q, causal=True)
        assert isinstance(o, cupy.ndarray)
        got = torch.tensor(o.get().astype(np.float32))
    t = torch.tensor(q.get().astype(np.float32))
    assert_close(got, attention(t, t, t, causal=True)[0], torch.float16)


def test_jax_inside_jit_is_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match="q: expected a jax array outside jit"):
        jax.jit(lambda x: flashdelta.attention_forward(x, x, x))(jax.numpy.zeros((1, 4, 1, 64)))


Q = torch.zeros(1, 8, 4, 64, dtype=torch.bfloat16)
G = torch.zeros(1, 8, 4)


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: flashdelta.attention_forward([1.0], Q, Q), TypeError, "q: expected a torch, numpy, cupy or jax array"),
        (lambda: flashdelta.attention_forward(Q, None, Q), TypeError, "k: expected .* got NoneType"),
        (lambda: flashdelta.attention_forward(Q.to("meta"), Q, Q), TypeError, "q: expected .* DLPack can view"),
        (lambda: flashdelta.attention_forward(Q, Q.double(), Q), TypeError, "k: expected bfloat16, float16"),
        (lambda: flashdelta.attention_forward(Q, Q.half(), Q), ValueError, "k"),
        (lambda: flashdelta.attention_forward(Q, Q[:, :, :3], Q[:, :, :3]), ValueError, "head count"),
        (lambda: flashdelta.attention_forward(Q[0, 0], Q, Q, return_lse=True), ValueError, "q: expected 4 dimensions"),
        (lambda: flashdelta.attention_forward(Q.transpose(2, 3), Q, Q), ValueError, "q"),
        (lambda: flashdelta.attention_forward(Q, Q, Q, backend="gpu"), ValueError, "backend: expected one of"),
        (lambda: flashdelta.attention_forward(Q, Q, Q, backend="cuda"), ValueError, "backend: .*cpu, got cuda"),
        (lambda: flashdelta.attention_forward(Q, Q, Q, arch=75), ValueError, "arch"),
        (lambda: flashdelta.attention_forward(Q, Q, Q, cu_seqlens_q=[0, 8]), TypeError, "cu_seqlens_q: expected"),
        (lambda: flashdelta.gated_delta_forward(Q, Q, Q), ValueError, "g"),
        (lambda: flashdelta.gated_delta_forward(Q, Q, Q, G, G, state_layout="v"), ValueError, "state_la"),
        (lambda: flashdelta.gated_delta_forward(Q, Q, Q, G, G, checkpoint_every=7), ValueError, "check"),
    ],
)  # fmt: skip
def test_wrong_input_gets_one_line(call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(flashdelta.backends()["emulator"] != "", reason="no emulator in this build")
def test_not_supported_says_what_is():
    with pytest.raises(NotImplementedError, match="bf16 and fp16, not fp32; the cpu backend takes all three"):
        flashdelta.attention_forward(Q.float(), Q.float(), Q.float(), backend="emulator")


def test_read_only_output_is_refused():
    q = np.zeros((1, 4, 1, 64), np.float32)
    o = np.zeros_like(q)
    o.flags.writeable = False
    with pytest.raises(ValueError, match="o: expected an array that can be written"):
        flashdelta.attention_forward(q, q, q, o=o)


@pytest.mark.gpu
def test_devices_may_not_be_mixed():
    with pytest.raises(ValueError, match="k: expected an array on cuda:0 like q, got one on cpu"):
        flashdelta.attention_forward(Q.cuda(), Q, Q)


def test_ctrl_c_stops_a_long_call():
    code = (
        "import signal, threading, torch, flashdelta; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "q = torch.randn(1, 30000, 8, 128);"
        "threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start();"
        "flashdelta.attention_forward(q, q, q)"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "KeyboardInterrupt" in done.stderr and time.monotonic() - start < 60
