"""Tables: what they hold, and that each format can be read back by something that did not write it."""

import csv
import random
import re

import pytest

from isingformer.study.compare import compare, verdicts
from isingformer.study.record import Cell
from isingformer.study.summary import LABELS, summarise
from isingformer.study.table import Entry, Table, latex, markdown, slug
from isingformer.study.tables import (
    CALIBRATION,
    SCORES,
    build_tables,
    write_tables,
)
from records import NASTY, scored, study


def of_methods(values, metric="accuracy", dataset="mnist", size=300, spread=0.001):
    """Records of methods, each with one score, in two replicas."""
    return [
        scored(Cell(dataset, size, method, None if method == "plain" else 0.1), k, **{metric: value + e})
        for method, value in values.items()
        for k, e in enumerate((-spread, spread))
    ]


def table(records, name, **options):
    (found,) = (t for t in build_tables(records, **options) if t.name == name)
    return found


def column(found, header):
    """Entries by (size, method)."""
    place = found.header.index(header)
    return {(row[0].value, row[1].text): row[place] for row in found.rows}


def test_a_cell_is_mean_and_sd_beside_the_papers():
    records = [
        scored(Cell("fashion-mnist", 6000, "ising-paper", 0.1), k, accuracy=a) for k, a in enumerate((0.826, 0.834))
    ]
    found = column(table(records, "scores-fashion-mnist-0.1"), "Accuracy")[6000, "ising-paper"]
    assert (found.text, found.beside) == ("0.830 (0.006)", "0.828 (0.005)")  # 0.004 sqrt(2) is 0.0057
    assert found.value == found.sort == pytest.approx(0.83)
    assert found.sd == pytest.approx(0.004 * 2**0.5)


def test_tables_of_a_grid():
    tables = build_tables(study(datasets=("cifar10", "digits", "mnist")))
    places = [(d, r) for d in ("digits", "mnist", "cifar10") for r in ("0.1", "0.5")]
    expected = [f"{kind}-{d}-{r}" for d, r in places for kind in ("scores", "calibration")]
    assert [t.name for t in tables] == [*expected, *(f"differences-{d}-ising" for d in ("digits", "mnist", "cifar10"))]
    first, second = tables[:2]
    assert first.header == ("Size", "Method", "Accuracy", "Recall", "Precision", "F1", "FPR")
    assert second.header == ("Size", "Method", "NLL", "ECE", "Brier", "AUROC of errors", "Mean q", "Share dropped")
    methods = ("plain", "dropout", "dropconnect", "ising")
    assert [(row[0].text, row[1].text) for row in first.rows] == [(s, m) for s in ("300", "6,000") for m in methods]
    assert first.title.startswith("Digits, rate 0.1")
    assert "over 4 replicas" in first.caption
    assert all(len(row) == len(t.header) for t in tables for row in t.rows)
    assert len({t.name for t in tables}) == len(tables)


def test_numbers_are_those_of_the_summaries():
    records = study(datasets=("mnist",), sizes=(300,), rates=(0.1,))
    summaries = summarise(records)
    for name, metrics in (("scores-mnist-0.1", SCORES), ("calibration-mnist-0.1", CALIBRATION)):
        found = table(records, name)
        for metric in metrics:
            for (size, method), entry in column(found, LABELS[metric]).items():
                summary = summaries[Cell("mnist", size, method, None if method == "plain" else 0.1)]
                assert (entry.value, entry.sd) == (summary.means[metric], summary.sds[metric])
                assert entry.text == f"{entry.value:.3f} ({entry.sd:.3f})"


@pytest.mark.parametrize(
    ("metric", "name", "values", "best"),
    [
        ("accuracy", "scores", {"plain": 0.7, "dropout": 0.9, "ising": 0.8}, {"dropout"}),
        ("false_positive_rate", "scores", {"plain": 0.7, "dropout": 0.9, "ising": 0.8}, {"plain"}),
        ("nll", "calibration", {"plain": 0.7, "dropout": 0.9, "ising": 0.6}, {"ising"}),
        ("error_auroc", "calibration", {"plain": 0.7, "dropout": 0.9, "ising": 0.6}, {"dropout"}),
        ("accuracy", "scores", {"plain": 0.7, "dropout": 0.90012, "ising": 0.89988}, {"dropout", "ising"}),
        ("accuracy", "scores", {"ising": 0.7}, set()),
        ("mean_q", "calibration", {"dropout": 0.1, "ising": 0.2}, set()),
    ],
)
def test_the_best_is_bold(metric, name, values, best):
    found = column(table(of_methods(values, metric), f"{name}-mnist-0.1"), LABELS[metric])
    assert {method for (_, method), entry in found.items() if entry.bold} == best


