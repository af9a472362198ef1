"""The report of a study: one file, everything in it, nothing that runs by accident."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from isingformer.study.compare import verdicts
from isingformer.study.figures import charts
from isingformer.study.plan import Plan, StudyData
from isingformer.study.record import Cell
from isingformer.study.report import rendered_page, write_report
from isingformer.study.tables import build_tables
from records import made_up, study

RECORDS = study(datasets=("mnist",), sizes=(300, 6000), replicas=3)
PLAN = Plan(
    name="small", methods=("plain", "dropout", "dropconnect", "ising"), rates=(0.1, 0.5), replicas=3,
    datasets=(StudyData(source="mnist", sizes=(300, 6000), test_images=200),),
)  # fmt: skip


class Page(HTMLParser):
    """What a page holds: its text, and every tag with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open[-1:]):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def page(records, **more):
    return Page(rendered_page(records, [], **more))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    few = [c for c in charts(RECORDS) if c.size in (300, None)]
    return write_report(RECORDS, folder, plan=PLAN, command="isingformer study small.toml", drawn=few)


def test_it_is_one_file_of_a_reasonable_size(written):
    assert [file.name for file in written.parent.iterdir()] == ["report.html"]
    assert 100_000 < written.stat().st_size < 2_000_000


def test_it_asks_nothing_of_the_network(written):
    found = Page(written.read_text(encoding="utf-8"))
    addresses = [attrs[name] for _, attrs in found.tags for name in ("src", "href", "data", "action") if name in attrs]
    assert addresses and all(address.startswith(("#", "data:image/svg+xml,")) for address in addresses)
    assert not found.all("link") and "@import" not in written.read_text(encoding="utf-8")
    (policy,) = [a["content"] for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_every_figure_is_there_with_words(written):
    images = Page(written.read_text(encoding="utf-8")).all("img")
    expected = [c for c in charts(RECORDS) if c.size in (300, None)]
    assert sorted(image["alt"] for image in images) == sorted(c.alt for c in expected)
    assert all(float(image["width"]) > 100 and float(image["height"]) > 100 for image in images)


def test_verdicts_come_first_then_all_tables():
    found = page(RECORDS, plan=PLAN)
    places = []
    for sentence in verdicts(RECORDS):
        assert sentence in found.text
        places.append(found.text.index(sentence))
    assert max(places) < found.text.index("What was run Data")
    for table in build_tables(RECORDS):
        assert table.title in found.text and table.caption in found.text
        for row in table.rows:
            for entry in row:
                assert entry.text in found.text and entry.beside in found.text


def test_numbers_sort_by_their_full_value():
    found = page(RECORDS)
    sorted_by = {attrs["data-sort"] for tag in ("td", "th") for attrs in found.all(tag) if attrs.get("data-sort")}
    for table in build_tables(RECORDS):
        assert {str(entry.sort) for row in table.rows for entry in row if entry.sort != ""} <= sorted_by


def test_it_says_what_was_run_and_how_to_run_it_again():
    made = {**RECORDS[0].made, "hardware": "a big GPU", "torch": "2.99", "commit": "f00d-dirty"}
    found = page([dataclasses.replace(r, made=made) for r in RECORDS], plan=PLAN, command="isingformer study it")
    for words in ("300 and 6,000 training images, 200 test images", "a big GPU", "2.99", "f00d-dirty", "0.1 and 0.5",
                  "git checkout f00d make install isingformer study it", "42 of 42 trainings done", "all there",
                  "changes that no commit holds"):  # fmt: skip
        assert words in found.text
    assert json.dumps(PLAN.to_json()["recipe"]["epochs"]) in found.text


def test_every_cell_can_be_looked_into():
    found = page(RECORDS)
    ids = [attrs["id"] for attrs in found.all("details") if "id" in attrs]
    assert ids == [f"cell-{name}" for name in dict.fromkeys(r.cell.name.replace("_", "_5f_") for r in RECORDS)]
    for record in RECORDS[:3]:
        assert f"{record.scores['accuracy']:.3f}" in found.text
    assert f"{sum(r.scores['reliability'][14]['count'] for r in RECORDS[:3]):,}" in found.text


def test_what_is_missing_is_said_plainly():
    some = [r for r in RECORDS if not (r.cell.method == "ising" and r.cell.size == 6000) or r.replica == 0]
    some = [r for r in some if r.cell != Cell("mnist", 6000, "dropout", 0.5)]
    found = page(some, plan=PLAN)
    assert "This study is unfinished: 3 of 14 cells lack replicas" in found.text
    assert "mnist_6000_dropout_0.5 (0 of 3)" in found.text and "mnist_6000_ising_0.1 (1 of 3)" in found.text
    assert "35 of 42 trainings done" in found.text
    assert "Cells with one replica, which tells nothing of the spread: 2 of 13." in found.text


def test_records_of_other_plans_machines_and_commits_are_said():
    strange = made_up(Cell("mnist", 18000, "ising", 0.1), 0)
    other = dataclasses.replace(strange, replica=1, made={**strange.made, "commit": "fed", "hardware": "GPU"})
    found = page([*RECORDS, strange, other], plan=PLAN)
    assert "Not in the plan, but shown: mnist_18000_ising_0.1." in found.text
    assert "The trainings come from 2 commits: abc (43), fed (1)." in found.text
    assert "2 kinds of hardware: CPU (43), GPU (1)" in found.text


@pytest.mark.parametrize("plan", [None, PLAN])
def test_nothing_done_yet(plan):
    found = page([], plan=plan)
    assert "No training has finished yet" in found.text
    assert found.text.count("nan") == 0


def test_one_record():
    found = page([made_up(Cell("digits", 100, "plain", None), 0, skill=60.0)])
    assert "plain" in found.text and "Digits" in found.text and "made no mistake" in found.text


EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


def test_text_from_data_is_text(tmp_path):
    cell = Cell(EVIL, 300, "ising", 0.1)
    records = [
        dataclasses.replace(
            made_up(dataclasses.replace(cell, method=method), replica),
            settings={EVIL: EVIL}, recipe={EVIL: [EVIL]}, made={"hardware": EVIL, "commit": EVIL, "command": EVIL},
        )
        for method in ("ising", EVIL) for replica in range(2)
    ]  # fmt: skip
    images = {EVIL: (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4) % 2, (EVIL, "b"))}
    file = write_report(records, tmp_path, command=EVIL, images=images)
    found = Page(file.read_text(encoding="utf-8"))
    assert len(found.all("script")) == 1
    assert all(attrs.get("src", "data:").startswith("data:image/svg+xml,") for attrs in found.all("img"))
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert EVIL in " ".join(found.words)
    for image in found.all("img"):
        assert "<script" not in image["src"] and "%3Cscript" not in image["src"]


def test_scores_by_fresh_noise_stand_in_the_cells_that_have_them():
    assert "fresh noise" not in page(RECORDS).text
    first, *others = study(datasets=("mnist",), sizes=(300,), methods=("dropout",), rates=(0.1,), replicas=2)
    fresh = dataclasses.replace(first, scores={**first.scores, "local_nll": 0.125})
    text = page([fresh, *others]).text
    assert "NLL, fresh noise 0.125" in text and "ECE, fresh noise" not in text


def test_a_setting_without_a_value_is_none():
    records = [dataclasses.replace(record, recipe={"augment": "", "epochs": 3}) for record in RECORDS]
    assert "augment none, epochs 3" in page(records).text
