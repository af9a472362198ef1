"""What the README shows works, and its numbers are those of the results."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from isingformer.cli import build_parser
from isingformer.study import read_plan

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


QUICKSTART, OWN_LOOP = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_quickstart_is_ten_lines_and_trains_a_model_that_knows_digits(tmp_path, monkeypatch, capsys):
    assert len([line for line in QUICKSTART.splitlines() if line]) <= 10
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(QUICKSTART, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    accuracy = float(re.search(r"accuracy +([\d.]+)", printed)[1])
    assert accuracy >= 0.9
    assert len(re.findall(r"^\d: [\d.]+ \([\d.]+ to [\d.]+\), nats [\d.]+$", printed, re.M)) == 8
    assert names["q"]["head"].shape == (10, 64)


@pytest.mark.parametrize("line", re.findall(r"^isingformer .*", README, re.M))
def test_the_commands_are_understood(line):
    build_parser().parse_args(shlex.split(line, comments=True)[1:])


def test_the_snippet_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(OWN_LOOP, "README.md", "exec"), names)
    assert names["p"].probs.shape == (8, 10) and not hasattr(names["plain"].head, "posterior")
    assert (tmp_path / "saved" / "isingformer.json").exists()


ROWS = {
    "results/step-h200-graph.json": ("ising, mask",),
    "results/step-h200.json": ("ising, mask",),
    "results/step-cpu.json": ("ising, mask", "ising, local"),
}


def test_the_costs_are_those_of_the_results():
    table = README.split("<!-- costs:begin -->")[1].split("<!-- costs:end -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    wanted = [(file, step) for file, steps in ROWS.items() for step in steps]
    assert len(cells) == len(wanted)
    for (_, time, memory, source), (file, step) in zip(cells, wanted, strict=True):
        assert source == f"`{file}`"
        (row,) = (row for row in json.loads((ROOT / file).read_text())["rows"] if row["step"] == step)
        assert time == f"{row['time / plain']:.2f}"
        assert memory == (f"{row['memory / plain']:.2f}" if "memory / plain" in row else "")


def test_the_first_training_is_said_to_take_and_reach_what_it_did():
    found = json.loads((ROOT / "results/train-digits.json").read_text())
    minutes, seconds = re.fullmatch(r"(\d+)m([\d.]+)s", found["real"]).groups()
    (accuracy,) = re.findall(r"^  accuracy +([\d.]+)", "\n".join(found["printed"]), re.M)
    said = re.search(r"takes (\d+) s on one core and its model gets ([\d.]+)\nof the test images right", README)
    assert said.groups() == (str(round(60 * int(minutes) + float(seconds))), accuracy)


def test_what_the_demo_is_said_to_print_was_printed():
    found = json.loads((ROOT / "results/study-quick.json").read_text())
    assert found["printed"][-1] in README.splitlines()
    assert found["command"] in re.search(r"^demo:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.M)[1]
    trainings, seconds = re.match(r"(\d+) of \1 trainings done, (\d+) s", found["printed"][-1]).groups()
    assert int(trainings) == read_plan("quick").trainings and int(seconds) <= 300


def test_what_the_example_is_said_to_print_was_printed():
    (block,) = re.findall(r"```\n(360 test images.*?)```", README, re.DOTALL)
    assert set(block.strip("\n").splitlines()) <= set(json.loads((ROOT / "results/digits.json").read_text())["printed"])


def test_the_guides_costs_are_those_of_the_results():
    guide = (ROOT / "docs/guide.md").read_text().split("## What it costs")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| (`mask`|`local`|dropout|curvature alone)[^|]*\| ([\d.]+) \|(?: ([\d.]+) \|)? `(results/\S+)`", guide, re.M
    )
    assert len(rows) == 8
    for kind, time, memory, file in rows:
        step = {"`mask`": "ising, mask", "`local`": "ising, local"}.get(kind, kind)
        (row,) = (row for row in json.loads((ROOT / file).read_text())["rows"] if row["step"] == step)
        assert time == f"{row['time / plain']:.2f}"
        assert memory == (f"{row['memory / plain']:.2f}" if "memory / plain" in row else "")


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!https?:)[^)]+)\)", README))
def test_links_lead_somewhere(link):
    file, _, place = link.partition("#")
    assert (ROOT / file).exists()
    if place:
        headings = re.findall(r"^#+ (.*)", (ROOT / file).read_text(), re.M)
        assert place in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@pytest.mark.slow
def test_the_example_runs_and_says_how_sure_it_is():
    done = subprocess.run(
        [sys.executable, "examples/digits.py", "--epochs", "6"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"360 test images: accuracy ([\d.]+)", done.stdout)
    assert found and float(found[1]) > 0.5
    assert "epistemic" in done.stdout


@pytest.mark.parametrize("wrong", [["--delta", "1.5"], ["--epochs", "none"]])
def test_the_example_refuses_wrong_input_in_one_line(wrong):
    done = subprocess.run([sys.executable, "examples/digits.py", *wrong], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and done.stderr.strip().splitlines()[-1].startswith("digits.py: error:")
