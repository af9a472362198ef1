"""Checks of plain values: one line that says what was given and what is expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def check(what: str, value: object, fine: bool, expected: str) -> None:
    """Raise unless the value is fine."""
    if not fine:
        raise ValueError(f"{what} must be {expected}, got {value!r}")


def whole(value: object, least: int = 1) -> bool:
    """Whether it is a whole number from `least` on."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def several(what: str, values: Any) -> tuple[Any, ...]:
    """A list as a tuple, if it has something in it and nothing twice."""
    check(what, values, isinstance(values, list | tuple), "a list")
    if not values:
        raise ValueError(f"{what} has nothing in it, so the grid is empty; give at least one")
    return distinct(what, values)


def distinct(what: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, if none is there twice."""
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice:
        raise ValueError(f"{what} has {twice[0]!r} twice; give it once")
    return tuple(values)


def known_keys(where: str, given: Mapping[str, Any], kind: Any, without: Iterable[str] = ()) -> None:
    """Raise unless the keys are fields of a dataclass, and all that it needs are there."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in without}
    for key in given:
        if key not in fields:
            raise ValueError(f"unknown key {key!r} in {where}; expected some of {', '.join(fields)}")
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in given:
            raise ValueError(f"{where} has no {name}; add it")
