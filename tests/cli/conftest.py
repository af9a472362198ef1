"""What the tests of the command line share: commands in this process or another, small data, one trained run."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from isingformer.cli import main
from isingformer.data import load_data
from isingformer.train.loop import Loop
from real_data import real_data_folder

TINY = (
    *("--train-size", "128", "--validation", "64", "--batch", "32", "--epochs", "3", "--lr", "1e-2"),
    *("--width", "16", "--depth", "1", "--heads", "2", "--mlp", "16", "--patch", "4"),
)
"""A training of 12 steps, in a tenth of a second."""


@dataclass
class Outcome:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    """Every test works in a folder of its own, so that a run without --out cannot go anywhere else."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture
def command(capfd):
    """A function that runs a command in this process."""

    def run(*arguments):
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        printed = capfd.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture
def done(command):
    """Likewise, of a command that must succeed; what it printed on stdout."""

    def run(*arguments):
        found = command(*arguments)
        assert found.code == 0, found.err
        return found.out

    return run


@pytest.fixture
def refused(command, tmp_path):
    """A function that runs a command which must fail in one line that has all the names in it, and leave no trace."""

    def run(*arguments, names=(), code=2):
        before = contents(tmp_path)
        found = command(*arguments)
        assert found.code == code, found
        assert found.out == ""
        assert found.err.startswith("isingformer") and ": error: " in found.err
        assert found.err.endswith("\n") and len(found.err.splitlines()) == 1, found.err
        assert "Traceback" not in found.err
        for name in names:
            assert str(name) in found.err, found.err
        assert contents(tmp_path) == before
        return found.err

    return run


def contents(folder):
    """Every file below a folder with its bytes, every folder with None; hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in Path(folder).rglob("*")
    }


@pytest.fixture
def start():
    """A function that starts `python -m isingformer` in a process of its own, buffered as on a user's machine."""
    started = []

    def run(*arguments, **settings):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings.pop("env", {})}
        environment.pop("PYTHONUNBUFFERED", None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        line = [sys.executable, "-m", "isingformer", *map(str, arguments)]
        process = subprocess.Popen(line, env=environment, **{**pipes, **settings})
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def at_step(monkeypatch):
    """A function that arranges for something to happen, once, within a training step, when its work is done."""

    def arrange(number, action):
        whole, actions = Loop._step, [action]

        def step(self):
            whole(self)
            if self.progress.step == number and actions:
                actions.pop()()

        monkeypatch.setattr(Loop, "_step", step)

    return arrange


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a run on the digits; for reading only."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["train", *TINY, "--epochs", "8", "--quiet", "--no-tensorboard", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def digits():
    return load_data("digits")


@pytest.fixture
def files(tmp_path, digits):
    """A folder of the first test images, and their paths in order."""
    folder = tmp_path / "images"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(6)]
    for path, image in zip(paths, digits.test.x, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    return paths


@pytest.fixture(scope="session")
def write_npz():
    """A function that writes a data set as an .npz."""

    def write(file, dataset, **more):
        parts = {"x_train": dataset.train.x, "y_train": dataset.train.y, "x_test": dataset.test.x}
        arrays = {name: tensor.numpy() for name, tensor in {**parts, "y_test": dataset.test.y}.items()}
        np.savez(file, **arrays, **more)
        return file

    return write


@pytest.fixture(scope="session")
def write_folder():
    """A function that writes images, given by class as arrays ``[N, H, W]`` or ``[N, H, W, 3]``, as a folder."""

    def write(folder, **classes):
        for name, images in classes.items():
            (folder / name).mkdir(parents=True)
            for number, pixels in enumerate(images):
                Image.fromarray(pixels).save(folder / name / f"{number}.png")
        return folder

    return write


@pytest.fixture(scope="session")
def weights():
    """A function that reads everything that a finished run saved: tensors by name, without the names of the files."""

    def read(folder):
        (model,), (posterior,) = folder.glob("model-*.safetensors"), folder.glob("posterior-*.safetensors")
        assert not (folder / "checkpoint.safetensors").exists()
        return {**load_file(model), **{f"posterior {name}": t for name, t in load_file(posterior).items()}}

    return read


@pytest.fixture(scope="session")
def real_data():
    """The folder that holds the four published data sets, where there is one."""
    return real_data_folder()
