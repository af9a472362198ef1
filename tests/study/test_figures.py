"""Figures of a study: the files, and that what is drawn is what the records say."""

import dataclasses
import io
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import pytest
import torch
from PIL import Image

from isingformer.study.figures import LOOKS, charts, in_order, look, themed, write_figures
from isingformer.study.figures.samples import as_pixels, first
from isingformer.study.figures.theme import DARK
from isingformer.study.record import Cell, Layer
from records import LAYERS, made_up, study

SMALL = {"datasets": ("mnist",), "sizes": (300, 6000), "rates": (0.1, 0.5), "replicas": 3}
RECORDS = study(**SMALL)
METHODS = ("plain", "dropout", "dropconnect", "ising")


def chart(records, kind, **place):
    """The only figure of a kind, or the one of a size and rate."""
    (found,) = [c for c in charts(records) if c.kind == kind and all(getattr(c, k) == v for k, v in place.items())]
    return found


def of(records, **place):
    return [r for r in records if all(getattr(r.cell, name) == value for name, value in place.items())]


def pictures(classes=10, channels=3, side=8, n=60):
    x = torch.arange(n * channels * side * side).reshape(n, channels, side, side) % 256
    return x.to(torch.uint8), torch.arange(n) % classes, tuple(f"class {k}" for k in range(classes))


def by_label(artists, label):
    (found,) = [artist for artist in artists if artist.get_label() == label]
    return found


def rgb(colour):
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))


def test_every_dataset_size_and_rate_has_its_figures():
    records = study(datasets=("mnist", "cifar10"), replicas=1)
    names = [c.name for c in charts(records, {"mnist": pictures()})]
    assert names[:2] == ["images_mnist", "metrics_mnist"]
    cells = [f"{d}_{s}_{r}" for d in ("mnist", "cifar10") for s in (300, 6000) for r in ("0.1", "0.5")]
    expected = {"images_mnist", "metrics_mnist", "metrics_cifar10"}
    expected |= {f"{kind}_{cell}" for kind in ("calibration", "entropy", "layers") for cell in cells}
    assert len(names) == len(expected)
    assert set(names) == expected


def test_files_are_whole_in_both_formats_and_the_same_every_time(tmp_path):
    records = study(**{**SMALL, "sizes": (300,), "rates": (0.1,), "replicas": 2})
    files = write_figures(records, tmp_path / "a", {"mnist": pictures()})
    assert sorted(file.name for file in (tmp_path / "a").iterdir()) == sorted(file.name for file in files)
    assert len(files) == 2 * len(charts(records, {"mnist": pictures()}))
    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                image.load()
                assert min(image.size) > 300
                assert image.convert("L").getextrema()[0] < 100 < 255 == image.convert("L").getextrema()[1]
        else:
            root = ET.parse(file).getroot()
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "mnist" in "".join(root.itertext()).lower()
    again = write_figures(records, tmp_path / "b", {"mnist": pictures()})
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_metrics_are_means_with_standard_deviations_at_the_sizes():
    figure = chart(RECORDS, "metrics").figure()
    panels = {axes.get_subplotspec().num1: axes for axes in figure.axes}
    scores = ("accuracy", "recall", "precision", "f1", "false_positive_rate", "nll", "ece")
    assert len(panels) == 2 * len(scores)
    for row, score in enumerate(scores):
        for column, rate in enumerate((0.1, 0.5)):
            for method in METHODS:
                axes = panels[2 * row + column]
                bars = by_label(axes.containers, method)
                own = [of(RECORDS, method=method, size=size, rate=None if method == "plain" else rate)
                       for size in (300, 6000)]  # fmt: skip
                values = [[r.scores[score] for r in records] for records in own]
                assert bars.lines[0].get_xdata().tolist() == [300, 6000]
                assert bars.lines[0].get_ydata().tolist() == pytest.approx([statistics.fmean(v) for v in values])
                ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
                for (low, high), found in zip(ends, values, strict=True):
                    assert [low, high] == pytest.approx(
                        [statistics.fmean(found) + sign * statistics.stdev(found) for sign in (-1, 1)]
                    )
                    assert axes.get_ylim()[0] <= low <= high <= axes.get_ylim()[1]
                assert axes.get_xlim()[0] < 300 < 6000 < axes.get_xlim()[1]


