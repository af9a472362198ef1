"""`isingformer explain`: one page for the images, and the numbers of Python."""

import json
import os
import re
import shutil

import pytest
import torch

import isingformer as isf
from isingformer.cli import explain as cli_explain


def test_it_writes_a_page_and_says_what_python_says(done, trained, files, tmp_path):
    out = done("explain", trained, *files[:2], "--out", tmp_path / "page", "--samples", "6", "--seed", "3", "--json")
    found, run = json.loads(out), isf.Run(trained)
    images = run.inputs(run.read_images(files[:2]))
    direct = isf.explain(run.model, images, samples=6, generator=torch.Generator().manual_seed(3))
    for n, row in enumerate(found["images"]):
        assert row["file"] == str(files[n]) and row["class"] == run.classes[int(direct.target[n])]
        assert row["relevance"] == pytest.approx(direct.relevance.patches.mean[n].flatten().tolist(), abs=1e-6)
        regions = direct.relevance.regions(0.9)[n]
        assert (row["for"], row["against"]) == (int((regions == 1).sum()), int((regions == -1).sum()))
        assert 0 <= row["low"] <= row["probability"] <= row["high"] <= 1
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert found["page"] == str(tmp_path / "page" / "index.html")
    assert files[0].name in page and not re.search(r"(src|href)=\"https?:", page)
    steps = " ".join(map(str, run.q_history().steps.tolist()))
    assert f'data-steps="{steps}"' in page and len(steps.split()) == 20  # the slider through the training


def test_in_words_every_image_has_a_line_and_the_page_is_named(done, trained, files, tmp_path):
    lines = done("explain", trained, *files[:2], "--out", tmp_path / "page", "--samples", "4").splitlines()
    assert len(lines) == 3 and lines[-1] == f"the page is {tmp_path / 'page' / 'index.html'}"
    for file, line in zip(files, lines[:2], strict=False):
        assert re.fullmatch(
            rf"{re.escape(str(file))}: \d [\d.]+ \([\d.]+ to [\d.]+\), \d+ of 4 patches surely .*", line
        )


def test_a_single_network_is_sure_of_nothing(done, trained, files, tmp_path):
    said = done("explain", trained, files[0], "--out", tmp_path / "page", "--samples", "1")
    assert " of 4 patches for it, " in said and "surely" not in said


def test_the_class_to_trace_can_be_named(done, trained, files, tmp_path):
    out = done("explain", trained, files[0], "--out", tmp_path / "page", "--samples", "3", "--target", "4", "--json")
    assert json.loads(out)["images"][0]["class"] == "4"


def test_a_run_without_pictures_of_its_training_opens(done, trained, files, tmp_path):
    shutil.copytree(trained, tmp_path / "old")
    (tmp_path / "old" / "q-history.safetensors").unlink()
    done("explain", tmp_path / "old", files[0], "--out", tmp_path / "page", "--samples", "2")
    assert 'id="training"' not in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--target", "cat"), "--target 'cat' is no class"),
        (("--level", "1.5"), "expected a number between 0 and 1, got '1.5'"),
        (("--samples", "0"), "expected a whole number from 1 on"),
    ],
)
def test_wrong_input_is_one_line(command, trained, files, tmp_path, more, said):
    found = command("explain", trained, files[0], "--out", tmp_path / "page", *more)
    assert found.code == 2 and said in found.err and len(found.err.strip().splitlines()) == 1
    assert not (tmp_path / "page").exists()


def test_a_compressed_run_is_refused(command, trained, files, tmp_path):
    shutil.copytree(trained, tmp_path / "small")
    about = json.loads((tmp_path / "small" / "run.json").read_text(encoding="utf-8"))
    (tmp_path / "small" / "run.json").write_text(json.dumps(about | {"compressed": {"bayesian": True}}))
    found = command("explain", tmp_path / "small", files[0], "--out", tmp_path / "page")
    assert found.code == 2 and "small is compressed" in found.err and len(found.err.strip().splitlines()) == 1


def test_that_the_bottlenecks_were_not_found_is_said(command, trained, files, tmp_path, monkeypatch):
    def unsettled(model):
        raise ArithmeticError("the sweep does not settle")

    monkeypatch.setattr(cli_explain, "bottlenecks", unsettled)
    found = command("explain", trained, files[0], "--out", tmp_path / "page", "--samples", "2")
    assert found.code == 0 and found.err == "the page has no table of bottlenecks: the sweep does not settle\n"
    assert "one-way" not in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_an_image_whose_name_is_not_utf8_has_its_place_on_the_page(done, trained, files, tmp_path):
    odd = files[0].rename(files[0].with_name(os.fsdecode(b"\xff\xfe.png")))
    text = done("explain", trained, odd, "--samples", "2", "--out", tmp_path / "page")
    assert "\\udcff\\udcfe.png" in text
    assert "udcff" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_too_many_images_are_refused(command, trained, files, tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    for n in range(33):
        (many / f"{n}.png").write_bytes(files[0].read_bytes())
    found = command("explain", trained, many, "--out", tmp_path / "page")
    assert found.code == 2 and "33 images are too many for one page" in found.err
