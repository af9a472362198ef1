"""The page on studies is true: its plan is read, its tables are those of the code, its files those of a study."""

import ast
import dataclasses
import inspect
import json
import re
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest

import isingformer as isf
from isingformer import cli
from isingformer.methods import METHODS
from isingformer.study import (
    Plan,
    Record,
    Store,
    StudyData,
    compare,
    paper,
    plan,
    read_plan,
    run_study,
    scoring,
    summary,
    tables,
    worker,
    write_results,
)
from isingformer.study.record import Cell

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "isingformer"
STUDY, ARCHITECTURE = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("study.md", "architecture.md"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
(EXAMPLE,) = (block[2] for block in FENCED.finditer(STUDY) if block[1] == "toml")


def section(title):
    """What stands below a heading, up to the next one of its rank or higher."""
    level, rest = re.search(rf"^(#+) {re.escape(title)}\n(.*)", FENCED.sub("", STUDY), re.M | re.S).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.M)[0]


def table(title, head):
    """The rows of the table below a heading that begins with this head."""
    lines = section(title).split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def flowing(text):
    """Without line breaks, so that sentences can be looked for."""
    return " ".join(text.split())


def options(command):
    subparsers = cli.build_parser()._subparsers._group_actions[0].choices
    return {flag for action in subparsers[command]._actions for flag in action.option_strings} - {"-h", "--help"}


