"""Figures inside a web page: one SVG that follows the page's light or dark colours."""

from __future__ import annotations

import re
from urllib.parse import quote

from .style import DARK_FAINT, DARK_INK, DARK_QUIET, FAINT, FONT, INK, LOOKS, QUIET, SPARE

DARK = {
    INK: DARK_INK, QUIET: DARK_QUIET, FAINT: DARK_FAINT,
    **{style.colour: style.dark for style in LOOKS.values()}, **{colour: dark for colour, dark, *_ in SPARE},
}  # fmt: skip
"""Each colour of a figure, and what it is on a dark page."""

PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def themed(svg: str) -> str:
    """An SVG of ours whose colours become those of `DARK` where the reader's system, or the page, is dark."""
    names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
    light = "".join(f"{name}:{colour};" for colour, name in names.items())
    dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
    rules = f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    svg = re.sub(r"<metadata>.*?</metadata>|<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\b(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {_variable(names, m[2])}", svg)
    svg = svg.replace(f"'{FONT}'", PAGE_FONT.replace("'", ""))
    return re.sub(r"<svg\b[^>]*>", lambda m: m[0] + rules, svg.strip(), count=1)


def data_uri(svg: str) -> str:
    """An SVG as an address that holds it."""
    return "data:image/svg+xml," + quote(re.sub(r"\s+", " ", svg), safe=" /:;=,()'!*@$&+?-_.~")


def _variable(names: dict[str, str], colour: str) -> str:
    return f"var({names[colour]})" if colour in names else colour
