"""The documentation is true: its snippets run, its numbers are those of the results, its defaults those of the code."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import isingformer as isf

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md"))
KINDS = {"gauss-newton": "Gauss-Newton", "hessian": "Hessian", "squared gradients": "squared gradients"}


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def result(name):
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def evidence_table():
    head = ["network", "layer", *(f"{kind}: rank" for kind in KINDS.values()), *(f"{k}: ratio" for k in KINDS.values())]
    return table(
        head,
        [
            [row["network"], f"`{row['layer']}`"]
            + [f"{row[f'{kind}, rank']:.2f}" for kind in KINDS]
            + [f"{row[f'{kind}, ratio']:.2g}" for kind in KINDS]
            for row in result("evidence.json")["rows"]
        ],
    )


def course_table():
    head = ["network", "steps", "training loss", *(f"{kind}: ratio" for kind in KINDS.values())]
    head += ["squared gradients: rank"]
    return table(
        head,
        [
            [row["network"], str(row["steps"]), f"{row['loss']:.2g}"]
            + [f"{row[f'{kind}, ratio']:.2g}" for kind in KINDS]
            + [f"{row['squared gradients, rank']:.2f}"]
            for row in result("evidence.json")["course"]
        ],
    )


def lm_table():
    return table(
        ["network", "layer", "median ratio", "smallest to largest", "rank"],
        [
            [
                row["network"],
                f"`{row['layer']}`",
                f"{row['ratio']:.2f}",
                f"{row['smallest']:.2f} to {row['largest']:.2f}",
                f"{row['rank']:.2f}",
            ]
            for row in result("lm-error.json")["rows"]
        ],
    )


@pytest.fixture
def quick_compile(monkeypatch):
    """torch.compile that traces the whole graph but generates no code, which would take a minute; switches put back."""
    compile_for_real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_for_real(model, backend="eager", **options))
    fast = torch.backends.mha.get_fastpath_enabled()
    yield
    torch._dynamo.reset()
    torch.backends.mha.set_fastpath_enabled(fast)


# torch.compile looks at our autograd functions by instantiating PyTorch's own class of them.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, quick_compile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = text_of(page), {"__name__": "docs"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in re.finditer(r"^( *)```python\n(.*?)^\1```", text, re.M | re.S):
            first = text[: block.start(2)].count("\n")
            code = "\n" * first + re.sub(rf"^{block[1]}", "", block[2], flags=re.M)
            exec(compile(code, str(DOCS / page), "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_results_that_are_named_exist(page):
    for name in re.findall(r"results/([\w.-]+)", text_of(page)):
        assert (ROOT / "results" / name).exists(), name


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    rooms, files = (
        "ising|curvature|nn|topology|methods|data|predict|train|compress|explain|study|explore|cli",
        "metrics|_files",
    )
    for name in re.findall(rf"`((?:{rooms})/\w+\.py|(?:{files})\.py)`", text_of(page)):
        assert (ROOT / "src" / "isingformer" / name).is_file(), name
    for name in re.findall(r"`((?:tests|benchmarks|examples)/[\w/]+\.py)`", text_of(page)):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("expected", [evidence_table, course_table, lm_table], ids=lambda table: table.__name__)
def test_numbers_are_those_of_the_results(expected):
    assert expected() in text_of("curvature.md")


def test_defaults_are_those_of_the_code():
    section = text_of("method.md").split("## Defaults")[1].split("\n## ")[0]
    found = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.M))
    assert found == {field.name: repr(field.default) for field in dataclasses.fields(isf.Ising)}


if __name__ == "__main__":
    print("\n".join(make() for make in (evidence_table, course_table, lm_table)))