def test_calibration_pools_the_predictions_of_all_replicas():
    figure = chart(RECORDS, "calibration", size=300, rate=0.5).figure()
    curve, share = figure.axes
    assert by_label(curve.lines, "diagonal").get_xydata().tolist() == [[0, 0], [1, 1]]
    for method in METHODS:
        records = of(RECORDS, method=method, size=300, rate=None if method == "plain" else 0.5)
        tables = [r.scores["reliability"] for r in records]
        counts = [sum(t[k]["count"] for t in tables) for k in range(15)]
        points = [
            [sum(t[k]["count"] * (t[k][of] or 0) for t in tables) / counts[k] for of in ("confidence", "accuracy")]
            for k in range(15) if counts[k]
        ]  # fmt: skip
        (dots,) = [c for c in curve.collections if c.get_facecolor()[0][:3] == pytest.approx(rgb(look(method).colour))]
        assert dots.get_offsets().tolist() == [pytest.approx(point) for point in points]
        often = [point for point, count in zip(points, [c for c in counts if c], strict=True) if count >= 10]
        assert by_label(curve.lines, method).get_xydata().tolist() == [pytest.approx(point) for point in often]
        stairs = by_label(share.patches, method)
        assert stairs.get_data().values.tolist() == pytest.approx([count / sum(counts) for count in counts])


def test_entropies_are_shares_of_the_right_and_of_the_wrong():
    figure = chart(RECORDS, "entropy", size=6000, rate=0.1).figure()
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    assert list(panels) == list(METHODS)
    for method, axes in panels.items():
        records = of(RECORDS, method=method, size=6000, rate=None if method == "plain" else 0.1)
        for part, sign in (("right", 1), ("wrong", -1)):
            counts = [sum(column) for column in zip(*(getattr(r.entropies, part) for r in records), strict=True)]
            stairs = by_label(axes.patches, part).get_data()
            assert stairs.values.tolist() == pytest.approx([sign * count / sum(counts) for count in counts])
            assert stairs.edges.tolist() == pytest.approx(list(records[0].entropies.edges))
            mean = statistics.fmean(r.scores[f"entropy_{part}"] for r in records)
            assert by_label(axes.lines, f"mean {part}").get_xdata()[0] == pytest.approx(mean)
            assert f"{part}: {sum(counts):,}, mean {mean:.2f}" in [text.get_text() for text in axes.texts]


def test_layers_show_mean_and_bands_of_every_ising_method():
    spread = {name: Layer(0.1 + 0.01 * k, 0.0, (0.02, 0.05, 0.1, 0.2, 0.3 + 0.01 * k)) for k, name in enumerate(LAYERS)}
    cells = [Cell("mnist", 300, method, 0.1) for method in ("ising", "ising-paper", "dropout")]
    records = [dataclasses.replace(made_up(cell, replica), layers=spread) for cell in cells for replica in range(2)]
    figure = chart(records, "layers").figure()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ising", "ising-paper"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(LAYERS)
    for axes in figure.axes:
        means = by_label(axes.lines, "mean")
        assert means.get_xdata() == pytest.approx([layer.mean_q for layer in spread.values()])
        band = by_label(axes.collections, "5% to 95%").get_segments()
        assert [segment[:, 0].tolist() for segment in band] == [
            pytest.approx([layer.quantiles[0], layer.quantiles[4]]) for layer in spread.values()
        ]
        assert axes.get_xlim()[1] > 0.35
        assert by_label(axes.lines, "δ").get_xdata()[0] == 0.1


def test_methods_look_alike_in_all_figures_and_unlike_each_other():
    for size in (300, 6000):
        curve = chart(RECORDS, "calibration", size=size, rate=0.1).figure().axes[0]
        entropy = chart(RECORDS, "entropy", size=size, rate=0.1).figure()
        panels = {axes.get_title(loc="left"): axes for axes in entropy.axes}
        metrics = chart(RECORDS, "metrics").figure().axes[0]
        for method in METHODS:
            colour = look(method).colour
            assert by_label(curve.lines, method).get_color() == colour
            assert by_label(metrics.containers, method).lines[0].get_color() == colour
            assert by_label(panels[method].patches, "right").get_facecolor()[:3] == pytest.approx(rgb(colour))
    looks = list(LOOKS.values())
    for features in ("colour", "dark", "marker", "dash"):
        assert len({getattr(found, features) for found in looks}) == len(looks)
    assert look("something-new") == look("something-new")
    assert in_order(["zebra", "ising", "plain"]) == ["plain", "ising", "zebra"]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("method", LOOKS)
