"""What the package needs of an array library: new arrays, the current stream, memory for a workspace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

Array = Any
FLOAT32 = "float32"


class Torch:
    """torch tensors. Outputs, streams and the workspace come through DLPack's exchange table where this torch has one
    (2.10 on): `makes_outputs` says so, and then none of the functions below is asked.
    """

    immutable = False  # whether arrays may be written by nobody but the call that makes them

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.empty_like = torch.empty_like
        self.empty_as = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)
        self.makes_outputs = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")  # _native then needs no help

    def empty(self, like: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
        if dtype is None:
            return like.new_empty(shape)
        return like.new_empty(shape, dtype=getattr(self.torch, dtype))

    def zeros(self, like: Array, shape: Sequence[int], dtype: str) -> Array:
        return like.new_zeros(shape, dtype=getattr(self.torch, dtype))

    def stream(self, like: Array) -> int:
        if self.makes_outputs or not like.is_cuda:
            return 0
        return int(self.torch.cuda.current_stream(like.device).cuda_stream)

    def workspace(self, like: Array) -> Callable[[int], Array] | None:
        if self.makes_outputs or not like.is_cuda:
            return None
        return lambda count: like.new_empty((count,), dtype=self.torch.int32)

    def finish(self, like: Array) -> None:
        """Later work on the same stream waits by itself."""


class Numpy:
    """numpy arrays, on the CPU. They have no bfloat16 that DLPack knows."""

    makes_outputs = False
    immutable = False

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def empty(self, like: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
        return self.numpy.empty(shape, dtype=like.dtype if dtype is None else dtype)

    def zeros(self, like: Array, shape: Sequence[int], dtype: str) -> Array:
        return self.numpy.zeros(shape, dtype=dtype)

    def stream(self, like: Array) -> int:
        return 0

    def workspace(self, like: Array) -> Callable[[int], Array] | None:
        return None

    def finish(self, like: Array) -> None:
        pass


class Cupy:
    """cupy arrays, on cupy's current stream."""

    makes_outputs = False
    immutable = False

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def empty(self, like: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
        with like.device:
            return self.cupy.empty(shape, dtype=like.dtype if dtype is None else dtype)

    def zeros(self, like: Array, shape: Sequence[int], dtype: str) -> Array:
        with like.device:
            return self.cupy.zeros(shape, dtype=dtype)

    def stream(self, like: Array) -> int:
        return int(self.cupy.cuda.get_current_stream(like.device.id).ptr)

    def workspace(self, like: Array) -> Callable[[int], Array] | None:
        return lambda count: self.empty(like, (count,), "int32")

    def finish(self, like: Array) -> None:
        pass


class Jax:
    """jax arrays, outside jit. jax shows no streams, so a call on a card waits for its result before it returns.

    Outputs are new jax arrays that the kernel fills before anybody else has seen them.
    """

    makes_outputs = False
    immutable = True

    def __init__(self) -> None:
        import jax

        self.jax = jax

    def empty(self, like: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
        if isinstance(like, self.jax.core.Tracer):
            raise TypeError("q: expected a jax array outside jit, got one that is being traced")
        return self.zeros(like, shape, like.dtype if dtype is None else dtype)

    def zeros(self, like: Array, shape: Sequence[int], dtype: Any) -> Array:
        made = self.jax.numpy.zeros(shape, dtype=dtype, device=like.sharding)
        return made.block_until_ready()

    def stream(self, like: Array) -> int:
        return 0

    def workspace(self, like: Array) -> Callable[[int], Array] | None:
        return lambda count: self.empty(like, (count,), "int32")

    def finish(self, like: Array) -> None:
        device = next(iter(like.devices()))
        if device.platform == "gpu":
            from . import _native

            _native.synchronize(device.local_hardware_id or 0)


_kinds: dict[str, type] = {"torch": Torch, "numpy": Numpy, "cupy": Cupy, "jax": Jax, "jaxlib": Jax}
_made: dict[type, Any] = {}
made_for = _made.get  # the functions of a type's library, where framework() has been asked before


def framework(array: Array, name: str = "q") -> Any:
    """The functions of an array's library. TypeError where it is none that is known."""
    kind = type(array)
    found = _made.get(kind)
    if found is not None:
        return found
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _kinds and root in sys.modules and hasattr(array, "__dlpack__"):
            maker = _kinds[root]
            _made[kind] = next((made for made in _made.values() if type(made) is maker), None) or maker()
            return _made[kind]
    raise TypeError(f"{name}: expected a torch, numpy, cupy or jax array, got {kind.__name__}")
