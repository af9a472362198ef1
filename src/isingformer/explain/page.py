"""The page of an explanation: one HTML file that opens from disk, with everything it needs inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._files import make_folder, write_text
from .bottlenecks import FLAGGED
from .frame import TEMPLATES, colour_values, environment, policy_for
from .image_view import image_view
from .page_view import network_view, training_view

if TYPE_CHECKING:
    from ..methods import History
    from .bottlenecks import Bottlenecks
    from .explanation import Explanation

OPEN = 3
"""Images that are unfolded at first."""


def write_page(
    found: Explanation,
    file: Path,
    *,
    title: str,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    history: History | None = None,
    bottlenecks: Bottlenecks | None = None,
) -> Path:
    """Write the page, whole or not at all; see `Explanation.write_page`."""
    page = rendered_page(
        found, title=title, classes=classes, names=names, history=history, bottlenecks=bottlenecks
    )  # fmt: skip
    make_folder(file.parent)
    write_text(file, page)
    return file


def rendered_page(
    found: Explanation,
    *,
    title: str,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    history: History | None = None,
    bottlenecks: Bottlenecks | None = None,
) -> str:
    """The page as text."""
    script = (TEMPLATES / "explain.js").read_text(encoding="utf-8").strip()
    if names is not None and len(names) != len(found):
        raise ValueError(f"write_page: names must be {len(found)}, one an image, got {len(names)}")
    called = list(names) if names is not None else [f"Image {n + 1}" for n in range(len(found))]
    template = environment(TEMPLATES).get_template("explain.html")
    return template.render(
        title=title,
        images=[image_view(found, n, called[n], classes) for n in range(len(found))],
        network=network_view(found.architecture, found.level, bottlenecks),
        training=None if history is None else training_view(found.architecture, history),
        networks=len(found.prediction.samples),
        level=f"{100 * found.level:g}%",
        bottlenecks=bottlenecks is not None,
        flagged=FLAGGED,
        **colour_values(),
        unfolded=OPEN,
        script=script,
        policy=policy_for(script),
    )