def test_each_size_has_its_own_best():
    records = of_methods({"plain": 0.9, "ising": 0.8}, size=300) + of_methods({"plain": 0.7, "ising": 0.8}, size=6000)
    found = column(table(records, "scores-mnist-0.1"), "Accuracy")
    assert {key for key, entry in found.items() if entry.bold} == {(300, "plain"), (6000, "ising")}


def test_one_replica_is_not_chosen():
    records = [*of_methods({"plain": 0.5, "dropout": 0.6}), scored(Cell("mnist", 300, "ising", 0.1), 0, accuracy=0.9)]
    found = column(table(records, "scores-mnist-0.1"), "Accuracy")
    assert {method for (_, method), entry in found.items() if entry.bold} == {"dropout"}
    assert found[300, "ising"].text == "0.900"


def test_an_unfinished_study_says_so():
    records = [r for r in study(datasets=("mnist",), rates=(0.1,)) if r.cell.size == 300 or r.cell.method != "ising"]
    records = [r for r in records if r.cell != Cell("mnist", 300, "dropout", 0.1) or r.replica < 3]
    found = table(records, "scores-mnist-0.1")
    counts = {key: entry.text for key, entry in column(found, "Replicas").items()}
    assert counts[300, "dropout"] == "3/4"
    assert counts[6000, "ising"] == "0/4"
    assert "27 of 32 replicas" in found.caption
    missing = column(found, "Accuracy")[6000, "ising"]
    assert (missing.text, missing.value, missing.bold, missing.sort) == ("–", None, False, "")
    assert missing.beside == "0.911 (0.004)"  # the paper's number is there all the same


def test_the_plan_says_what_is_missing():
    records = of_methods({"plain": 0.5})
    plan = [Cell("mnist", 300, "plain", None), Cell("mnist", 300, "ising", 0.5), Cell("cifar10", 250, "ising", 0.1)]
    tables = build_tables(records, cells=plan, replicas=10)
    assert [t.name for t in tables if t.kind == "scores"] == ["scores-mnist-0.5", "scores-cifar10-0.1"]
    assert column(tables[0], "Replicas")[300, "plain"].text == "2/10"
    assert "2 of 20 replicas" in tables[0].caption
    assert all(entry.text == "–" for entry in tables[2].rows[0][3:])
    assert build_tables([], cells=plan, replicas=10)[0].rows


def test_only_plain_makes_a_table_without_a_rate():
    found = table(of_methods({"plain": 0.5}, dataset="digits"), "scores-digits")
    assert found.title.startswith("Digits: ")


def test_a_score_that_is_not_always_defined_says_how_often():
    cell = Cell("digits", 300, "ising", 0.1)
    records = [scored(cell, k, error_auroc=a) for k, a in enumerate((0.8, None, 0.9))]
    found = table(records, "calibration-digits-0.1")
    assert column(found, "AUROC of errors")[300, "ising"].text == "0.850 (0.071) n=2"
    assert "n: defined in so many" in found.caption


def test_the_doubtful_row_is_marked():
    values = {"dropout": 0.3, "ising": 0.4}
    found = table(of_methods(values, dataset="cifar100", size=15000), "scores-cifar100-0.1")
    assert column(found, "Accuracy")[15000, "ising"].beside == "0.642 (0.114)†"
    assert "† Not comparable: the paper's figure labels fit 40,000" in found.caption
    sound = table(of_methods(values, dataset="cifar100", size=5000), "scores-cifar100-0.1")
    assert "†" not in str(sound)


def test_differences_have_intervals_and_clear_ones_are_bold():
    records = study(datasets=("mnist",), sizes=(300,))
    found = table(records, "differences-mnist-ising")
    assert found.header == ("Size", "Rate", "Against", "Pairs", "Accuracy", "NLL", "ECE")
    places = [[entry.text for entry in row[:4]] for row in found.rows]
    assert places == [["300", r, m, "4"] for r in ("0.1", "0.5") for m in ("dropout", "dropconnect", "plain")]
    (expected, _) = compare(records, "ising", "dropconnect", "nll")
    entry = found.rows[1][5]
    assert entry.text == f"{expected.mean:+.4f} [{expected.low:+.4f}, {expected.high:+.4f}]".replace("-", "−")
    assert (entry.value, entry.bold) == (expected.mean, expected.clear)


def test_a_difference_of_one_pair_has_no_interval():
    records = study(datasets=("mnist",), sizes=(300,), rates=(0.1,), replicas=1)
    for row in table(records, "differences-mnist-ising").rows:
        assert all(re.fullmatch(r"[+−]\d\.\d{4}", entry.text) and not entry.bold for entry in row[4:])


def of_a_nasty_name():
    return build_tables(study(datasets=(NASTY, "cifar100"), sizes=(300, 15000), replicas=2))


