"""The page on explanations is true: snippets run, flags are those of the command, figures those of the results."""

import json
import re
from pathlib import Path

from isingformer.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/explain.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "results/explain.json").read_text(encoding="utf-8"))


def faithful_table():
    lines = ["| order | deletion | insertion | images worse than random |", "| --- | --- | --- | --- |"]
    for row in RESULTS["rows"]:
        cells = [
            f"{row[name]:.3f} ({row['sd, ' + name]:.3f})" if f"sd, {name}" in row else f"{row[name]:.3f}"
            for name in ("deletion, mean", "insertion, mean")
        ]
        worse = "" if row["order"] == "random" else f"{row['images worse than random']:.0%}"
        lines.append(f"| {row['order']} | {cells[0]} | {cells[1]} | {worse} |")
    return "\n".join(lines) + "\n"


def test_the_snippets_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(snippet, "explain.md", "exec"), names)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "multiply-adds" in capsys.readouterr().out


def test_the_flags_are_those_of_the_command():
    command = build_parser()._subparsers._group_actions[0].choices["explain"]
    known = {flag for action in command._actions for flag in action.option_strings} - {"-h", "--help"}
    assert set(re.findall(r"^\| `(--[a-z-]+)` \|", PAGE, re.M)) == known


def test_the_figures_are_those_of_the_results():
    table = PAGE.split("<!-- faithful:begin -->\n")[1].split("<!-- faithful:end -->")[0]
    assert table == faithful_table()
    one = RESULTS["explain_one_image"]
    assert f"a median of {one['seconds, median']:.2f} s" in PAGE and one["seconds, worst"] <= one["limit"]
    assert f"{len(RESULTS['accuracy'])} seeds".replace("3", "three") in PAGE and RESULTS["settings"]["images"] == 64
