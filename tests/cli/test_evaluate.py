"""`isingformer evaluate`: the scores are those of Python, in a table and as JSON."""

import importlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import isingformer as isf
from isingformer.data import Dataset, Images, load_data, subset
from pictures import corners
from publisher import MNIST, lay_out

SAMPLES = ("--samples", "5")
ROWS = {
    "accuracy": "accuracy",
    "recall (one-vs-all, mean over classes)": "recall",
    "precision": "precision",
    "F1": "f1",
    "false-positive rate": "false_positive_rate",
    "NLL": "nll",
    "Brier": "brier",
    "ECE (top label, 15 bins)": "ece",
    "entropy of right predictions (nats)": "entropy_right",
    "entropy of wrong predictions": "entropy_wrong",
    "mutual information of right predictions": "epistemic_right",
    "mutual information of wrong predictions": "epistemic_wrong",
    "AUROC of entropy for errors": "error_auroc",
    "AUROC of mutual information for errors": "error_auroc_epistemic",
    "area under risk-coverage, by entropy": "aurc",
}
"""What the lines of the table are called, and which score they show."""


def strict(text):
    """JSON as the standard has it: without NaN and Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def in_table(text):
    """The numbers of the printed table by label: (score, score before tempering or None); None for a dash."""
    found = {}
    for label in ROWS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {label}  ")]
        numbers = [
            None if word == "-" else float(word) for word in re.findall(r"-|[\d.]+", line.removeprefix(f"  {label}"))
        ]
        found[label] = (numbers[0], numbers[1] if len(numbers) > 1 else None)
    return found


def rounded(value):
    return None if value is None else pytest.approx(value, abs=5.1e-5)


def test_json_has_the_numbers_of_python(done, trained):
    found = strict(done("evaluate", trained, *SAMPLES, "--seed", "3", "--json"))
    assert found.pop("run") == str(trained)
    assert found == json.loads(json.dumps(isf.Run(trained).evaluate(samples=5, seed=3).as_dict()))
    assert (found["data"], found["on"], found["images"], found["samples"]) == ("digits", "test", 360, 5)


def test_the_seed_draws_the_networks(done, trained):
    line = ["evaluate", trained, *SAMPLES, "--json"]
    assert done(*line) == done(*line) == done(*line, "--seed", "0") != done(*line, "--seed", "1")


def test_the_table_has_the_numbers_of_json(done, trained):
    scores = strict(done("evaluate", trained, *SAMPLES, "--json"))["scores"]
    said = done("evaluate", trained, *SAMPLES)
    assert said.startswith("360 test images of digits, 5 passes\n")
    assert in_table(said) == {label: (rounded(scores[key]), None) for label, key in ROWS.items()}


def test_an_undefined_score_is_a_dash_and_null(done, trained):
    """One image is right or wrong: there is no AUROC of errors, and no entropy of the other kind."""
    scores = strict(done("evaluate", trained, *SAMPLES, "--test-size", "1", "--json"))["scores"]
    assert scores["error_auroc"] is None
    assert (scores["entropy_right"] is None) != (scores["entropy_wrong"] is None)
    said = in_table(done("evaluate", trained, *SAMPLES, "--test-size", "1"))
    assert said == {label: (rounded(scores[key]), None) for label, key in ROWS.items()}


def test_the_temperature_is_the_likeliest_on_the_validation_images(done, trained):
    found = strict(done("evaluate", trained, *SAMPLES, "--temperature", "--json"))
    run = isf.Run(trained)
    held_out = run.validation()
    prediction = run.predict(held_out.x, samples=5)

    def nll(temperature):
        probs = prediction.samples.double().pow(1 / temperature)
        probs = (probs / probs.sum(-1, keepdim=True)).mean(0)
        return -probs[torch.arange(len(held_out)), held_out.y].log().mean().item()

    best = found["temperature"]
    assert best != 1
    assert nll(best) < min(nll(best * 1.02), nll(best / 1.02))
    plain = strict(done("evaluate", trained, *SAMPLES, "--json"))
    assert found["untempered"] == plain["scores"] != found["scores"]
    assert plain["temperature"] is None and plain["untempered"] is None


def test_the_table_shows_the_scores_before_tempering_in_brackets(done, trained):
    found = strict(done("evaluate", trained, *SAMPLES, "--temperature", "--json"))
    said = done("evaluate", trained, *SAMPLES, "--temperature")
    assert f"temperature {found['temperature']:.3f}, fitted on validation data; in brackets without it" in said
    assert in_table(said) == {
        label: (rounded(found["scores"][key]), rounded(found["untempered"][key])) for label, key in ROWS.items()
    }


def test_a_temperature_at_the_end_of_its_range_is_said_to_be_one(done, trained, monkeypatch):
    from isingformer.train import run

    monkeypatch.setattr(run, "fit_temperature", lambda *args: 0.05)
    assert "(an end of the range:" in done("evaluate", trained, *SAMPLES, "--temperature")
    monkeypatch.setattr(run, "fit_temperature", lambda *args: 0.9)
    assert "end of the range" not in done("evaluate", trained, *SAMPLES, "--temperature")


def test_the_calibration_error_follows_from_the_reliability_table(done, trained):
    scores = strict(done("evaluate", trained, *SAMPLES, "--json"))["scores"]
    bins = [row for row in scores["reliability"] if row["count"]]
    assert sum(row["count"] for row in bins) == 360
    gaps = [row["count"] * abs(row["accuracy"] - row["confidence"]) for row in bins]
    assert scores["ece"] == pytest.approx(sum(gaps) / 360)
    said = done("evaluate", trained, *SAMPLES, "--reliability").partition("mean confidence  accuracy\n")[2]
    printed = [[float(word) for word in line.replace(" to ", " ").split()] for line in said.splitlines()]
    expected = [[row[name] for name in ("lower", "upper", "count", "confidence", "accuracy")] for row in bins]
    np.testing.assert_allclose(printed, expected, atol=5.1e-4)
    assert "mean confidence" not in done("evaluate", trained, *SAMPLES)


def test_a_bin_in_which_nothing_is_right_is_printed_too(done, write_npz, trained, digits, tmp_path):
    wrong = Images(digits.test.x, (isf.Run(trained).predict(digits.test.x, samples=5).classes + 1) % 10)
    file = write_npz(tmp_path / "wrong.npz", Dataset("wrong", digits.train, wrong, digits.classes))
    said = done("evaluate", trained, *SAMPLES, "--data", file, "--reliability")
    rows = [line.split() for line in said.partition("mean confidence  accuracy\n")[2].splitlines()]
    assert sum(int(row[3]) for row in rows) == 360
    assert {row[-1] for row in rows} == {"0.0000"}


def test_other_data_are_told_apart_by_their_uncertainty(done, write_npz, trained, digits, tmp_path):
    file = write_npz(tmp_path / "corners.npz", corners())
    found = strict(done("evaluate", trained, *SAMPLES, "--ood", file, "--json"))["outside"]
    run = isf.Run(trained)
    inside, outside = run.predict(digits.test.x, samples=5), run.predict(corners().test.x, samples=5)
    strange = [0] * 360 + [1] * 40
    for name, key in (("entropy", "auroc_entropy"), ("epistemic", "auroc_epistemic")):
        expected = roc_auc_score(strange, torch.cat([getattr(inside, name), getattr(outside, name)]).numpy())
        assert found[key] == pytest.approx(expected, abs=1e-6)
    assert (found["data"], found["images"]) == ("corners", 40)
    assert found["mean_entropy"] == pytest.approx(outside.entropy.mean().item())
    said = done("evaluate", trained, *SAMPLES, "--ood", file)
    assert "  against 40 images of corners:\n" in said
    assert re.search(rf"AUROC of entropy +{found['auroc_entropy']:.4f}\n", said)
    assert re.search(rf"AUROC of mutual information +{found['auroc_epistemic']:.4f}\n", said)


def test_the_validation_images_are_those_held_out(done, trained):
    found = strict(done("evaluate", trained, *SAMPLES, "--validation", "--json"))
    assert (found["on"], found["images"]) == ("validation", 64)
    run = isf.Run(trained)
    held_out = run.validation()
    right = run.predict(held_out.x, samples=5).probs.argmax(-1) == held_out.y
    assert found["scores"]["accuracy"] == pytest.approx(right.double().mean().item())
    assert done("evaluate", trained, *SAMPLES, "--validation").startswith("64 validation images of digits")


def test_a_sample_of_the_test_images(done, trained, digits):
    found = strict(done("evaluate", trained, *SAMPLES, "--test-size", "50", "--json"))
    chosen = subset(digits.test, 50, seed=0)
    right = isf.Run(trained).predict(chosen.x, samples=5).probs.argmax(-1) == chosen.y
    assert found["images"] == 50
    assert found["scores"]["accuracy"] == pytest.approx(right.double().mean().item())


def test_an_npz_of_the_same_classes(done, write_npz, trained, digits, tmp_path):
    """The same images in another order score the same; with the labels moved by one, the accuracy is another's."""
    order = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    test = digits.test.take(order)
    own = strict(done("evaluate", trained, *SAMPLES, "--json"))["scores"]
    file = write_npz(tmp_path / "shuffled.npz", Dataset("shuffled", digits.train, test, digits.classes))
    found = strict(done("evaluate", trained, *SAMPLES, "--data", file, "--json"))
    assert found["data"] == "shuffled"
    for name in ("accuracy", "nll", "ece", "brier", "aurc"):
        assert found["scores"][name] == pytest.approx(own[name], rel=1e-5)
    moved = Images(test.x, (test.y + 1) % 10)
    file = write_npz(tmp_path / "moved.npz", Dataset("moved", digits.train, moved, digits.classes))
    found = strict(done("evaluate", trained, *SAMPLES, "--data", file, "--json"))["scores"]
    predicted = isf.Run(trained).predict(test.x, samples=5).classes
    assert found["accuracy"] == pytest.approx((predicted == moved.y).double().mean().item())


