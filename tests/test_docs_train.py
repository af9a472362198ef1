"""The pages on training and data are true: commands parse, tables are those of the code, limits and files as stated."""

import ast
import dataclasses
import inspect
import re
import shlex
import signal
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import torch

import isingformer as isf
from isingformer import cli, metrics
from isingformer.cli import evaluate as evaluate_command
from isingformer.cli import predict as predict_command
from isingformer.cli import train as train_command
from isingformer.data import SOURCES, DataError, archive, download, folder, idx, image, npz
from isingformer.data._reading import MOST_CLASSES
from isingformer.methods.history import THUMBNAIL
from isingformer.predict import LEAST_TEMPERATURE, MOST_TEMPERATURE
from isingformer.train import recipe as recipes
from isingformer.train.q_history import FRAMES
from isingformer.train.run import Outside
from pictures import corners

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TRAIN, DATA = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("train.md", "data.md"))
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
TINY = isf.Recipe(epochs=2, batch=32, width=8, depth=1, heads=1, mlp=8, patch=4, validation=8)


def section(text, title):
    """What stands below a heading, up to the next one of its rank or higher."""
    level, rest = re.search(rf"^(#+) {re.escape(title)}\n(.*)", text, re.M | re.S).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.M)[0]


def rows(text):
    """The cells of all table rows, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    kept = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if "---" not in line + after[:6]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in kept]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def commands(text):
    """The command lines of a page, as lists of arguments: lines of blocks, and `isingformer ...` in the text."""
    blocks = [block[3] for block in FENCED.finditer(text) if block[2] != "python"]
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("isingformer ")]
    lines += re.findall(r"`(isingformer [^`]+)`", FENCED.sub("", text))
    return [shlex.split(line.partition(" >")[0], comments=True)[1:] for line in lines]


def options(command):
    subparsers = cli.build_parser()._subparsers._group_actions[0].choices
    return {flag: action.dest for action in subparsers[command]._actions for flag in action.option_strings}


ALL_COMMANDS = [(page.name, words) for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "words"), ALL_COMMANDS, ids=[f"{p}: {shlex.join(w)}" for p, w in ALL_COMMANDS])
def test_commands_parse(page, words):
    args = cli.build_parser().parse_args(words)
    if args.command == "train":
        train_command.make_method(args), train_command.make_recipe(args)


def test_there_are_commands_of_every_kind():
    assert {words[0] for _, words in ALL_COMMANDS} == set(cli.COMMANDS)


@pytest.mark.parametrize("text", [TRAIN, DATA], ids=["train.md", "data.md"])
def test_flags_that_are_named_exist(text):
    known = {flag for command in cli.COMMANDS for flag in options(command)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {"--nproc-per-node"} <= known  # which is torchrun's
    for command, flag in re.findall(r"`(data|train|evaluate|predict) (--[a-z-]+)", text):
        assert flag in options(command), f"{command} {flag}"


def test_commands_and_snippets_say_the_same():
    """Where both train into one folder: the same data, method and recipe."""
    by_command, by_snippet, names = {}, {}, {"isf": isf}
    for words in commands(TRAIN):
        args = cli.build_parser().parse_args(words)
        if args.command == "train" and args.out:
            asked = (args.data, train_command.make_method(args), train_command.make_recipe(args))
            by_command.setdefault(args.out, set()).add(asked)
    code = ast.parse("\n".join(block[3] for block in FENCED.finditer(TRAIN) if block[2] == "python"))
    for node in ast.walk(code):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("isf.Recipe("):
            names[node.targets[0].id] = eval(ast.unparse(node.value), names)
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isf.train":
            given = {"method": "isf.Ising()", "recipe": "isf.Recipe()"}
            given |= dict(zip(("data", "method", "recipe"), map(ast.unparse, node.args), strict=False))
            given |= {word.arg: ast.unparse(word.value) for word in node.keywords}
            if (out := given["out"].strip("'")) in by_command:
                made = tuple(eval(given[name], names) for name in ("data", "method", "recipe"))
                by_snippet.setdefault(out, set()).add(made)
    assert len(by_snippet) >= 2 and {out: by_command[out] for out in by_snippet} == by_snippet


def test_the_settings_are_those_of_the_recipe():
    table = [row for row in rows(section(TRAIN, "Settings")) if len(row) == 4]
    found = {codes(name)[0]: codes(default)[0] for name, default, _, _ in table}
    assert found == {field.name: repr(field.default) for field in dataclasses.fields(isf.Recipe)}
    flags = {codes(flag)[0]: codes(name)[0] for name, _, flag, _ in table}
    assert flags == {flag: options("train")[flag] for flag in flags}
    about = {codes(name)[0]: meaning for name, _, _, meaning in table}
    for name, large in recipes.REFERENCE.items():
        assert f"None: {large}" in about[name]
        small = recipes.SMALL[name]
        assert small == large or f"and {small} for images of fewer than {recipes.SMALL_IMAGE} rows" in about[name]
    assert f"at most {recipes.MOST_PATCHES} x {recipes.MOST_PATCHES} patches" in about["patch"]


@pytest.mark.parametrize(("examples", "batch"), [(100, 16), (320, 16), (1293, 64), (2560, 128), (60_000, 128)])
def test_the_rule_for_the_batch_is_as_stated(examples, batch):
    """128, or else the largest power of two that gives 20 steps, at least 16."""
    powers = [2**k for k in range(4, 8) if examples // 2**k >= 20]
    assert isf.Recipe().batch_for(examples) == batch == (max(powers) if powers else 16)


def test_the_methods_are_those_of_the_command():
    table = [row for row in rows(section(TRAIN, "Methods")) if len(row) == 3]
    assert [codes(name)[0] for name, _, _ in table] == list(train_command.METHODS)
    for name, code, flag in table:
        make, rate = train_command.METHODS[codes(name)[0]]
        assert eval(codes(code)[0], {"isf": isf}) == make()
        assert codes(flag) == ([f"--{rate}"] if rate else [])


def test_the_scores_are_those_that_are_printed():
    table = rows(section(TRAIN, "What is printed"))
    printed = {names[0]: label for label, key, _ in table if (names := codes(key))}
    for label, key in evaluate_command.ROWS:
        assert printed[key] == label
    keys = {key for _, cell, _ in table for key in codes(cell)} - {"Scores"}
    assert keys == {field.name for kind in (metrics.Scores, Outside) for field in dataclasses.fields(kind)}
    (bins,) = (definition for _, key, definition in table if codes(key) == ["reliability"])
    assert set(codes(bins)) == {field.name for field in dataclasses.fields(metrics.Bin)}


def test_the_constants_of_the_scores_are_those_of_the_code():
    floor = metrics.SMALLEST_PROBABILITY
    assert f"no smaller than {floor:.1e} ({-np.log(floor):.1f} nats)" in TRAIN
    bins = inspect.signature(metrics.ece).parameters["bins"].default
    assert f"bin k of {bins} is `(k/{bins}, (k+1)/{bins}]`" in TRAIN
    assert f"X is sought in [{LEAST_TEMPERATURE:g}, {MOST_TEMPERATURE:g}]" in TRAIN


def test_the_exit_codes_are_those_of_the_command_line():
    about = {int(row[0]): row[1] for row in rows(section(TRAIN, "Errors and exit codes")) if row[0].isdigit()}
    stopped = [128 + signal.SIGINT, 128 + signal.SIGTERM]
    assert list(about) == [0, cli.FAILED, cli.BAD_INPUT, *stopped] and stopped[0] == cli.INTERRUPTED
    assert "diverged" in about[cli.FAILED] and "bad input" in about[cli.BAD_INPUT]
    assert f"{cli.DEBUG}=1" in TRAIN and issubclass(isf.Diverged, ArithmeticError)


def test_messages_that_are_listed_are_in_the_code():
    said = []
    for file in (ROOT / "src" / "isingformer").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                said.append("".join(getattr(part, "value", "…") if isinstance(part, ast.Constant) else "…"
                                    for part in node.values))  # fmt: skip
    table = section(TRAIN, "Errors and exit codes").split("| message ")[1]
    listed = [codes(message)[0] for message, _ in rows("| message " + table)]
    assert len(listed) > 5
    for message in listed:
        parts = [part.strip(" ;)(") for part in message.split("...")]
        assert any(all(part in text for part in parts) for text in said), message


def test_predictions_have_the_fields_that_are_listed():
    found = isf.Prediction(torch.full((3, 1, 2), 0.5))
    (row,) = predict_command.table([Path("a.png")], ("no", "yes"), found, 0.9)
    listed = [name for field, _ in rows(section(TRAIN, "Predict")) for name in codes(field)]
    assert listed == [*row, "probabilities"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training that was stopped and then finished, and which files there were each time."""
    out, files = tmp_path_factory.mktemp("runs") / "a", set()
    for stop in (lambda: True, lambda: False):
        run = isf.train(corners(), recipe=TINY, out=out, progress=False, tensorboard=False, stop=stop)
        files |= {path.name for path in out.iterdir()}
    return run, files


