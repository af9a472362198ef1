"""A table without a format, and how it looks in Markdown and LaTeX."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["scores", "calibration", "differences"]

NOTHING = "–"
"""Where there is no number (yet)."""
DAGGER = "†"
MINUS = "−"


@dataclass(frozen=True)
class Entry:
    """One place of a table."""

    text: str
    """As it is printed, without markup: ``0.830 (0.004)``."""
    value: float | None = None
    sd: float | None = None
    bold: bool = False
    beside: str = ""
    """The paper's number, printed beside it: ``0.828 (0.005)``."""
    sort: float | str = ""
    """What a sortable table sorts by: numbers or words, the same in all of a column, and "" for nothing."""


@dataclass(frozen=True)
class Table:
    """A title, a header, rows and a caption."""

    name: str
    """For anchors and labels, unique in a study."""
    kind: Kind
    dataset: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    """Rows of one group, such as a training size, follow each other and have the same first entry."""


def slug(name: str) -> str:
    """A name for anchors and labels: other characters than letters, digits, dot and hyphen by their number."""
    return re.sub(r"[^A-Za-z0-9.-]", lambda found: f"_{ord(found[0]):x}_", name)


def markdown(table: Table) -> str:
    """A heading, the table in GitHub's flavour, and its caption."""

    def cell(entry: Entry) -> str:
        text = _markdown_escaped(entry.text)
        text = f"**{text}**" if entry.bold else text
        return f"{text} \\| paper {_markdown_escaped(entry.beside)}" if entry.beside else text

    lines = [[_markdown_escaped(name) for name in table.header], ["---"] * len(table.header)]
    lines += [[cell(entry) for entry in row] for row in table.rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {_markdown_escaped(table.title)}\n\n{body}\n\n{_markdown_escaped(table.caption)}"


def latex(table: Table) -> str:
    """A ``table`` for the package booktabs; the paper's numbers stand below ours, a rule between groups."""

    def cell(entry: Entry) -> str:
        text = _latex_escaped(entry.text)
        text = f"\\textbf{{{text}}}" if entry.bold else text
        paper = f"{{\\scriptsize paper {_latex_escaped(entry.beside)}}}"
        return f"\\shortstack{{{text}\\\\{paper}}}" if entry.beside else text

    lines = []
    for _, group in itertools.groupby(table.rows, key=lambda row: row[0].text):
        lines.append("\\midrule")
        for number, (first, *rest) in enumerate(group):
            shown = [cell(first) if number == 0 else "", *map(cell, rest)]
            lines.append(" & ".join(shown) + " \\\\")
    return "\n".join([
        "\\begin{table}[htbp]",
        "\\centering",
        f"\\begin{{tabular}}{{ll{'c' * (len(table.header) - 2)}}}",
        "\\toprule",
        " & ".join(map(_latex_escaped, table.header)) + " \\\\",
        *lines,
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{_latex_escaped(table.title)}. {_latex_escaped(table.caption)}}}",
        f"\\label{{tab:{table.name}}}",
        "\\end{table}",
    ])  # fmt: skip


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\`*_|<>])", r"\\\1", " ".join(text.split()))


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},
    **{NOTHING: "--", DAGGER: "$^\\dagger$", MINUS: "$-$"},
}


def _latex_escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
