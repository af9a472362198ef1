"""Damaged files for the tests of readers, and what an error about one must look like."""

import contextlib
import tracemalloc

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from isingformer.data import DataError

fuzz = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def refusal(read, *names, error=DataError):
    """The message with which `read` refuses its file: one line that has all the names in it."""
    with pytest.raises(error) as caught:
        read()
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    for name in names:
        assert str(name) in message, message
    return message


@contextlib.contextmanager
def little_memory(most=3_000_000):
    """Fail if more bytes than this were held at any time inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def damaged(whole: bytes):
    """Strategy: the file with bytes changed, cut, put in or put behind."""
    place, junk = st.integers(0, len(whole)), st.binary(min_size=1, max_size=8)
    early = st.integers(0, min(len(whole), 160))  # headers are where damage is most inventive
    return st.one_of(
        place.map(lambda n: whole[:n]),
        st.tuples(st.one_of(place, early), junk).map(lambda a: whole[: a[0]] + a[1] + whole[a[0] + len(a[1]) :]),
        st.tuples(st.one_of(place, early), junk).map(lambda a: whole[: a[0]] + a[1] + whole[a[0] :]),
        st.tuples(place, place).map(lambda a: whole[: min(a)] + whole[max(a) :]),
        junk.map(lambda b: whole + b),
    )
