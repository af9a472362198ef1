"""The methods by name, as the command line and the studies call them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .dropconnect import DropConnect
from .dropout import Dropout
from .ising import Ising
from .method import Method, Rate
from .plain import Plain

METHODS: dict[str, tuple[Callable[..., Method], str | None]] = {
    "ising": (Ising, "delta"),
    "ising-paper": (Ising.paper, "delta"),
    "ising-paper-obd": (Ising.paper_obd, "delta"),
    "dropconnect": (DropConnect, "p"),
    "dropout": (Dropout, "p"),
    "plain": (Plain, None),
}
"""How each method is made, and which of its settings is the drop rate."""


def called(about: Mapping[str, Any]) -> str:
    """What the command line calls a method by its ``name`` and ``settings``, of a preset all but the rate."""
    name, settings = str(about["name"]), about.get("settings", {})

    def without(rate: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        return {setting: value for setting, value in given.items() if setting != rate}

    presets = ((preset, make(), rate) for preset, (make, rate) in METHODS.items())
    same = (
        preset
        for preset, method, rate in presets
        if method.name == name and without(rate, method.settings()) == without(rate, settings)
    )
    return next(same, name)


def named_method(name: str, rate: Rate | None = None, settings: Mapping[str, Any] | None = None) -> Method:
    """A method by its name.

    Args:
        name: a key of `METHODS`; the presets of the paper are among them.
        rate: the drop rate: delta of the ising methods, p of the others, or a tuple of one a replica; None: the
            default. `plain` has none.
        settings: any other settings, by the names that the method's class gives them.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    make, rate_name = METHODS[name]
    if rate is not None and rate_name is None:
        raise ValueError(f"{name} has no drop rate, got {rate}; leave it out")
    method = make() if rate is None or rate_name is None else make(**{rate_name: rate})
    known = method.settings()
    for setting, value in (settings or {}).items():
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; it has {', '.join(known)}")
        if setting == rate_name and rate is not None:
            raise ValueError(f"{setting} of {name} is given twice, {rate} and {value}; give it once")
        if isinstance(known[setting], bool) and not isinstance(value, bool):  # "no" would count as true
            raise ValueError(f"{setting} of {name} must be True or False, got {value!r}")
    try:
        return dataclasses.replace(method, **(settings or {}))
    except TypeError:  # a word where a number should be
        given = ", ".join(f"{setting}={value!r}" for setting, value in (settings or {}).items())
        raise ValueError(f"{name} cannot use {given}; give a number where one is expected") from None
