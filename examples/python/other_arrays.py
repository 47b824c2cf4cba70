"""JAX's and CuPy's arrays through flashdelta: whichever of the two is installed, on the card where there is one.

Arrays go in and come out through DLPack without a copy. jax shows no stream, so a call on its arrays waits for its
result, and it is called outside jit.

    pip install jax flashdelta          # or jax[cuda13], cupy-cuda13x
    python examples/python/other_arrays.py
"""

import numpy as np

import flashdelta


def jax_arrays():
    import jax

    keys = jax.random.split(jax.random.key(0), 3)
    kind = "float32" if jax.default_backend() == "cpu" else "bfloat16"  # the GPU kernels take bf16 and fp16
    return [jax.random.normal(key, (1, 300, 4, 64), kind) for key in keys], jax.numpy


def cupy_arrays():
    import cupy

    if not cupy.cuda.is_available():
        raise ImportError("no CUDA device")
    return [cupy.random.standard_normal((1, 300, 4, 64), dtype=np.float32).astype(np.float16) for _ in range(3)], cupy


def attention(q, k, v):
    """What flashdelta computes, in numpy."""
    q, k, v = (np.moveaxis(np.asarray(x, np.float64), 2, 1) for x in (q, k, v))
    scores = np.tril(np.exp(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5))
    return np.moveaxis(scores @ v / scores.sum(-1, keepdims=True), 1, 2)


def error(got, expected) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected))


def host(x):
    """A numpy array of fp32."""
    x = x.astype("float32")
    return x.get() if hasattr(x, "get") else np.asarray(x)


def main() -> None:
    for make in (jax_arrays, cupy_arrays):
        name = make.__name__.removesuffix("_arrays")
        try:
            (q, k, v), module = make()
        except ImportError as why:
            print(f"{name:5} left out: {why}")
            continue
        o = flashdelta.attention_forward(q, k, v, causal=True)
        gate = module.full(q.shape[:3], -0.1, dtype="float32")
        made = flashdelta.gated_delta_forward(q, k, v, gate, gate + 0.6, qk_l2norm=True, output_final_state=True)
        differs = error(host(o), attention(*map(host, (q, k, v))))
        print(f"{name:5} {type(o).__module__}.{type(o).__name__} {o.dtype} on {o.device}: attention differs from numpy "
              f"by {differs:.1e}; the state has norm {np.linalg.norm(host(made.final_state)):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
