"""How kernels cut a sequence."""

import pytest

from isingformer._triton import pieces


@pytest.mark.parametrize(
    "tokens, expected",
    [(1, (16, 0)), (17, (32, 0)), (50, (64, 0)), (64, (64, 0)), (65, (64, 16)), (80, (64, 16)), (81, (64, 32)),
     (97, (128, 0)), (128, (128, 0))],
)  # fmt: skip
def test_tokens_are_padded_as_little_as_powers_of_two_allow(tokens, expected):
    assert pieces(tokens) == expected
