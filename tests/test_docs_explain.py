"""The page on explanations is true: snippets run, flags are those of the command, figures those of the results."""

import json
import re
from pathlib import Path

import pytest

from isingformer.cli import build_parser
from isingformer.explain.bottlenecks import FLAGGED
from isingformer.explain.traces import Way

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/explain.md").read_text(encoding="utf-8")
RESULTS, TIMES = (
    json.loads((ROOT / f"results/{name}.json").read_text("utf-8")) for name in ("explain", "explain-time")
)
NAMES = {"ours": "`isf.ViT`", "transformers": "`ViTForImageClassification`"}


def with_sd(row, name):
    return f"{row[name]:.3f} ({row['sd, ' + name]:.3f})"


def choice_table():
    lines = ["| gradient | deletion | insertion | gap |", "| --- | --- | --- | --- |"]
    for row in RESULTS["choice"]:
        cells = [with_sd(row, name) for name in ("deletion, mean", "insertion, mean")]
        lines.append(f"| {row['order']} | {cells[0]} | {cells[1]} | {row['gap, mean']:.3f} |")
    return "\n".join(lines) + "\n"


def faithful_table():
    lines = ["| order | deletion | insertion | images worse than random |", "| --- | --- | --- | --- |"]
    for row in RESULTS["rows"]:
        cells = [with_sd(row, name) for name in ("deletion, mean", "insertion, mean")]
        worse = "" if row["order"] == "random" else f"{row['images worse than random']:.0%}"
        lines.append(f"| {row['order']} | {cells[0]} | {cells[1]} | {worse} |")
    return "\n".join(lines) + "\n"


def time_table():
    lines = ["| one image, T = 50 | threads | by the clock | of the processor |", "| --- | --- | --- | --- |"]
    for row in TIMES["rows"]:
        clock = f"{row['median']:.2f} s, at worst {row['worst']:.2f} s"
        lines.append(f"| {NAMES[row['model']]} | {row['threads']} | {clock} | {row['processor']:.2f} s |")
    return "\n".join(lines) + "\n"


def test_the_snippets_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
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


def test_so_are_those_of_todays_defaults():
    found = json.loads((ROOT / "results/explain-node-noise.json").read_text("utf-8"))
    areas = {row["order"]: f"{row['deletion, mean']:.3f}" for row in found["rows"]}
    gaps = {row["order"]: f"{row['gap, mean']:.3f}" for row in found["choice"]}
    said = PAGE.replace("\n", " ")
    assert (
        f"{areas['relevance']} for relevance, {areas['rollout']} for rollout, {areas['raw attention']} for raw" in said
    )
    assert f"and {areas['random']} for random order" in said and found["chosen"] == "2 points"
    assert f"a gap of {gaps['2 points']} against {gaps['4 points']} of four" in said and Way().steps == 4


@pytest.mark.parametrize(
    ("name", "made"), [("choice", choice_table), ("faithful", faithful_table), ("time", time_table)]
)
def test_the_figures_are_those_of_the_results(name, made):
    assert PAGE.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0] == made()


def test_the_default_is_what_the_rule_chose():
    close, gaps = RESULTS["settings"]["close"], {row["order"]: row["gap, mean"] for row in RESULTS["choice"]}
    fitting = [name for name, gap in gaps.items() if gap >= max(gaps.values()) - close]
    assert fitting[0] == RESULTS["chosen"] == f"{Way.steps} points"  # they are in the order of their cost
    assert f"at\nmost {close} below the largest" in PAGE and f"on {RESULTS['settings']['images']} test images" in PAGE
    assert f"{RESULTS['settings']['images']} for every seed" in PAGE and len(RESULTS["accuracy"]) == 3


def test_what_is_called_over_regularised_is_so():
    assert f"mean `q` is more than {FLAGGED} higher" in PAGE


def test_what_is_said_of_the_time_is_so():
    assert f"a load of {TIMES['load']:.0f}" in PAGE
    assert TIMES["settings"]["limit"] == 3.0 and all(row["worst"] <= 3.0 for row in TIMES["rows"])
