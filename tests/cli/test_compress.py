"""`isingformer compress`: a smaller run, its table, its files; what cannot be is refused and leaves nothing."""

import json
import shutil

import pytest
import torch

import isingformer as isf
from isingformer.compress import CompactRun, CompactViT, load_compact, open_run
from isingformer.compress.report import class_probabilities

QUICK = ("--macs", "0.4", "--samples", "4")


@pytest.fixture(scope="session")
def kept(trained):
    return {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}


def test_the_table_is_the_report(done, trained, tmp_path, digits, kept):
    text = done("compress", trained, *QUICK, "--seed", "3", "--out", tmp_path / "small").splitlines()
    first = [line.split("  ")[0] for line in text[1:]]
    assert first[:8] == ["weights", "parameters", "multiply-adds", "passes", "ms, 1 image", "accuracy", "nll", "ece"]
    assert text[-2:] == ["on 360 images", f"written to {tmp_path / 'small'}"]
    assert {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()} == kept
    network, run = load_compact(tmp_path / "small"), isf.Run(trained)
    assert type(network) is CompactViT and isf.attached_to(network) is None
    found = json.loads((tmp_path / "small" / "compression.json").read_text())
    right = (class_probabilities(network, run.inputs(digits.test.x)).argmax(-1) == digits.test.y).double().mean()
    assert found["after"]["accuracy"] == pytest.approx(float(right)) and found["after"]["passes"] == 1
    before = run.evaluate(samples=4, seed=3).scores
    assert [found["before"][name] for name in ("accuracy", "nll", "ece")] == pytest.approx(
        [before.accuracy, before.nll, before.ece], abs=1e-6
    )
    assert found["after"]["macs"] <= 0.4 * found["before"]["macs"]


def test_the_folder_opens_like_a_run(done, trained, tmp_path, digits, files):
    done("compress", trained, *QUICK, "--out", tmp_path / "small")
    run = open_run(tmp_path / "small")
    assert type(run) is CompactRun and run.finished and not run.bayesian and type(open_run(trained)) is isf.Run
    scores = run.evaluate(samples=3).scores
    assert scores.accuracy == json.loads((tmp_path / "small" / "compression.json").read_text())["after"]["accuracy"]
    network = load_compact(tmp_path / "small")
    expected = class_probabilities(network, isf.Run(trained).inputs(digits.test.x[: len(files)]))
    torch.testing.assert_close(run.predict(files, samples=2).probs, expected)


def test_no_training_takes_the_folder_for_its_own(done, refused, trained, tmp_path, tiny):
    """Beside a new model the old network would stay, and whoever uses network.onnx would not know."""
    out = tmp_path / "small"
    done("compress", trained, *QUICK, "--export", "torch", "--out", out)
    again = ("train", *tiny, "--epochs", "8", "--quiet", "--no-tensorboard", "--out", out)
    (out / ".lock").touch()  # as every training does
    for about in ((out / "run.json").read_text(), "{", None):
        (out / "run.json").unlink() if about is None else (out / "run.json").write_text(about)
        for more in ((), ("--overwrite",)):
            refused(*again, *more, names=[f"{out} holds a compressed network", "another --out"])


def test_the_posterior_can_be_kept_and_compressed_again(done, trained, tmp_path):
    done("compress", trained, *QUICK, "--bayesian", "--out", tmp_path / "small")
    small = open_run(tmp_path / "small")
    assert small.bayesian and isf.attached_to(small.model).method == isf.Run(trained).method.method
    drawn = small.predict(small.data().test.x[:5], samples=6)
    assert float(drawn.epistemic.max()) > 0
    found = json.loads(done("compress", tmp_path / "small", "--macs", "0.5", "--json", "--out", tmp_path / "smaller"))
    assert found["from"] == str(tmp_path / "small") and found["after"]["macs"] <= found["before"]["macs"] / 2


@pytest.mark.parametrize("distil", [(), ("--distil",)], ids=["labels", "distilled"])
def test_recovering_is_repeatable_and_helps(done, trained, tmp_path, distil):
    def after(name, *more):
        return json.loads(done("compress", trained, *QUICK, *more, "--json", "--out", tmp_path / name))["after"]

    plain, one, other = after("a"), after("b", "--recover", "6", *distil), after("c", "--recover", "6", *distil)
    assert one["nll"] == other["nll"] < plain["nll"]


def test_no_epochs_of_recovery_may_be_asked_for(done, trained, tmp_path):
    found = [
        json.loads(done("compress", trained, *QUICK, *more, "--out", tmp_path / name, "--json"))
        for more, name in (((), "a"), (("--recover", "0"), "b"))
    ]
    assert [each["recovered_epochs"] for each in found] == [0, 0]
    assert found[0]["after"]["nll"] == found[1]["after"]["nll"]


def test_json_says_how_it_was_made(done, trained, tmp_path):
    given = ("--weights", "0.6", "--score", "magnitude", "--kinds", "units,heads", "--test-size", "50")
    found = json.loads(done("compress", trained, *given, "--json", "--out", tmp_path / "small"))
    asked = {"weights": 0.6, "macs": None, "score": "magnitude", "structures": ["units", "heads"], "images": 50}
    assert {name: found[name] for name in asked} == asked
    about = json.loads((tmp_path / "small" / "run.json").read_text())
    assert about["command"].startswith("isingformer compress ") and about["network"] == found["network"]
    assert about["compressed"]["from"] == str(trained) and found["exported"] is None


