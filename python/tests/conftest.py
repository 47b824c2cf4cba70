"""Cards are looked for once; what needs one that is not there is skipped, and pytest counts it."""

import os

import pytest
import torch

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # jax would take most of a card that torch shares


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "sm120: needs a card with compute capability 12.x")


def pytest_collection_modifyitems(items):
    there = torch.cuda.is_available()
    major = torch.cuda.get_device_capability()[0] if there else 0
    for item in items:
        if item.get_closest_marker("gpu") and not there:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.get_closest_marker("sm120") and major != 12:
            item.add_marker(pytest.mark.skip(reason="no card with compute capability 12.x"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20260101)