def test_the_pictures_of_q_are_as_stated(run):
    assert f"{FRAMES} moments" in TRAIN and f"at most {THUMBNAIL} x {THUMBNAIL} cells" in TRAIN
    found = run[0].q_history()
    assert max(max(picture.shape[1:]) for picture in found.pictures.values()) <= THUMBNAIL


def test_a_run_holds_the_files_that_are_listed(run):
    listed = codes(" ".join(row[0] for row in rows(section(TRAIN, "What a run's folder holds").split("pickled")[0])))
    run, files = run
    assert all(any(fnmatch(file, name) for name in listed) for file in files)
    assert {name for name in listed if not any(fnmatch(file, name) for file in files)} == {"tensorboard/"}
    assert run.finished and not (run.folder / "checkpoint.safetensors").exists()


def test_the_history_has_the_columns_that_are_listed(run):
    listed = [
        name for row in rows(section(TRAIN, "What a run's folder holds").split("pickled")[1]) for name in codes(row[0])
    ]
    assert (run[0].folder / "history.csv").read_text().splitlines()[0].split(",") == listed


def test_the_datasets_are_those_of_the_code():
    by_name = {codes(row[0])[0]: row for row in rows(section(DATA, "By name"))}
    assert list(by_name) == ["digits", *SOURCES]
    assert all(int(by_name[name][3]) == source.class_count for name, source in SOURCES.items())
    digits = isf.load_data("digits")
    assert by_name["digits"][1] == f"{len(digits.train):,} + {len(digits.test)}"
    own_folder = section(DATA, "The data folder")
    assert [[codes(cell) for cell in row] for row in rows(own_folder)] == [
        [[source.name], [source.folder], list(source.needs)] for source in SOURCES.values()
    ]
    terms = {codes(name)[0]: said for name, said in rows(section(DATA, "Licences and citations"))}
    assert {name: terms[name] for name in SOURCES} == {name: source.terms for name, source in SOURCES.items()}