def test_notes_go_to_stderr(command, trained, tmp_path):
    found = command("compress", trained, "--macs", "0.99", "--samples", "2", "--out", tmp_path / "small")
    assert found.code == 0
    assert found.err == (
        "isingformer compress: note: nothing is removed, since the whole network meets the target; give a smaller one\n"
    )
    found = command("compress", trained, "--samples", "2", "--out", tmp_path / "same")
    assert found.err.startswith("isingformer compress: note: nothing is removed (mean q 0.")
    assert found.err.endswith("); give a target, or train with a larger delta\n")


@pytest.mark.parametrize("bayesian", [(), ("--bayesian",)], ids=["one network", "drawn networks"])
def test_an_export_reads_pixels(done, trained, tmp_path, digits, bayesian):
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "small"
    text = done("compress", trained, *QUICK, *bayesian, "--seed", "2", "--export", "onnx", "--out", out)
    assert f"for other programs: {out / 'network.onnx'}" in text
    pixels = digits.test.x[:6]
    (found,) = onnxruntime.InferenceSession(out / "network.onnx").run(None, {"images": pixels.numpy()})
    expected = open_run(out).predict(pixels, samples=4, seed=2).probs
    assert (torch.from_numpy(found) - expected).abs().max() < 1e-4


def test_overwriting(done, refused, trained, tmp_path):
    done("compress", trained, *QUICK, "--export", "torch", "--out", tmp_path / "small")
    (tmp_path / "small" / "notes.txt").write_text("mine")
    first = json.loads((tmp_path / "small" / "compression.json").read_text())
    refused("compress", trained, "--macs", "0.3", "--out", tmp_path / "small", names=["small holds a compressed"])
    done("compress", trained, "--macs", "0.3", "--samples", "2", "--out", tmp_path / "small", "--overwrite")
    assert json.loads((tmp_path / "small" / "compression.json").read_text())["after"]["macs"] < first["after"]["macs"]
    there = {path.name for path in (tmp_path / "small").iterdir() if path.suffix != ".safetensors"}
    assert there == {"run.json", "compact.json", "compression.json", "notes.txt"}  # no graph of the network before


def test_a_training_is_never_replaced(refused, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    for run in (trained, tmp_path / "run"):
        said = refused("compress", run, "--macs", "0.3", "--overwrite", "--out", tmp_path / "run")
        assert "is the run itself" in said or "holds a training, which is not replaced" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--macs", "1.5"], "macs must be the share to keep, in (0, 1), got 1.5"),
        (["--macs", "0.001"], "macs=0.001 is less than can be kept"),
        (["--macs", "0.001"], "ask for more, or add --kinds (structures=)"),
        (["--macs", "0.3", "--weights", "0.3"], "not allowed with argument"),
        (["--latency-ms", "0"], "latency_ms must be a time above 0, got 0.0"),
        (["--latency-ms", "1e-6"], "ask for more, or add --kinds (structures=)"),
        (["--macs", "0.3", "--kinds", "units,neurons"], "--kinds: expected some of units, channels"),
        (["--macs", "0.3", "--kinds", ","], "--kinds: expected some of units, channels"),
        (["--macs", "0.3", "--recover", "-1"], "--recover: expected a whole number from 0 on, got '-1'"),
        (["--macs", "0.3", "--score", "luck"], "invalid choice: 'luck'"),
        (["--macs", "0.3", "--export", "tflite"], "invalid choice: 'tflite'"),
        (["--macs", "0.3", "--distil"], "distilling happens while recovering"),
        (["--macs", "0.3", "--test-size", "999"], "test_size must be 1 to 360, which is all there are, got 999"),
        (["--macs", "0.3", "--device", "tpu"], "device must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused(refused, trained, tmp_path, given, said):
    refused("compress", trained, *given, "--out", tmp_path / "small", names=[said])


def test_runs_that_cannot_be_compressed(done, refused, trained, tmp_path, tiny):
    refused("compress", tmp_path / "none", "--macs", "0.3", "--out", tmp_path / "a", names=["none is no run"])
    done("compress", trained, *QUICK, "--out", tmp_path / "small")
    names = ["small is compressed and deterministic", str(trained)]
    refused("compress", tmp_path / "small", "--macs", "0.3", "--out", tmp_path / "a", names=names)
    plain = ("--method", "plain", "--quiet", "--no-tensorboard", "--out", tmp_path / "plain")
    done("train", *tiny, *plain)
    refused("compress", tmp_path / "plain", "--out", tmp_path / "a", names=["plain has a fixed q", "with a target"])
    done("compress", tmp_path / "plain", *QUICK, "--out", tmp_path / "b")  # the gates ask the images


def test_missing_packages_are_noticed_first(refused, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    given = (*QUICK, "--recover", "1000000", "--export", "onnx", "--out", tmp_path / "small")
    refused("compress", trained, *given, names=["pip install 'isingformer[onnx]'"])