def test_resize_fits_a_folder_of_images_of_all_sizes(done, refused, write_folder, trained, digits, tmp_path):
    """Grey ones of 8 x 8 as the run reads them, and RGB ones of twice the size."""
    chosen = [digits.test.x[digits.test.y == label][:4, 0].numpy() for label in range(10)]
    large = [np.repeat(np.repeat(images, 2, 1), 2, 2)[..., None].repeat(3, -1) for images in chosen]
    folders = {f"d{label}": [*chosen[label], *large[label]] for label in range(10)}
    folder = write_folder(tmp_path / "photos", **folders)
    refused("evaluate", trained, *SAMPLES, "--data", folder, names=[folder, "--resize"])
    found = strict(done("evaluate", trained, *SAMPLES, "--data", folder, "--resize", "--json"))
    assert found["images"] == 20 and found["data"] == "photos"
    test = load_data(folder, resize=8, channels=1).test
    right = isf.Run(trained).predict(test.x, samples=5).classes == test.y
    assert found["scores"]["accuracy"] == pytest.approx(right.double().mean().item())


def test_resize_fits_arrays(done, refused, write_npz, trained, tmp_path):
    file = write_npz(tmp_path / "colour.npz", corners(side=16, channels=3))
    refused("evaluate", trained, *SAMPLES, "--ood", file, names=["3, 16, 16]", "1, 8, 8]", "--resize"])
    assert strict(done("evaluate", trained, *SAMPLES, "--ood", file, "--resize", "--json"))["outside"]["images"] == 40


