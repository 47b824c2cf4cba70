"""Other implementations of a workload: those of torch, and those packages that import here."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import torch

from .workloads import Workload


def versions() -> dict[str, str]:
    """The peers' packages that import here, with their versions."""
    found: dict[str, str] = {"torch": str(torch.__version__)}
    for name in ("fla", "flash_attn", "flashinfer", "flash_qla"):
        with contextlib.suppress(Exception):
            found[name] = str(getattr(importlib.import_module(name), "__version__", "?"))
    return found


def peers(work: Workload) -> dict[str, Callable[[], Any]]:
    """Calls by name, each on the same inputs in the layout that the peer takes. One that fails says so when called."""
    if not work.dense:
        return {}
    return _attention(work) if work.operation == "attention_forward" else _delta(work)


def _attention(work: Workload) -> dict[str, Callable[[], Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (work.inputs[name] for name in "qkv")
    turned_q, turned_k, turned_v = (x.transpose(1, 2) for x in (q, k, v))
    causal = work.options["causal"]

    def sdpa(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    turned_q, turned_k, turned_v, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]
                )

        return call

    found = {"SDPA flash": sdpa(SDPBackend.FLASH_ATTENTION)}
    if q.is_cuda:
        found["SDPA cuDNN"] = sdpa(SDPBackend.CUDNN_ATTENTION)
    with contextlib.suppress(Exception):
        flash_attn = importlib.import_module("flash_attn")
        found["flash-attn"] = lambda: flash_attn.flash_attn_func(q, k, v, causal=causal)
    return found


def _delta(work: Workload) -> dict[str, Callable[[], Any]]:
    q, k, v, g, beta = (work.inputs[name] for name in ("q", "k", "v", "g", "beta"))
    found: dict[str, Callable[[], Any]] = {}
    if q.is_cuda:
        with contextlib.suppress(Exception):
            fla = importlib.import_module("fla.ops.gated_delta_rule")
            found["flash-linear-attention"] = lambda: fla.chunk_gated_delta_rule(
                q, k, v, g=g, beta=beta, output_final_state=True
            )
        with contextlib.suppress(Exception):
            qla = importlib.import_module("flash_qla")
            found["FlashQLA"] = lambda: qla.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)
        with contextlib.suppress(Exception):
            found["FlashInfer"] = _flashinfer(q, k, v, g, beta)
    else:
        with contextlib.suppress(Exception):
            module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
            rule = module.torch_chunk_gated_delta_rule
            found["transformers (torch)"] = lambda: rule(q, k, v, g=g, beta=beta, output_final_state=True)
    return found


def _flashinfer(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Callable[[], Any]:
    rule = importlib.import_module("flashinfer.gdn_prefill").chunk_gated_delta_rule
    batch, tokens = q.shape[:2]
    flat = [x.flatten(0, 1).contiguous() for x in (q, k, v, g.exp(), beta)]
    cu = torch.arange(batch + 1, device=q.device) * tokens
    state = q.new_empty((batch, v.shape[2], v.shape[3], q.shape[3]), dtype=torch.float32)
    return lambda: rule(*flat, output_final_state=True, cu_seqlens=cu, output_state=state)
