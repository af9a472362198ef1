"""The figures that are kept beside the tables of the paper's grid: scores by training size."""

from pathlib import Path

from paper_tables import summaries

from isingformer._files import make_folder, write_bytes
from isingformer.explain.look import new_figure
from isingformer.study.figures import by_size
from isingformer.study.figures.style import in_order, legend, our_settings, rendered, title_of

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
