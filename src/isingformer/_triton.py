"""Triton where there is one, and how its kernels cut a sequence: tiles have powers of two of rows.

Modules with kernels take `triton` and `tl` from here and define the kernels where `triton` is not None.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without GPU support
    triton = tl = None

__all__ = ["FEWEST", "pieces", "tl", "triton"]

FEWEST = 16
"""Rows of the smallest product that the matrix units take."""


def pieces(tokens: int) -> tuple[int, int]:
    """Tokens as one padded piece, or two where that is smaller: 65, patches and the class token, as 64 + 16."""
    whole, half = _padded(tokens), _padded(tokens) // 2
    if half >= FEWEST and (rest := _padded(tokens - half)) < half:
        return half, rest
    return whole, 0


def _padded(tokens: int) -> int:
    """The power of two, from 16 on, that holds so many tokens."""
    return max(FEWEST, 1 << (tokens - 1).bit_length())
