"""A process that is killed makes the other stop with an error; it does not wait for ever."""

import pytest

import sharded_ranks
from ranks import start

pytestmark = pytest.mark.slow
LONGEST = 60
"""Seconds: starting takes some five, noticing a closed connection less than one; the group's own limit is 60."""


@pytest.mark.parametrize("scenario", ["dies with ddp", "dies without", "dies sharded"])
def test_when_one_rank_is_killed_the_other_ends_with_an_error(tmp_path, scenario):
    left, killed = start(scenario, tmp_path, *([sharded_ranks.__file__] if scenario == "dies sharded" else []))
    try:
        _, complaints = left.communicate(timeout=LONGEST)
        assert left.returncode not in (0, None)
        assert killed.wait(timeout=LONGEST) == -9
        if scenario == "dies without":
            assert "rank 0 could not add up curvature with the other processes: one of them has stopped" in complaints
        assert not (tmp_path / "0.safetensors").exists()
    finally:
        for process in (left, killed):
            process.kill()
            process.communicate()