def test_what_cannot_be_evaluated_is_refused(refused, write_npz, trained, tmp_path):
    file = write_npz(tmp_path / "corners.npz", corners())
    refused("evaluate", trained, "--data", file, names=["corners", "4", trained, "10", "--ood"])
    refused("evaluate", trained, "--test-size", "361", names=["test_size must be 1 to 360", "361"])
    refused("evaluate", trained, "--validation", "--temperature", names=["validation images"])
    refused("evaluate", trained, "--validation", "--test-size", "3", names=["validation images"])
    refused("evaluate", trained, "--validation", "--data", file)
    for flag in ("--data", "--ood"):
        refused("evaluate", trained, flag, tmp_path / "nowhere", names=[tmp_path / "nowhere", "does not exist"])


def test_without_validation_images_there_is_no_temperature(done, refused, tiny, tmp_path):
    run = tmp_path / "run"
    done("train", *tiny, "--validation", "0", "--epochs", "1", "--quiet", "--no-tensorboard", "--out", run)
    refused("evaluate", run, "--temperature", names=[run, "no validation images"])
    refused("evaluate", run, "--validation", names=[run, "no validation images"])


@pytest.fixture
def mnist(done, tiny, tmp_path):
    """A run on a small MNIST of our own, and the folder with its files."""
    base = lay_out(tmp_path / "data", "mnist", MNIST)
    small = ["--train-size", "20", "--validation", "5", "--batch", "10", "--patch", "14", "--epochs", "1"]
    line = ["train", *tiny, *small, "--quiet", "--no-tensorboard", "--data", "mnist", "--data-dir", base]
    done(*line, "--out", tmp_path / "run")
    return tmp_path / "run", base