def test_what_to_put_where_is_what_is_looked_for():
    for name, put, where, address in rows(section(DATA, "Without a network")):
        source = SOURCES[codes(name)[0]]
        assert codes(put) == [wanted.name for wanted in source.downloads]
        assert codes(where) == ([] if source.downloads[0].members else [source.folder])
        assert address.strip("<>") == source.downloads[0].urls[0].rpartition("/")[0] + "/"


@pytest.mark.parametrize(
    ("shape", "meaning"), [row for row in rows(section(DATA, "An .npz file")) if row[0][:2] == "`["]
)
def test_shapes_are_read_as_stated(tmp_path, shape, meaning):
    x, y = np.zeros(ast.literal_eval(codes(shape)[0]), np.uint8), np.arange(5) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    if meaning.startswith("error"):
        with pytest.raises(DataError, match="does not say which axis"):
            isf.load_data(tmp_path / "a.npz")
    else:
        channels = 1 if meaning == "grey" else int(meaning.split()[0])
        side = sorted(x.shape[1:])[-1]
        assert isf.load_data(tmp_path / "a.npz").train.x.shape == (5, channels, side, side)


def test_the_limits_are_those_of_the_code():
    found = [int(number.replace(",", "")) for _, number in rows(section(DATA, "Limits and safety"))]
    assert found == [
        image.MOST_PIXELS, folder.MOST_BYTES, npz.MOST_BYTES, idx.MOST_BYTES, download.LARGEST, archive.LARGEST,
        MOST_CLASSES,
    ]  # fmt: skip
    assert all(kind in DATA.upper() for kind in image._FORMATS)


def test_every_file_of_these_rooms_has_its_place():
    text, source = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), ROOT / "src" / "isingformer"
    files = [file for room in ("data", "predict", "train", "cli") for file in (source / room).glob("*.py")]
    files = [file.relative_to(source).as_posix() for file in files if file.stem != "__init__"]
    assert files and [name for name in [*files, "metrics.py", "_files.py"] if f"`{name}`" not in text] == []