@pytest.fixture
def example(tmp_path):
    """The plan of the page, read where its data lie."""
    x, y = np.zeros((4, 8, 8), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "leaves.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (tmp_path / "leaves.toml").write_text(EXAMPLE, encoding="utf-8")
    return read_plan(tmp_path / "leaves.toml")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study, and what was written of it."""
    recipe = {"epochs": 1, "batch": 16, "width": 8, "depth": 1, "heads": 1, "mlp": 8}
    data = (StudyData(source="digits", sizes=(20,), test_images=30),)
    small = Plan(
        name="a", datasets=data, methods=("dropout", "ising"), rates=(0.1,), replicas=2, samples=2, recipe=recipe
    )
    folder = tmp_path_factory.mktemp("study")
    run_study(small, folder, jobs=1, device="cpu", progress=False)
    return Store(folder), write_results(Store(folder))


def test_the_example_is_read_and_says_everything(example):
    values = tomllib.loads(EXAMPLE)
    assert set(values) == {field.name for field in dataclasses.fields(Plan)}
    assert set(values["datasets"][0]) == {field.name for field in dataclasses.fields(StudyData)}
    assert all(example.recipe[name] == value for name, value in values["recipe"].items())
    for method, given in values["settings"].items():
        assert all(example.settings[method][name] == value for name, value in given.items())
    assert example.labels == ("leaves", "digits") and example.name == "leaves"
    assert dataclasses.replace(example, only=()).trainings == 3 * (1 + 2 * 2) * 10
    others = {Cell("leaves", 100, "plain", None), *(Cell("leaves", 100, "dropout", rate) for rate in (0.1, 0.5))}
    own = {Cell(*place, "ising", 0.5) for place in (("leaves", 100), ("leaves", 1000), ("digits", 500))}
    assert set(example.cells()) == others | own


def test_the_example_without_what_may_be_left_out(tmp_path):
    """Only what the page says is needed, and what the page says of the rest is what is then taken."""
    own, of_data = (table("A plan of your own", head) for head in ("key", "key of `[[datasets]]`"))
    kept = [codes(key)[0] for key, default, _ in [*own, *of_data] if default.startswith("needed")]
    assert kept == ["datasets", "methods", "rates", "replicas", "source", "sizes"]
    (tmp_path / "short.toml").write_text(
        'methods = ["ising"]\nrates = [0.1]\nreplicas = 2\n[[datasets]]\nsource = "digits"\nsizes = [20]\n'
    )
    short = read_plan(tmp_path / "short.toml")
    assert short.name == "short" and short.labels == ("digits",)
    own = {name: value for name, value in isf.Recipe().settings().items() if name not in plan.NOT_IN_RECIPE}
    assert short.recipe == own
    for missing in (
        'methods = ["ising"]\n',
        "rates = [0.1]\n",
        "replicas = 2\n",
        'source = "digits"\n',
        "sizes = [20]\n",
    ):
        (tmp_path / "shorter.toml").write_text((tmp_path / "short.toml").read_text().replace(missing, ""))
        with pytest.raises(ValueError, match=re.escape(missing.partition(" ")[0])):
            read_plan(tmp_path / "shorter.toml")


@pytest.mark.parametrize(("head", "kind"), [("key", Plan), ("key of `[[datasets]]`", StudyData)])
def test_the_keys_are_those_of_the_dataclasses(head, kind):
    found = {codes(key)[0]: default for key, default, _ in table("A plan of your own", head)}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert found.keys() == fields.keys()
    for name, field in fields.items():
        if isinstance(field.default, int):
            assert codes(found[name]) == [repr(field.default)]
        elif field.default is not dataclasses.MISSING and name != "rates":
            assert not found[name].startswith("needed")
    assert head != "key" or f"from 1 to {plan.MOST_REPLICAS:,}" in section("A plan of your own")


def test_what_a_recipe_may_not_say_is_as_listed():
    listed = {name: why for names, why in table("A plan of your own", "not in `[recipe]`") for name in codes(names)}
    assert {name: why.replace(", outside [recipe],", "") for name, why in plan.NOT_IN_RECIPE.items()} == listed


def test_the_shipped_plans_are_as_listed():
    listed = table("Three ways to begin", "plan")
    assert [name for row in listed for name in codes(row[0])] == list(plan.SHIPPED)
    found, name = {name: [] for name in plan.SHIPPED}, ""
    for row in listed:
        name = next(iter(codes(row[0])), name)
        found[name].append(row)
    for name, parts in found.items():
        shipped, trainings = read_plan(name), 0
        for _, data, sizes, methods, rates, replicas, count in parts:
            for label in codes(data):
                assert shipped.dataset(label).sizes == tuple(map(int, sizes.split(", ")))
            assert methods == "the same" or tuple(codes(methods)) == shipped.methods
            assert tuple(map(float, rates.split(", "))) == shipped.rates and int(replicas) == shipped.replicas
            assert int(count) == sum(cell.dataset in codes(data) for cell in shipped.cells()) * shipped.replicas
            trainings += int(count)
        assert [label for row in parts for label in codes(row[1])] == list(shipped.labels)
        assert trainings == shipped.trainings
    assert set(read_plan("quick").methods) == set(METHODS)


def test_the_flags_are_those_of_the_commands():
    assert {codes(flag)[0] for flag, _ in table("Three ways to begin", "flag of `study`")} == options("study")
    said = re.search(r"`isingformer report .*?\n\n", section("Three ways to begin"), re.S)[0]
    assert set(re.findall(r"`(--[a-z-]+)`", said)) == options("report")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", STUDY)) <= options("study") | options("report")


def test_a_replica_shares_what_is_stated(example):
    example = dataclasses.replace(example, only=())
    one, other = (c for c in example.cells() if (c.dataset, c.size, c.rate) == ("leaves", 100, 0.1))
    assert one.method != other.method and example.recipe_for(one, 0) == example.recipe_for(other, 0)
    assert len({example.seed_of("leaves", size, k) for size in (100, 1000) for k in (0, 1)}) == 4
    grown = dataclasses.replace(example, replicas=20, methods=(*example.methods, "dropconnect"), rates=(0.1, 0.2, 0.5))
    assert grown.recipe_for(one, 3) == example.recipe_for(one, 3)
    assert grown.test_seed("leaves") == example.test_seed("leaves")


def test_the_share_of_the_memory_is_that_of_the_code():
    assert f"may take {worker.SHARE_OF_MEMORY:.0%} of the memory" in flowing(STUDY)
    assert "replicas in stacks of" in STUDY and "replicas in stacks of" in inspect.getsource(worker)


def test_a_study_holds_the_files_that_are_listed(study):
    store, _ = study
    listed = [name for names, _ in table("The store", "file") for name in codes(names) if "digits_500" not in name]
    patterns = [re.sub("CELL|REPLICA|LABEL|NAME", "*", name) for name in listed]
    there = {file for file in store.path.rglob("*") if file.is_file()}
    for pattern in patterns:
        matched = set(store.path.glob(f"{pattern}*" if pattern.endswith("/") else pattern))
        assert matched, pattern
        there -= matched
    assert there == set()


def test_a_record_has_the_fields_that_are_listed():
    listed = [name for names, _ in table("The store", "field") for name in codes(names)]
    assert listed == [field.name for field in dataclasses.fields(Record)]
    assert f"{scoring.ENTROPY_BINS} bins from 0 to log(classes)" in section("The store")


def test_the_tables_are_those_that_are_written(study):
    _, written = study
    listed = [codes(name)[0] for name, _ in table("Tables, figures, report", "file of `tables/`")]
    assert listed == [file.name for file in written.tables]
    for columns in (tables.SCORES, tables.CALIBRATION):
        assert ", ".join(summary.LABELS[metric] for metric in columns) in flowing(section("Tables, figures, report"))


def test_the_figures_are_those_that_are_drawn(study):
    store, written = study
    listed = [codes(file)[0] for _, file, _ in table("Tables, figures, report", "figure")]
    (place,) = {(cell.dataset, str(cell.size), f"{cell.rate:g}") for cell in store.plan.cells()}
    names = [name.replace("DATASET", place[0]).replace("SIZE", place[1]).replace("RATE", place[2]) for name in listed]
    assert {file.name for file in written.figures} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


def test_the_report_has_the_parts_that_are_listed(study):
    page = study[1].report.read_text(encoding="utf-8")
    parts = re.findall(r'<a href="#\w+">([^<]+)</a>', page.split("<nav")[1].split("</nav>")[0])
    assert parts == [part for part, _ in table("Tables, figures, report", "part")]


def test_the_comparisons_are_as_stated(study):
    from scipy.special import stdtrit

    said = flowing(section("How methods are compared"))
    *some, last = (m if m == "accuracy" else summary.LABELS[m] for m in compare.COMPARED)
    assert f"compared with every other kind of method in {', '.join(some)} and {last}" in said
    quantiles = dict(re.findall(r"([\d.]+) for (\d+)(?: replicas)?[,.]", said))
    assert len(quantiles) == 4
    for value, n in quantiles.items():
        assert float(value) == pytest.approx(stdtrit(int(n) - 1, 0.975), abs=0.005)
    assert "d -+ t(n - 1, 0.975) s / sqrt(n)" in STUDY and "d -+ t(n - 1, 0.975) s / sqrt(n)" in compare.__doc__
    records = study[0].records()
    assert compare.comparisons(records) == [("ising", "dropout")]
    (found,) = compare.compare(records, "ising", "dropout", "nll")
    one, other = (np.array([r.scores["nll"] for r in records if r.cell.method == m]) for m in ("ising", "dropout"))
    d = one - other
    half = stdtrit(1, 0.975) * d.std(ddof=1) / np.sqrt(2)
    assert (found.low, found.high) == pytest.approx((d.mean() - half, d.mean() + half), rel=1e-6, abs=1e-9)


def test_the_row_that_is_not_comparable_is_the_one_of_the_code():
    said = flowing(section("Beside the paper's numbers"))
    ((dataset, size),) = paper.NOT_COMPARABLE
    assert f"**{summary.DATASETS[dataset]} at {size:,} is not comparable.**" in said
    assert "40,000" in said and "40,000" in paper.WHY_NOT_COMPARABLE
    beside = [method for method, row in paper.PAPER_METHODS.items() if row == "ising"]
    assert "each of " + "{}, {} and {}".format(*(f"`{method}`" for method in beside)) in said
    cells = {(c.dataset, c.size, c.rate, c.method) for c in read_plan("paper").cells()}
    assert cells == paper.paper_numbers().keys()


def test_the_exit_codes_are_those_of_the_command_line(tmp_path, capsys):
    about = {int(row[0]): row[1] for row in table("Failed trainings and exit codes", "code")}
    assert list(about) == [0, cli.FAILED, cli.BAD_INPUT, 128 + signal.SIGINT, 128 + signal.SIGTERM]
    assert "failed" in about[cli.FAILED] and "bad input" in about[cli.BAD_INPUT]
    assert cli.main(["study", str(tmp_path / "none.toml"), "--out", str(tmp_path / "a")]) == cli.BAD_INPUT
    assert cli.main(["report", str(tmp_path)]) == cli.BAD_INPUT
    assert "is no study (plan.json is missing)" in capsys.readouterr().err


def test_messages_that_are_listed_are_in_the_code():
    said = []
    for file in (SOURCE / "study").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                said.append("".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values))
    listed = [codes(message)[0] for message, _ in table("Failed trainings and exit codes", "message")]
    assert len(listed) > 4
    for message in listed:
        parts = [part.strip(" ;)(") for part in message.split("...")]
        assert any(all(part in text for part in parts) for text in said), message


def test_every_file_of_the_room_has_its_place():
    files = [file for file in (SOURCE / "study").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    names = {file.relative_to(SOURCE).as_posix() for file in files if file.name != "__init__.py"}
    assert names and sorted(name for name in names if f"`{name}`" not in ARCHITECTURE) == []
    named = {name for name in re.findall(r"`(study/[\w/]+\.\w+)`", ARCHITECTURE)}
    assert named == names


def test_no_other_time_is_claimed():
    """Numbers of that kind come from results/."""
    before, rest = STUDY.split("<!-- speed:begin -->")
    said = before + rest.split("<!-- speed:end -->")[1]
    assert not re.search(r"\d (seconds|minutes|hours)\b", said)


def test_the_page_can_be_found():
    assert "(study.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "study.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def speed_table():
    """Trainings' steps a second on an H200, of the largest images and batches; and what the plan takes."""
    found = json.loads((ROOT / "results/study-h200.json").read_text(encoding="utf-8"))
    large = [row for row in found["rows"] if (row["image"], row["batch"]) == ("3x32x32", 128)]
    ways = ("stacked", "looped", "eager")
    speed = {(row["method"], row["way"]): row["steps_a_second"] for row in large}
    lines = [
        "| " + " | ".join([method, *(f"{speed[method, way]:,.0f}" for way in ways)]) + " |"
        for method in ("dropout", "dropconnect", "ising")
    ]
    minutes = [found[f"{what}_minutes"] for what in ("training", "compiling", "scoring")]
    said = "all {} trainings: {:.1f} minutes of training, {:.1f} of compiling, {:.1f} of scoring".format(
        found["trainings"], *minutes
    )
    head = ["| method | stacked, 20 replicas | one after the other | eager |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines, "", f"For {said}.", ""])


def test_the_speed_is_that_of_the_results():
    assert STUDY.split("<!-- speed:begin -->\n")[1].split("<!-- speed:end -->")[0] == speed_table()
