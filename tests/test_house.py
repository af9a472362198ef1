"""The rules of the house: which room may import which, how long a file may grow, what may be read from disk."""

import ast
from pathlib import Path

import pytest

PACKAGE = "isingformer"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE

# A room may import from itself and from the rooms named before it.
ROOMS = (
    "ising",
    "curvature",
    "nn",
    "topology",
    "methods",
    "data",
    "metrics",
    "predict",
    "train",
    "compress",
    "explain",
    "study",
    "explore",
    "integrations",
    "cli",
)
OUTSIDE = {"__init__", "__main__"}  # they stand at the door: they may import every room, no room imports them
EVERYWHERE = {"_files", "_locks", "_triton", "_version"}  # every room may import them

LONGEST_FILE = 320
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve"}


def modules(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def imported(path: Path, source: Path) -> list[tuple[int, str]]:
    """Line and absolute name of every module that the file imports, wherever in the file it does so."""
    package = (PACKAGE, *path.relative_to(source).parent.parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            climbed = package[: max(len(package) - node.level + 1, 0)] if node.level else ()
            if node.level and not climbed:
                found.append((node.lineno, "." * node.level + (node.module or "")))  # climbs out of the package
            else:
                found.append((node.lineno, ".".join([*climbed, *filter(None, [node.module])])))
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            found += [(node.lineno, str(a.value)) for a in node.args[:1] if isinstance(a, ast.Constant)]
    return found


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def upward_imports(source: Path) -> list[str]:
    complaints = []
    for path in modules(source):
        where = path.relative_to(source)
        room = where.parts[0].removesuffix(".py")
        if len(where.parts) == 1 and room in OUTSIDE | EVERYWHERE:
            continue
        if room not in ROOMS:
            complaints.append(f"{where}: {room!r} is no room, expected one of {', '.join(ROOMS)}")
            continue
        for line, name in imported(path, source):
            root, *inner = name.split(".")
            if name.startswith("."):
                complaints.append(f"{where}:{line}: {name} leads out of {PACKAGE}")
            elif root != PACKAGE or inner[:1] == [room] or (inner and inner[0] in EVERYWHERE):
                continue
            elif not inner:
                complaints.append(f"{where}:{line}: imports from {PACKAGE} itself, name the room instead")
            elif inner[0] not in ROOMS:
                complaints.append(f"{where}:{line}: {name} is in no room, expected one of {', '.join(ROOMS)}")
            elif ROOMS.index(inner[0]) > ROOMS.index(room):
                complaints.append(f"{where}:{line}: {room} may not import {name}, which lies below it")
    return complaints


def unsafe_reads(source: Path) -> list[str]:
    """Every way a file of the package could run code that a stored file brings along."""
    complaints = []
    for path in modules(source):
        where = path.relative_to(source)
        complaints += [
            f"{where}:{line}: imports {name}" for line, name in imported(path, source) if name.split(".")[0] in PICKLERS
        ]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}:
                complaints.append(f"{where}:{node.lineno}: call torch.load by its full name")
            if not isinstance(node, ast.Call):
                continue
            given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            if ast.unparse(node.func) == "torch.load" and given.get("weights_only") is not True:
                complaints.append(f"{where}:{node.lineno}: torch.load without weights_only=True")
            if given.get("allow_pickle", False) is not False:
                complaints.append(f"{where}:{node.lineno}: allow_pickle must be False")
    return complaints


def test_there_is_something_to_check():
    assert modules(SOURCE)


def test_imports_go_downward():
    assert upward_imports(SOURCE) == []


def test_files_stay_short():
    lengths = {str(p.relative_to(SOURCE)): len(p.read_text(encoding="utf-8").splitlines()) for p in modules(SOURCE)}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def test_nothing_is_unpickled():
    assert unsafe_reads(SOURCE) == []


def write(source: Path, name: str, text: str) -> Path:
    path = source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return source


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ising/field.py", "from isingformer.nn import linear"),
        ("ising/field.py", "from isingformer.nn.linear import MaskedLinear"),
        ("ising/field.py", "import os, isingformer.nn.linear as linear"),
        ("ising/field.py", "from ..nn import linear"),
        ("ising/deep/field.py", "from ...nn.linear import MaskedLinear"),
        ("ising/__init__.py", "from ..curvature import fisher"),
        ("topology.py", "from .methods import attach"),
        ("metrics.py", "from .predict import Prediction"),
        ("ising/field.py", "def f():\n    from ..train import loop\n    return loop"),
        ("ising/field.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..study import grid"),
        ("ising/field.py", "import importlib\nimportlib.import_module('isingformer.cli')"),
        ("cli.py", "import isingformer"),
        ("cli.py", "from isingformer import ViT"),
        ("cli.py", "from . import ViT"),
        ("train/loop.py", "from .. import nn"),
        ("train/loop.py", "from isingformer import nn"),
        ("cli.py", "from .__main__ import main"),
        ("ising/field.py", "from ....elsewhere import thing"),
        ("train/loop.py", "from ..helpers import thing"),
        ("helpers.py", "import torch"),
        ("helpers/__init__.py", ""),
        ("ising_extra.py", ""),
    ],
)
def test_a_forbidden_import_is_caught(tmp_path, name, text):
    (complaint,) = upward_imports(write(tmp_path, name, text))
    assert complaint.startswith(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nn/linear.py", "from isingformer.ising import field"),
        ("nn/linear.py", "from isingformer.ising.field import sweep"),
        ("nn/linear.py", "import isingformer.curvature.fisher"),
        ("nn/linear.py", "from ..ising.field import sweep"),
        ("nn/linear.py", "from . import attention"),
        ("nn/linear.py", "from .attention import Attention"),
        ("nn/__init__.py", "from .linear import MaskedLinear"),
        ("nn/__init__.py", "from . import linear"),
        ("topology.py", "from .nn.linear import MaskedLinear"),
        ("cli.py", "from .integrations import ray"),
        ("ising/field.py", "from .._version import __version__"),
        ("ising/field.py", "from isingformer._version import __version__"),
        ("ising/field.py", "import isingformerish, torch.nn, train"),
        ("__init__.py", "from .cli import main\nfrom .ising import field"),
        ("__main__.py", "from isingformer.cli import main"),
    ],
)
def test_an_allowed_import_passes(tmp_path, name, text):
    assert upward_imports(write(tmp_path, name, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from pickle import load",
        "import torch\ntorch.load('a')",
        "import torch\ntorch.load('a', weights_only=False)",
        "import torch\ntorch.load('a', weights_only=flag)",
        "from torch import load",
        "import numpy as np\nnp.load('a', allow_pickle=True)",
    ],
)
def test_an_unsafe_read_is_caught(tmp_path, text):
    assert len(unsafe_reads(write(tmp_path, "data/readers.py", text))) == 1


def test_a_safe_read_passes(tmp_path):
    text = (
        '"""Never torch.load( or pickle."""\nimport torch\ntorch.load("a", weights_only=True)\nread(allow_pickle=False)'
    )
    assert unsafe_reads(write(tmp_path, "data/readers.py", text)) == []
