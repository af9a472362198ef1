"""The figures that are kept beside the tables of the paper's grid: scores by training size."""

from pathlib import Path

from paper_goals import MIDDLE, comparable, difference
from paper_tables import mean, summaries

from isingformer._files import make_folder, write_bytes
from isingformer.explain.look import new_figure
from isingformer.study.figures import by_size
from isingformer.study.figures.style import QUIET, in_order, legend, look, our_settings, rendered, title_of
from isingformer.study.record import Cell

SCORES = {"nll": "NLL \N{DOWNWARDS ARROW}", "ece": "ECE \N{DOWNWARDS ARROW}", "accuracy": "Accuracy \N{UPWARDS ARROW}"}


def draw(cells, folder):
    """A figure a dataset, as SVG."""
    every, folder = summaries(cells), make_folder(Path(folder))
    for dataset in dict.fromkeys(cell.dataset for cell in every):
        own = {cell: summary for cell, summary in every.items() if cell.dataset == dataset}
        with our_settings():
            figure = by_size.draw(own, dataset)
        write_bytes(folder / f"metrics_{dataset}.svg", rendered(figure, "svg"))


def draw_overview(cells, file):
    """All datasets in one figure, as PNG."""
    with our_settings():
        figure = overview(summaries(cells))
    write_bytes(Path(file), rendered(figure, "png"))


def overview(cells):
    """A column a dataset, a row a score and drop rate, a line a method."""
    datasets, rates = list(dict.fromkeys(cell.dataset for cell in cells)), by_size.rates_of(cells)
    methods = in_order(cell.method for cell in cells)
    figure = new_figure(2.5 * len(datasets) + 0.6, 1.25 * len(SCORES) * len(rates) + 0.7)
    panels = figure.subplots(len(SCORES) * len(rates), len(datasets), squeeze=False, sharex="col")
    for column, dataset in enumerate(datasets):
        own = {cell: summary for cell, summary in cells.items() if cell.dataset == dataset}
        rows = [(score, name, rate) for score, name in SCORES.items() for rate in rates]
        for axes, (score, name, rate) in zip(panels[:, column], rows, strict=True):
            for place, method in enumerate(methods):
                by_size.line(axes, own, method, rate, score, 2.4 * (place - (len(methods) - 1) / 2))
            if column == 0:
                axes.set_ylabel(f"{name}\nrate {rate:g}")
        panels[0, column].set_title(title_of(dataset))
        by_size.size_axis(panels[0, column], sorted({cell.size for cell in own}))
        panels[-1, column].set_xlabel("training images")
    figure.align_ylabels(panels[:, 0])
    samples = {summary.replicas for summary in cells.values()}
    most = f"{'up to ' if len(samples) > 1 else ''}{max(samples)}"
    title = f"Test images, mean and standard deviation over {most} training samples"
    legend(figure, title, methods, {}, columns=5)
    return figure


def draw_rates(rows, file):
    """What `benchmarks/tune.py` found of every method's rates, as PNG."""
    with our_settings():
        figure = rates(rows)
    write_bytes(Path(file), rendered(figure, "png"))


def rates(rows):
    """NLL on validation images by rate: a column a dataset, a row from few images to many, a line a method."""
    places = {}
    for row in rows:
        places.setdefault(row["data"], {}).setdefault(row["size"], []).append(row)
    methods = in_order(row["tried"] for row in rows)
    height = max(len(sizes) for sizes in places.values())
    ticks = sorted({row["rate"] for row in rows})
    figure = new_figure(2.5 * len(places) + 0.6, 1.75 * height + 0.8)
    panels = figure.subplots(height, len(places), squeeze=False, sharex=True)
    for column, (data, sizes) in zip(panels.T, places.items(), strict=True):
        for axes, size in zip(column, sorted(sizes), strict=False):
            for method in methods:
                line = sorted((row["rate"], row["nll"]) for row in sizes[size] if row["tried"] == method)
                axes.plot(*zip(*line, strict=True), color=look(method).colour, linestyle=look(method).dash,
                          marker=look(method).marker)  # fmt: skip
            axes.set_title(f"{title_of(data)}, {size:,}")
            axes.set_xticks(ticks, [f"{rate:g}" if rate >= 0.1 else "" for rate in ticks])
            axes.set_ylim(top=highest(row["nll"] for row in sizes[size]))
        column[-1].set_xlabel("rate")
    for axes in panels[:, 0]:
        axes.set_ylabel(SCORES["nll"])
    figure.align_ylabels(panels[:, 0])
    legend(figure, "Validation images: every method by its rate (what is far above is cut off)", methods, {}, columns=5)
    return figure


def highest(values):
    """Where an axis ends: what is far above the lowest is cut off, so that the rest can be told apart."""
    values = sorted(values)
    low, span = values[0], values[len(values) // 2] - values[0]
    return min(values[-1] + 0.1 * span, low + 4 * span)


def draw_zeros(cells, file):
    """How many weights can be zero, as PNG."""
    with our_settings():
        figure = zeros(cells)
    write_bytes(Path(file), rendered(figure, "png"))


def zeros(cells):
    """Accuracy of the most probable network of `ising` minus that of dropconnect at 0.1 with all weights, by its zeros.

    Paired by training sample, bars the 95% interval; dropout at 0.1 as a line. With 5,000 and 6,000 images, where a
    high delta was tried.
    """
    shown = {}
    for cell in cells:
        dense = [Cell(cell.dataset, cell.size, rival, 0.1) for rival in ("dropconnect", "dropout")]
        if cell.method == "ising" and cell.size in MIDDLE and comparable(cells, cell, *dense):
            shown.setdefault((cell.dataset, cell.size), (*dense, []))[-1].append(cell)
    if not shown:
        raise ValueError(
            "no ising beside dropout and dropconnect at 0.1 with 5,000 or 6,000 images; give folders that have them"
        )
    figure = new_figure(2.5 * len(shown) + 0.6, 2.9)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (place, (dense, other, own)) in zip(panels, shown.items(), strict=True):
        found = [(mean(cells, c, "dropped"), c, *difference(as_probable(cells, c), c, dense, "accuracy")) for c in own]
        share, at, middle, low, high = zip(*sorted(found), strict=True)
        bars = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for b, m in zip(high, middle, strict=True)]]
        axes.axhline(0, color=look("dropconnect").colour, linestyle=look("dropconnect").dash)
        axes.axhline(difference(cells, other, dense, "accuracy")[0], color=look("dropout").colour,
                     linestyle=look("dropout").dash)  # fmt: skip
        axes.errorbar(share, middle, bars, color=look("ising").colour, marker=look("ising").marker, elinewidth=1)
        for x, cell, y in zip(share, at, middle, strict=True):
            axes.annotate(f"{cell.rate:g}", (x, y), (4, 4), textcoords="offset points", size=7, color=QUIET)
        axes.set_title(f"{title_of(place[0])}, {place[1]:,}")
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of weights that are zero")
    panels[0].set_ylabel("accuracy minus that of\ndropconnect 0.1")
    words = "Test images: ising with zeros, by delta, beside dropout 0.1 and dropconnect 0.1 with all weights"
    legend(figure, words, in_order(("dropout", "dropconnect", "ising")), {}, columns=5)
    return figure


def as_probable(cells, cell):
    """The cells, this one with the accuracy of its most probable network."""
    return {**cells, cell: {**cells[cell], "accuracy": cells[cell]["probable_accuracy"]}}
