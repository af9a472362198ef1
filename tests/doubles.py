"""Float64 numbers by seed."""

import torch

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=DOUBLE, generator=generator(seed))
