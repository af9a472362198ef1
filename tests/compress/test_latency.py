"""How long a pass takes: that it is measured, not how long."""

import pytest

from isingformer.compress import latency_ms


def test_it_is_a_time_and_leaves_the_mode_alone(tiny):
    model = tiny().train()
    assert 0 < latency_ms(model, batch=2, passes=3) < 60_000
    assert model.training


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"passes": 0}], ids=["batch", "passes"])
def test_nothing_cannot_be_timed(tiny, wrong):
    with pytest.raises(ValueError, match="must be 1 or more"):
        latency_ms(tiny(), **wrong)
