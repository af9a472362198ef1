"""The page on exploring is true: its flags and defaults are those of the command, its limits those of the code."""

import re
from pathlib import Path

from isingformer.cli import build_parser
from isingformer.data.image import EXTENSIONS
from isingformer.explore import explorer, server

PAGE = (Path(__file__).resolve().parents[1] / "docs/explore.md").read_text(encoding="utf-8")


def test_the_flags_are_those_of_the_command():
    command = build_parser()._subparsers._group_actions[0].choices["explore"]
    known = {action.option_strings[0]: action.default for action in command._actions if action.option_strings}
    del known["-h"]
    rows = re.findall(r"^\| `(--[a-z-]+)` \|([^|]*)\|", PAGE, re.M)
    assert [flag for flag, _ in rows] == list(known)
    for flag, default in rows:
        said = re.fullmatch(r"`(.*)`", default.strip())
        assert str(known[flag]) == said[1] if said else known[flag] in (None, False), flag


def test_the_limits_are_those_of_the_code():
    text = " ".join(PAGE.split())
    most, pixels = server.MOST_BYTES >> 20, explorer.MOST_PIXELS // 10**6
    assert f"of at most {most} MB and {pixels} million pixels" in text
    assert explorer.MOST_BLUR == 0.25 and "a quarter of the image's side" in text
    formats = re.search(r"Uploads are (.*?) files", text)[1].lower()
    for ending in {
        name.lstrip(".").replace("jpg", "jpeg").replace("tif", "tiff").replace("tifff", "tiff") for name in EXTENSIONS
    }:
        assert ending in formats
