"""What the drop-ins share: refusals, and inputs as the library takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def refuse(package: str, argument: str, value: Any, supported: str) -> None:
    """Raises for an argument that its package has and flashdelta has not."""
    shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise NotImplementedError(f"{package}: {argument}={shown} is not supported; supported: {supported}")


def refuse_unknown(function: str, keywords: dict[str, Any]) -> None:
    if keywords:
        raise TypeError(f"{function}() got an unexpected keyword argument '{next(iter(keywords))}'")


def rows(x: Tensor) -> Tensor:
    """A view or copy whose last dimension is contiguous."""
    if x.is_contiguous():  # mostly; and cheaper to ask than a stride
        return x
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def float_or(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Gates and betas are fp32 or q's dtype."""
    if x is None:
        return None
    return rows(x if x.dtype is torch.float32 or x.dtype is dtype else x.float())


def float_rows(x: Tensor | None) -> Tensor | None:
    return None if x is None else rows(x if x.dtype is torch.float32 else x.float())


def require_tensors(**tensors: Any) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch tensor, got {type(x).__name__}")


def require_packed(q: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is None:
        return
    if q.shape[0] != 1:
        raise ValueError(f"q: expected a batch of 1 with cu_seqlens, got {q.shape[0]}")
    if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
        raise ValueError(
            f"initial_state: expected {len(cu_seqlens) - 1} states, one a sequence of cu_seqlens, got "
            f"{initial_state.shape[0]}"
        )
