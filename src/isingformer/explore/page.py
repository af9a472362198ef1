"""The three files of the page: one of words, one of looks, one that moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..explain.frame import TEMPLATES as SHARED
from ..explain.frame import colour_values, environment
from ..methods import called
from .explorer import Explorer

TEMPLATES = Path(__file__).parent / "templates"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do: run and look as this server says, ask this server, show pictures that it was handed."""
DARK = 128
"""A training mean below this says that pictures are light on dark, and drawings start so."""
PAPER = 280
"""Pixels of the longer side of what is drawn on."""
BRUSH = 24
"""Its width there, and no less than a pixel of the run's images."""
FIRST = 50
"""T before the reader chooses another."""


def page_files(explorer: Explorer) -> dict[str, tuple[str, bytes]]:
    """Address to type and content."""
    templates = environment(TEMPLATES, SHARED)
    about = explorer.run.about
    height, width = explorer.size
    scale = PAPER / max(height, width)
    values: dict[str, Any] = {
        "run": explorer.run.folder.resolve().name, "method": called(about["method"]), "data": about["data"]["name"],
        "level": f"{100 * explorer.level:g}%", "most": explorer.most, "first": min(FIRST, explorer.most),
        "classes": explorer.classes, "grid": explorer.grid, "size": explorer.size, "channels": explorer.channels,
        "paper": (round(scale * height), round(scale * width)), "brush": max(BRUSH, min(70, round(scale))),
        "blur": explorer.most_blur, "pools": explorer.pools, "takes_images": explorer.takes_images,
        "inside": explorer.parts is not None, "dark": sum(about["data"]["mean"]) / explorer.channels < DARK,
    }  # fmt: skip
    html = templates.get_template("explore.html").render(**values)
    css = "\n".join(
        templates.get_template(name).render(**colour_values()) for name in ("base.css", "colours.css", "explore.css")
    )
    script = (TEMPLATES / "explore.js").read_text(encoding="utf-8")
    return {
        "/": ("text/html; charset=utf-8", html.encode()),
        "/explore.css": ("text/css; charset=utf-8", css.encode()),
        "/explore.js": ("text/javascript; charset=utf-8", script.encode()),
    }
