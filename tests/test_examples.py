"""The fine-tuning examples run, learn, and say what they do where something is missing."""

import re
import runpy
import sys
from pathlib import Path

import pytest

import isingformer as isf

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    def go(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return go


def number(pattern, text):
    return float(re.search(pattern + r" ([\d.]+\d)", text)[1])


def test_a_vit_is_fine_tuned_on_a_folder_of_images(run, tmp_path):
    text = run("finetune_vit.py", "--out", tmp_path / "run", "--epochs", 10, "--count", 400)
    assert number("accuracy", text) > 0.3  # ten classes: chance is 0.1
    assert "'mean_q'" in text and "'kl'" in text
    folder = tmp_path / "run" / "images"
    assert sorted(each.name for each in folder.iterdir()) == [str(digit) for digit in range(10)]
    config = transformers.ViTConfig(**runpy.run_path(str(EXAMPLES / "finetune_vit.py"))["SMALL"], num_labels=10)
    saved = isf.load(tmp_path / "run" / "model", transformers.ViTForImageClassification(config))
    assert isf.attached_to(saved).steps == 10 * 10  # 320 images, 32 a step

    with pytest.raises(SystemExit) as stop:
        run("finetune_vit.py", "--out", tmp_path / "none", "--images", tmp_path)
    assert stop.value.code == 2


def test_a_vit_that_cannot_be_downloaded_is_stood_in_for(run, tmp_path):
    missing = tmp_path / "nowhere"
    text = run("finetune_vit.py", "--out", tmp_path / "run", "--epochs", 1, "--count", 60, "--model", missing)
    assert f"{missing} cannot be had" in text and "a small ViT with random weights stands in" in text


def test_a_text_classifier_is_fine_tuned(run, tmp_path):
    text = run("finetune_text.py", "--out", tmp_path / "run")
    assert number("accuracy", text) > 0.8  # the last word alone gives 0.75
    assert "'mean_q'" in text and "the film was not wonderful" in text


def test_texts_of_ones_own(run, tmp_path):
    file = tmp_path / "texts.csv"
    file.write_text(
        "\n".join(f"{'hot' if i % 2 else 'cold'},{'sun' if i % 2 else 'snow'} number {i}" for i in range(60))
    )
    text = run("finetune_text.py", "--texts", file, "--out", tmp_path / "run", "--epochs", 6)
    assert "12 test texts" in text and number("accuracy", text) > 0.6
    file.write_text("one,only\n")
    with pytest.raises(SystemExit) as stop:
        run("finetune_text.py", "--texts", file, "--out", tmp_path / "run")
    assert stop.value.code == 2