def markdown_rows(text):
    """The fields of every line of a table, unescaped as GitHub does."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[f.strip() for f in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_is_well_formed():
    for found in of_a_nasty_name():
        text = markdown(found)
        head, rule, *rows = markdown_rows(text)
        assert head == list(found.header)
        assert rule == ["---"] * len(head)
        assert [len(row) for row in rows] == [len(head)] * len(found.rows)
        for row, entries in zip(rows, found.rows, strict=True):
            for field, entry in zip(row, entries, strict=True):
                paper = f" \\| paper {entry.beside}" if entry.beside else ""
                assert field == (f"**{entry.text}**" if entry.bold else entry.text) + paper
        assert text.startswith("### ")
        if found.dataset == NASTY:
            assert r"my\_data\|50% & #1 {x $y^2 ~z\\n \<b\>\*c\*\`" in text


def check_latex(text):
    """Every environment and brace closed, every special character escaped, rows as wide as the header."""
    plain = re.sub(r"\\(text(backslash|asciitilde|asciicircum|less|greater|bar))\{\}", "", text)
    plain = re.sub(r"\\\\|\\[&%$#_{}]", lambda found: found[0] if found[0] == r"\\" else "", plain)
    depth = 0
    for character in plain:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert re.findall(r"\\begin\{(\w+)\}", plain) == re.findall(r"\\end\{(\w+)\}", plain)[::-1] == ["table", "tabular"]
    assert plain.isascii()
    outside = re.sub(r"\$(-|\^\\dagger)\$|\\label\{[^}]*\}", "", plain)
    assert not re.search(r"[%$#_^~<>|]", outside), outside
    commands = {"begin", "end", "centering", "caption", "shortstack", "scriptsize", "textbf"}
    assert set(re.findall(r"\\([a-z]+)", outside)) <= commands | {"toprule", "midrule", "bottomrule"}
    columns = len(re.search(r"\\begin\{tabular\}\{([lc]+)\}", plain)[1])
    body = plain[plain.index("\\toprule") : plain.index("\\bottomrule")].splitlines()
    rows = [line for line in body if "rule" not in line]
    assert all(row.count("&") == columns - 1 and row.endswith(" \\\\") for row in rows)
    return len(rows) - 1


def test_latex_is_well_formed():
    for found in of_a_nasty_name():
        assert check_latex(latex(found)) == len(found.rows)


def test_the_check_of_latex_can_fail():
    good = latex(next(t for t in of_a_nasty_name() if t.dataset == NASTY))
    for wrong, right in (("\\_", "_"), ("\\%", "%"), ("}", ""), ("\\end{tabular}", ""), (" & ", " \\& "), ("\\#", "#")):
        assert wrong in good
        with pytest.raises(AssertionError):
            check_latex(good.replace(wrong, right, 1))


def test_latex_groups_by_the_first_column():
    rows = [(Entry(a), Entry(b), Entry("1")) for a, b in (("300", "x"), ("300", "y"), ("600", "x"))]
    text = latex(Table("n", "scores", "d", "t", "c", ("Size", "Method", "A"), tuple(rows)))
    body = text.split("\\midrule\n")
    assert [part.splitlines()[:2] for part in body[1:]] == [
        ["300 & x & 1 \\\\", " & y & 1 \\\\"],
        ["600 & x & 1 \\\\", "\\bottomrule"],
    ]


def test_slugs_differ_where_names_do():
    names = ["a b", "a-b", "a_b", "a/b", "ab", "ä", NASTY]
    assert len({slug(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", slug(name), re.ASCII) for name in names)


def test_files_are_written_whatever_the_order_of_records(tmp_path):
    records = study(sizes=(300,), replicas=2)
    files = write_tables(records, tmp_path / "new" / "tables")
    assert [file.name for file in files] == ["tables.md", "tables.tex", "cells.csv", "replicas.csv", "differences.csv"]
    assert sorted(files) == sorted((tmp_path / "new" / "tables").iterdir())  # and nothing temporary
    again = write_tables(random.Random(1).sample(records, len(records)), tmp_path)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]
    text = files[0].read_text(encoding="utf-8")
    assert all(f"- {sentence}\n" in text for sentence in verdicts(records))
    assert all(markdown(t) in text and latex(t) in files[1].read_text(encoding="utf-8") for t in build_tables(records))
    assert (
        len(list(csv.reader(files[4].read_text(encoding="utf-8").splitlines()))) == 1 + 3 * 4 * 13
    )  # others, cells, scores


def test_a_study_without_records_can_be_written(tmp_path):
    files = write_tables([], tmp_path, cells=[Cell("mnist", 300, "ising", 0.1)], replicas=3)
    assert "0/3" in files[0].read_text(encoding="utf-8")
    assert len(files[2].read_text(encoding="utf-8").splitlines()) == 1
