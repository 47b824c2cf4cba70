"""Softmax attention and the gated delta rule, for GPUs with 99 KiB of shared memory a block, and for CPUs.

Arrays come and go through DLPack: torch, numpy, cupy and jax arrays work, on the CPU and, where the build has the CUDA
backend, on a card. torch is imported only where the caller has imported it.

The library's own names are here; drop-in replacements for other packages are in `flashdelta.compat`, and
`flashdelta.integrations.transformers` puts the kernels under models of the transformers library.
"""

from ._core import Backend, GatedDeltaResult, attention_forward, backends, gated_delta_forward
from ._native import version as _version
from ._plan import Candidate, Plan, plan

__version__: str = _version()

__all__ = [
    "Backend",
    "Candidate",
    "GatedDeltaResult",
    "Plan",
    "__version__",
    "attention_forward",
    "backends",
    "gated_delta_forward",
    "plan",
]
