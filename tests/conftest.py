"""What several test files share."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: threads only wait for each other on tensors this small

import pytest
import torch

import isingformer as isf

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
    signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = {
    "image_size": 4, "channels": 1, "patch": 2, "width": 8, "depth": 2, "heads": 2, "mlp": 12, "classes": 3,
}  # fmt: skip


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def tiny():
    """A function that makes a ViT small enough for exact references, its weights large enough to matter."""

    def make(dtype=torch.float64, seed=0, **changes):
        torch.manual_seed(seed)
        model = isf.ViT(**{**TINY, **changes}).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return model

    return make


@pytest.fixture
def batch():
    """A function that makes images and labels that fit `tiny`."""

    def make(n=6, dtype=torch.float64, seed=1):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(n, 1, 4, 4, dtype=dtype, generator=generator)
        return images, torch.randint(3, (n,), generator=generator)

    return make


@pytest.fixture(scope="module")
def browser():
    """A real browser; a test that takes it has imported `browsing`, which skips where there is none."""
    from browsing import launched

    with launched() as found:
        yield found