def test_the_training_data_are_found_again_where_they_were_or_are_now(done, mnist, tmp_path):
    run, base = mnist
    before = done("evaluate", run, *SAMPLES, "--json")
    assert strict(before)["images"] == 10
    base.rename(tmp_path / "elsewhere")
    assert done("evaluate", run, *SAMPLES, "--json", "--data-dir", tmp_path / "elsewhere") == before


def test_data_given_by_a_path_may_move_too(done, refused, write_npz, tiny, digits, tmp_path):
    file = write_npz(tmp_path / "mine.npz", digits)
    run, base = tmp_path / "run", lay_out(tmp_path / "data", "mnist", MNIST)
    done("train", *tiny, "--epochs", "1", "--quiet", "--no-tensorboard", "--data", file, "--out", run)
    before = done("evaluate", run, *SAMPLES, "--json")
    line = ["evaluate", run, *SAMPLES, "--json", "--ood", "mnist", "--data-dir", base, "--offline", "--resize"]
    found = strict(done(*line))  # a data folder for other data leaves the run's own where they are
    assert found["scores"] == strict(before)["scores"] and found["outside"]["images"] == 10
    moved = file.rename(tmp_path / "moved.npz")
    refused("evaluate", run, *SAMPLES, names=[file, "does not exist"])
    assert strict(done("evaluate", run, *SAMPLES, "--json", "--data-dir", moved))["scores"] == strict(before)["scores"]


def test_offline_never_downloads(refused, mnist, monkeypatch):
    run, base = mnist
    fetch = importlib.import_module("isingformer.data.fetch")
    monkeypatch.setattr(fetch, "download", lambda *args, **kwargs: pytest.fail("went online"))
    shutil.rmtree(base / "mnist")
    for more in ((), ("--temperature",), ("--validation",)):
        refused("evaluate", run, "--offline", *more, names=[base / "mnist", "train-images-idx3-ubyte"])


def test_data_that_have_changed_are_refused(refused, mnist):
    run, base = mnist
    file = base / "mnist" / "t10k-images-idx3-ubyte"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    refused("evaluate", run, *SAMPLES, names=["mnist", "have changed", run])
