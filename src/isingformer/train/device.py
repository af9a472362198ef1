"""Where a training runs, in what precision, on how many threads, and whether a GPU must repeat itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .recipe import SMALL


def find_device(name: str) -> torch.device:
    """The device by name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} is not here: torch sees {torch.cuda.device_count()} GPUs; use 'cpu'")
    return device


def threads_for(network: Mapping[str, Any], device: torch.device) -> int:
    """How many CPU threads to use: one for a small network on a CPU, where several would mostly wait for each other."""
    small = device.type == "cpu" and network["width"] <= SMALL["width"]
    return 1 if small else torch.get_num_threads()


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Inside, torch uses so many CPU threads: the same number again gives the same sums, bit by bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def precision(name: str, device: torch.device) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """What a forward pass runs under: bfloat16 autocast, or nothing."""
    gains = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "bfloat16" or (name == "auto" and gains):
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Inside, a GPU repeats itself bit by bit."""
    if not on:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first product
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
