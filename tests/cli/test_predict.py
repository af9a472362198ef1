"""`isingformer predict`: a row an image, in the order of the files, with the numbers of Python."""

import csv
import io
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import isingformer as isf

NUMBERS = ("probability", "low", "high", "entropy", "aleatoric", "epistemic")
SAMPLES = ("--samples", "7")


def as_json(text):
    return json.loads(text)["images"]


def as_csv(text):
    return [
        {name: float(value) if name in NUMBERS else value for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


def as_table(text):
    head, *lines = text.splitlines()
    assert re.match(r"image +class +probability +90% interval +entropy = aleatoric \+ epistemic$", head)
    form = r"(.+?)  +(\S+)  +([\d.]+)  ([\d.]+) to ([\d.]+)  +([\d.]+) = +([\d.]+) \+ ([\d.]+)"
    found = [re.fullmatch(form, line).groups() for line in lines]
    return [{"file": f, "class": c, **dict(zip(NUMBERS, map(float, n), strict=True))} for f, c, *n in found]


READERS = {(): as_table, ("--csv",): as_csv, ("--json",): as_json}


@pytest.mark.parametrize("form", READERS, ids=str)
def test_every_form_has_the_numbers_of_python(done, trained, files, form):
    rows = READERS[form](done("predict", trained, *files, *SAMPLES, "--seed", "3", *form))
    run = isf.Run(trained)
    found = run.predict(files, samples=7, seed=3)
    low, high = np.quantile(found.samples.numpy(), [0.05, 0.95], axis=0)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for n, row in enumerate(rows):
        best = int(found.probs[n].argmax())
        assert row["class"] == run.classes[best]
        expected = (
            found.probs[n, best],
            low[n, best],
            high[n, best],
            found.entropy[n],
            found.aleatoric[n],
            found.epistemic[n],
        )
        got = [row[name] for name in NUMBERS]
        assert got == pytest.approx([float(value) for value in expected], abs=5.1e-4 if form == () else 1e-6)
        assert 0 <= row["low"] <= row["high"] <= 1
        assert row["entropy"] == pytest.approx(row["aleatoric"] + row["epistemic"], abs=1.6e-3 if form == () else 1e-5)


def test_json_has_all_classes(done, trained, files):
    found = json.loads(done("predict", trained, *files, *SAMPLES, "--json"))
    assert (found["run"], found["samples"], found["level"]) == (str(trained), 7, 0.9)
    for row in found["images"]:
        probabilities = row["probabilities"]
        assert list(probabilities) == [str(digit) for digit in range(10)]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert max(probabilities, key=probabilities.get) == row["class"]
        assert probabilities[row["class"]] == row["probability"]


def test_an_image_file_is_the_image_of_the_data_set(done, trained, files, digits):
    rows = as_json(done("predict", trained, *files, *SAMPLES, "--json"))
    direct = isf.Run(trained).predict(digits.test.x[: len(files)], samples=7).probs.max(-1).values
    assert [row["probability"] for row in rows] == pytest.approx(direct.tolist())


def test_rows_come_in_the_order_of_the_files_each_once(done, trained, files):
    folder = files[0].parent
    rows = as_csv(done("predict", trained, files[4], folder, files[2], *SAMPLES, "--csv"))
    order = [4, 0, 1, 2, 3, 5]  # the folder's in order, but for the one that came before
    assert [row["file"] for row in rows] == [str(files[n]) for n in order]
    alone = {row["file"]: row for row in as_csv(done("predict", trained, folder, *SAMPLES, "--csv"))}
    for row in rows:
        other = alone[row["file"]]
        assert row["class"] == other["class"]
        assert [row[name] for name in NUMBERS] == pytest.approx([other[name] for name in NUMBERS], abs=1e-5)


def test_a_folder_is_searched_below_and_other_files_are_passed_over(done, trained, files):
    folder = files[0].parent
    (folder / "deep" / "er").mkdir(parents=True)
    files[5].rename(folder / "deep" / "er" / "x.png")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"")
    rows = as_csv(done("predict", trained, folder, *SAMPLES, "--csv"))
    assert {row["file"] for row in rows} == {*map(str, files[:5]), str(folder / "deep" / "er" / "x.png")}


def test_names_with_commas_quotes_and_letters_survive(done, trained, files):
    names = ["a, b.png", 'c "d".png', "é ß 中.png"]
    for file, name in zip(files, names, strict=False):
        file.rename(file.with_name(name))
    given = [files[0].with_name(name) for name in names]
    for form, read in READERS.items():
        assert [row["file"] for row in read(done("predict", trained, *given, *SAMPLES, *form))] == list(map(str, given))


@pytest.mark.parametrize("form", READERS, ids=str)
def test_a_name_that_is_not_utf8_is_printed_escaped(start, trained, files, form):
    files[0].rename(files[0].with_name(os.fsdecode(b"\xff\xfe.png")))
    strict = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
    out, err = start("predict", trained, files[0].parent, *SAMPLES, *form, env=strict).communicate()
    assert err == ""
    assert "\\udcff\\udcfe.png" in out and len(READERS[form](out)) == len(files)


def test_the_level_sets_how_wide_the_interval_is(done, trained, files):
    wide = as_json(done("predict", trained, *files, "--json"))
    narrow = as_json(done("predict", trained, *files, "--json", "--level", "0.5"))
    for one, other in zip(wide, narrow, strict=True):
        assert one["low"] <= other["low"] <= other["high"] <= one["high"]
        assert other["high"] - other["low"] < one["high"] - one["low"]
    assert "50% interval" in done("predict", trained, *files, "--level", "0.5")


def test_a_temperature_sharpens_every_pass(done, trained, files):
    warm = as_json(done("predict", trained, *files, *SAMPLES, "--json", "--temperature", "0.4"))
    samples = isf.Run(trained).predict(files, samples=7).samples.double().pow(1 / 0.4)
    probs = (samples / samples.sum(-1, keepdim=True)).mean(0)
    for row, expected in zip(warm, probs, strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert row["entropy"] == pytest.approx(float(torch.special.entr(expected).sum()), abs=1e-4)
        assert row["entropy"] == pytest.approx(row["aleatoric"] + row["epistemic"], abs=1e-5)
    plain = done("predict", trained, *files, *SAMPLES, "--json")
    assert done("predict", trained, *files, *SAMPLES, "--json", "--temperature", "1") == plain


def test_the_temperature_of_evaluate_can_be_given_to_predict(done, trained, digits, files, tmp_path):
    """As `predict --help` says: the tempered probabilities are those that `evaluate --temperature` scored."""
    fitted = json.loads(done("evaluate", trained, *SAMPLES, "--temperature", "--json"))
    folder = tmp_path / "all"
    folder.mkdir()
    for n, image in enumerate(digits.test.x):
        Image.fromarray(image[0].numpy()).save(folder / f"{n:03d}.png")
    rows = as_json(done("predict", trained, folder, *SAMPLES, "--json", "--temperature", str(fitted["temperature"])))
    truth = digits.test.y.tolist()
    nll = -np.mean([np.log(row["probabilities"][str(label)]) for row, label in zip(rows, truth, strict=True)])
    assert nll == pytest.approx(fitted["scores"]["nll"], rel=1e-4)


def test_the_seed_draws_the_networks(done, trained, files):
    line = ["predict", trained, *files, *SAMPLES, "--json"]
    assert done(*line) == done(*line, "--seed", "0") != done(*line, "--seed", "1")


def test_resize_fits_size_and_colours(done, refused, trained, files, tmp_path):
    pixels = np.asarray(Image.open(files[0]))
    file = tmp_path / "large.png"
    Image.fromarray(np.repeat(np.repeat(pixels, 4, 0), 4, 1)).convert("RGB").save(file)
    refused("predict", trained, file, names=[file, "32 x 32 RGB", "8 x 8 grey", "--resize"])
    large, small = (as_json(done("predict", trained, f, *SAMPLES, "--json", "--resize"))[0] for f in (file, files[0]))
    assert large["probability"] == pytest.approx(small["probability"], abs=0.05)  # scaling blurs a little
    assert {**small, "file": ""} == {**as_json(done("predict", trained, files[0], *SAMPLES, "--json"))[0], "file": ""}


def test_one_pass_has_no_epistemic_uncertainty(done, trained, files):
    for row in as_json(done("predict", trained, *files, "--samples", "1", "--json")):
        assert row["low"] == row["probability"] == row["high"]
        assert row["epistemic"] == pytest.approx(0, abs=1e-6)


def test_a_reader_that_has_enough_ends_it_quietly(start, trained, files):
    """As in `isingformer predict ... --json | head -1`, with more to say than a pipe holds."""
    folder = files[0].parent
    for n in range(300):
        (folder / f"copy-{n}.png").write_bytes(files[0].read_bytes())
    process = start("predict", trained, folder, "--samples", "2", "--json")
    assert process.stdout.readline() == "{\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_a_reader_that_is_gone_before_the_first_line(command, trained, files, monkeypatch):
    theirs, ours = os.pipe()
    os.close(theirs)
    with os.fdopen(ours, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        found = command("predict", trained, *files, *SAMPLES)
        monkeypatch.undo()
    assert (found.code, found.err) == (0, "")


@pytest.mark.parametrize("form", READERS, ids=str)
@pytest.mark.parametrize("held_back", [1, 8192], ids=["at once", "at the end"])
def test_a_full_disk_below_the_output_is_said(command, trained, files, monkeypatch, form, held_back):
    with open("/dev/full", "w", buffering=held_back) as full:
        monkeypatch.setattr(sys, "stdout", full)
        found = command("predict", trained, *files, *SAMPLES, *form)
        monkeypatch.undo()
    said = "isingformer predict: error: cannot write the output: No space left on device\n"
    assert (found.code, found.err) == (2, said)
