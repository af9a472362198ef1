"""What pages have in common: how templates are read, the colours of their legends, what a page may do."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .look import AGAINST, FOR, UNSURE, gradient

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
"""Here are ``base.css``, ``colours.css`` and ``parts.html``, which every page may include."""


def environment(*folders: Path) -> Environment:
    """Templates from these folders: whatever they are given is escaped, and a name that is not given is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def colour_values() -> dict[str, Any]:
    """What ``colours.css`` needs to be told."""
    return {
        "gradients": {"share": gradient("share"), "sign": gradient("sign")},
        "sides": {"above": FOR, "below": AGAINST, "unsure": UNSURE},
    }


def policy_for(script: str) -> str:
    """What a page in one file may do: run this one script, show what it holds itself, ask nobody for anything."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
