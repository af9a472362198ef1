"""Folders of runs that are damaged: one line that names what is wrong and what to do, and exit code 2."""

import json
import shutil

import pytest


@pytest.fixture
def damaged(refused, trained, files, tmp_path):
    """A function that damages a copy of the run; `predict` and `evaluate` must refuse it."""

    def check(damage, *names):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(trained, run)
        damage(run)
        refused("predict", run, *files, names=[run, *names])
        refused("evaluate", run, names=[run, *names])

    return check


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', '{"format": 7}', "\x00"])
def test_a_run_json_that_is_none(damaged, text):
    damaged(lambda run: (run / "run.json").write_text(text), "run.json is damaged")


@pytest.mark.parametrize("name", ["data", "method", "recipe", "network", "finished"])
def test_a_run_json_that_lacks_something(damaged, name):
    def remove(run):
        about = json.loads((run / "run.json").read_text())
        del about[name]
        (run / "run.json").write_text(json.dumps(about))

    damaged(remove, "run.json is damaged", name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data", {}, "without data.name, data.origin"),
        ("data", None, "without data.name, data.origin"),
        ("method", {}, "without method.name"),
        ("recipe", [], "without recipe.likelihood"),
        ("network", None, "without network.width, network.patch"),
        ("finished", {}, "without finished.epochs"),
    ],
)
def test_a_run_json_that_lacks_something_within(damaged, name, value, said):
    def change(run):
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, name: value}))

    damaged(change, "run.json is damaged", said, "train again with --overwrite")


def test_settings_of_a_newer_version_are_named_where_they_count(done, refused, trained, files, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["recipe"] |= {"momentum": 0.9}
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "isingformer": "9.9"}))
    names = [tmp_path / "run", "settings that this version does not know (momentum)", "use isingformer 9.9"]
    refused("evaluate", tmp_path / "run", "--validation", names=names)
    refused("compress", tmp_path / "run", "--macs", "0.5", "--out", tmp_path / "small", names=names)
    assert done("predict", tmp_path / "run", *files) == done("predict", trained, *files)


def test_a_run_of_another_version(damaged):
    def change(run):
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, "format": 99, "isingformer": "9.9"}))

    damaged(change, "format 99", "use isingformer 9.9")


@pytest.mark.parametrize("kind", ["model", "posterior"])
def test_tensors_that_are_damaged_or_missing(damaged, kind):
    def change(how):
        def damage(run):
            (file,) = run.glob(f"{kind}-*.safetensors")
            how(file)

        return damage

    for length in (0, 5, 100, -8):
        damaged(change(lambda file, n=length: file.write_bytes(file.read_bytes()[:n])), f"{kind}-", "is damaged")
    damaged(change(lambda file: file.unlink()), f"{kind}-", "is missing")


def test_a_model_without_its_description(damaged):
    damaged(lambda run: (run / "isingformer.json").unlink(), "isingformer.json is missing")
    for text in ("{", "[]", '{"format": 1}'):
        damaged(lambda run, text=text: (run / "isingformer.json").write_text(text), "isingformer.json", "is damaged")


def test_a_damaged_checkpoint_is_named_and_kept(command, refused, tiny, at_step, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    line = ["train", *tiny, "--quiet", "--no-tensorboard", "--out", tmp_path / "run"]
    at_step(6, interrupt)
    assert command(*line).code == 130
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    refused(*line, names=[file, "is damaged"])
