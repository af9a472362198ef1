"""The page on compression is true: its flags and defaults are those of the command, its names those of the code."""

import json
import re
import statistics
from fnmatch import fnmatch
from pathlib import Path
from typing import get_args

import pytest

import isingformer as isf
from isingformer import cli
from isingformer.compress import Score, compress_run
from isingformer.compress.choose import STRUCTURES
from isingformer.compress.compression import default_structures
from isingformer.compress.export import MOST_BYTES, SUFFIX, Format
from isingformer.compress.recover import recover

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compress.md").read_text(encoding="utf-8")


def table(head):
    """The cells below the head that begins with this word."""
    lines = PAGE.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def actions():
    """The command's flags, with what they are if not given."""
    parser = cli.build_parser()._subparsers._group_actions[0].choices["compress"]
    return {action.option_strings[0]: action for action in parser._actions if action.option_strings}


def test_the_flags_are_those_of_the_command():
    known = {flag: action for flag, action in actions().items() if flag != "-h"}
    listed = {codes(flag)[0]: (codes(default) or [None])[0] for flag, default, _ in table("flag")}
    assert listed.keys() == known.keys()
    for flag, default in listed.items():
        assert known[flag].required if default is None else str(known[flag].default) == default, flag
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= known.keys() | {
        "--data",
        "--method",
        "--delta",
        "--epochs",
        "--jobs",  # of the benchmark
        "--lr",
    }


def test_kinds_scores_and_formats_are_those_of_the_code():
    assert [codes(name)[0] for name, _ in table("kind")] == list(STRUCTURES)
    assert [codes(name)[0] for name, _ in table("score")] == list(get_args(Score))
    (kinds,) = (meaning for flag, _, meaning in table("flag") if codes(flag) == ["--kinds"])
    share, fast, without = (",".join(default_structures(*aims)) for aims in ((0.5,), (None, None, 2.0), ()))
    assert f"None: `{share}`, with `--latency-ms` `{fast}`; without a target `{without}`" in kinds
    (formats,) = (meaning for flag, _, meaning in table("flag") if codes(flag) == ["--export"])
    assert codes(formats) == list(get_args(Format))
    assert f"at most {MOST_BYTES // 10**9} GB" in PAGE
    assert recover.__kwdefaults__["distil"] == 0.5 and "half and half" in PAGE


@pytest.mark.parametrize("format", get_args(Format))
def test_a_folder_holds_the_files_that_are_listed(tmp_path, format):
    recipe = isf.Recipe(epochs=1, width=8, depth=1, heads=1, mlp=8, patch=4, train_size=100)
    run = isf.train("digits", isf.Plain(), recipe, out=tmp_path / "a", progress=False, tensorboard=False)
    compress_run(run, tmp_path / "b", macs=0.5, samples=2, test_size=20, export_as=format)
    listed = {name for names, _ in table("file") for name in codes(names)}
    others = {f"network{suffix}" for name, suffix in SUFFIX.items() if name != format}
    there = {path.name for path in (tmp_path / "b").iterdir()}
    assert all(any(fnmatch(file, name) for name in listed) for file in there)
    assert {name for name in listed if not any(fnmatch(file, name) for file in there)} == others
    about = json.loads((tmp_path / "b" / "run.json").read_text())
    assert about["compressed"]["from"] == str(tmp_path / "a") and about["network"]["blocks"]


def sparse_tables():
    """Time and accuracy of 2:4, as the page has them."""
    found = json.loads((ROOT / "results/sparse24-h200.json").read_text(encoding="utf-8"))
    times = [
        f"| {row['tokens']:,} | {row['dense ms']:.3f} | {row['2:4 ms']:.3f} | {row['faster']:.2f} |"
        for row in found["timing"]
    ]
    kept = [
        f"| {row['by']} | {row['accuracy']:.3f} | {row['tuned accuracy']:.3f} | {row['tuned nll']:.3f} |"
        for row in found["rows"]
    ]
    return "\n".join(
        [
            "| tokens | dense, ms | 2:4, ms | times as fast |", "| --- | --- | --- | --- |", *times, "",
            "| two of four kept by | accuracy | after fine-tuning | NLL then |", "| --- | --- | --- | --- |", *kept, "",
        ]
    )  # fmt: skip


def test_the_figures_of_two_of_four_are_those_of_the_results():
    assert PAGE.split("<!-- sparse24:begin -->\n")[1].split("<!-- sparse24:end -->")[0] == sparse_tables()


def frontier_tables():
    """Accuracy and speed by what chose, as the page has them."""
    found = json.loads((ROOT / "results/compress.json").read_text(encoding="utf-8"))
    columns = [f"faster, {runtime}, batch {n}" for runtime in ("torch", "onnxruntime") for n in (1, 64)]
    spread = {}
    for row in found["rows"]:
        spread.setdefault((row["by"], row["share"]), []).append(row["accuracy"])
    sd = {key: f" ({statistics.stdev(some):.4f})" if len(some) > 1 else "" for key, some in spread.items()}
    rows = [
        f"| {row['by']} | {row['fewer multiply-adds']:.2f} | {row['untuned']:.3f} "
        f"| {row['accuracy']:.4f}{sd[row['by'], row['share']]} "
        f"| {row['drop, points']:.2f} | " + " | ".join(f"{row[name]:.2f}" for name in columns) + " |"
        for row in found["means"]
    ]
    head = ["chosen by", "times fewer multiply-adds", "accuracy at once", "fine-tuned", "points lost", *columns]
    return "\n".join([f"| {' | '.join(head)} |", "| " + " | ".join("---" for _ in head) + " |", *rows, ""])


def test_the_frontier_is_that_of_the_results():
    assert PAGE.split("<!-- frontier:begin -->\n")[1].split("<!-- frontier:end -->")[0] == frontier_tables()


def test_the_readme_quotes_one_row_of_it():
    found = json.loads((ROOT / "results/compress.json").read_text(encoding="utf-8"))
    (row,) = (row for row in found["means"] if (row["by"], row["share"]) == ("ising", 0.15))
    assert (
        f"{row['fewer multiply-adds']:.1f} times fewer multiply-adds and {row['faster, onnxruntime, batch 1']:.1f} "
        f"times the speed in onnxruntime cost {row['drop, points']:.1f} points of accuracy (three seeds, "
        "`results/compress.json`)"
    ) in (ROOT / "README.md").read_text(encoding="utf-8")
    assert found["settings"]["seeds"] == 3
