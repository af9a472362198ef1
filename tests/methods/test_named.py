"""Methods by the names that the command line has for them."""

import json

import pytest

from isingformer.methods import METHODS, called, named_method


def kept(method):
    """As run.json has it."""
    return json.loads(json.dumps({"name": method.name, "settings": method.settings()}))


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_is_called_by_its_name_at_every_rate(name):
    rate = METHODS[name][1] and 0.3
    assert called(kept(named_method(name, rate))) == name
    assert called(kept(named_method(name))) == name


def test_with_other_settings_it_is_no_preset():
    for name in ("ising-paper", "ising-paper-obd", "ising"):
        assert called(kept(named_method(name, settings={"coupling": 0.5}))) == "ising"
    assert called({"name": "ising"}) == "ising"  # nothing is known of its settings