def test_colours_stand_out_from_light_and_dark_pages(method):
    assert 1.05 / (luminance(LOOKS[method].colour) + 0.05) >= 3  # what WCAG asks of graphics
    assert (luminance(LOOKS[method].dark) + 0.05) / (luminance("#181c22") + 0.05) > 4.5


def test_a_study_that_is_not_finished_has_figures_of_what_there_is(tmp_path):
    some = [r for r in RECORDS if r.cell.size == 300 or r.cell.method == "ising"]
    some = [r for r in some if r.cell.method != "dropout" or r.replica == 0]
    undefined = [dataclasses.replace(r, scores={**r.scores, "entropy_wrong": None, "ece": None}) for r in some]
    assert write_figures(undefined, tmp_path)
    bars = by_label(chart(some, "metrics").figure().axes[0].containers, "dropout")
    assert bars.lines[0].get_xdata().tolist() == [300]
    assert not any(len(segment) for segment in bars.lines[2][0].get_segments())  # one replica has no spread
    notes = [t.get_text() for a in chart(undefined, "entropy", size=300, rate=0.1).figure().axes for t in a.texts]
    assert not any(note.startswith("wrong") and "mean" in note for note in notes)


@pytest.mark.parametrize("methods", [("plain",), ("ising",), ("dropout", "made-up-elsewhere")])
def test_any_set_of_methods_with_one_replica(tmp_path, methods):
    assert write_figures(study(datasets=("a $x_1$ <b>/&",), sizes=(300,), methods=methods, replicas=1), tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".png", ".svg"}


def test_predictions_that_are_all_right():
    record = made_up(Cell("mnist", 300, "ising", 0.1), 0, skill=60.0)
    assert sum(record.entropies.wrong) == 0
    for found in charts([record]):
        assert found.files["png"] and found.alt and found.caption


def test_without_records_there_is_nothing(tmp_path):
    assert charts([]) == []
    assert write_figures([], tmp_path / "new") == []


@pytest.mark.parametrize(("classes", "channels", "n"), [(3, 1, 7), (10, 3, 60), (100, 3, 150), (120, 2, 5)])
def test_sample_images_of_any_number_of_classes(classes, channels, n):
    (found,) = charts([], {"leaves": pictures(classes, channels, n=n)})
    with Image.open(io.BytesIO(found.files["png"])) as image:
        assert min(image.size) > 100
    texts = [text.get_text() for text in found.figure().axes[0].texts]
    assert len(texts) == min(classes, 100) and texts[0] == "class 0"


def test_sample_images_are_the_first_of_their_class():
    x, y, _ = pictures(classes=3, channels=1, side=30, n=9)
    assert first(y, 1, 2) == [1, 4]
    tiles = as_pixels(x, [first(y, k, 2) for k in range(4)])
    assert tiles.shape == (4, 2, 30, 30, 4)
    assert torch.equal(tiles[1, 1, ..., 0], x[4, 0]) and torch.equal(tiles[1, 1, ..., 2], x[4, 0])
    assert (tiles[:3, ..., 3] == 255).all() and (tiles[3] == 0).all()
    grey = as_pixels(torch.linspace(-1, 1, 4).reshape(1, 1, 2, 2), [[0]])[0, 0, ..., 0]
    assert grey[0, 0] == 0 and grey[-1, -1] == 255
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]"):
        as_pixels(x[0], [[0]])


def test_drawing_leaves_matplotlib_as_it_was():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from isingformer.study.figures import charts\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "matplotlib.rcParams['axes.facecolor'] = 'red'\n"
        "before = dict(matplotlib.rcParams)\n"
        "from records import study\n"
        "found = charts(study(datasets=('mnist',), sizes=(300,), methods=('ising',), replicas=1))\n"
        "svg = [chart.files['svg'] for chart in found]\n"
        "assert dict(matplotlib.rcParams) == before\n"
        "plt = sys.modules.get('matplotlib.pyplot')  # torchmetrics imports it\n"
        "assert plt is None or not plt.get_fignums()\n"
        "assert b'#ff0000' not in b''.join(svg)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert matplotlib.rcParams["svg.hashsalt"] is None


def test_in_a_page_every_colour_has_a_dark_side():
    for found in charts(study(**{**SMALL, "sizes": (300,), "rates": (0.1,), "replicas": 1})):
        page = themed(found.files["svg"].decode())
        ET.fromstring(page)
        drawn = page.split("</style>", 1)[1]
        assert "var(--c0)" in drawn
        assert not any(colour in drawn for colour in DARK)
        assert "fill: #" not in drawn and "stroke: #" not in drawn
