"""Saving and loading an attached model: safetensors and JSON, never pickle.

A folder holds ``isingformer.json`` (settings, and the names of the two other files), the model's tensors and the
method's. The tensor files have a name of their own at every save and the JSON is replaced last, by a rename: whenever
the process dies, the folder is the old model or the new one.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import (
    SAVE_AGAIN,
    check_tensors,
    check_utf8,
    make_folder,
    read_index,
    read_tensors,
    write_json,
    write_tensors,
)
from .._version import __version__
from ..curvature.likelihood import LIKELIHOODS, Gaussian, Likelihood
from ..curvature.likelihood import likelihood as find_likelihood
from ..ising import Reading
from ..nn.vit import ViT
from ..topology import Topology, find_topology
from .attach import attach_as
from .attached import Attached, attached_to
from .base_rate import never_learned
from .distributed import by_first, nothing
from .dropconnect import DropConnect
from .dropout import Dropout
from .ising import Ising
from .method import Method
from .plain import Plain
from .sharded import model_tensors, plain_class

INDEX = "isingformer.json"
FORMAT = 1
NEEDED = {
    "model": ("class", "config"), "method": ("name", "settings"), "files": ("model", "posterior"),
    "examples": (), "steps": (), "likelihood": (), "variance": (), "readers": (), "training": (),
}  # fmt: skip
_METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Ising, DropConnect, Dropout, Plain)}


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write an attached model, weights and posterior, into a folder; an earlier save there is replaced whole.

    Where `fully_shard` has cut the model up, all processes must call it; the first one writes, the others wait for it.

    Args:
        model: an attached model. Our `ViT` is rebuilt by `load`; any other class must be built by the caller.
        folder: created where it does not exist; other files in it are left alone.
    """
    model = getattr(model, "_orig_mod", model)
    method = attached_to(model)
    if method is None:
        raise ValueError(f"save: this {type(model).__name__} carries no method; attach one, or save its state_dict")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"save: {path} is a file; give a folder")
    if never_learned(method):
        warnings.warn(
            "delta was never learned, though learn_delta asks for it: where you train in a loop of your own, call "
            "method.learn_delta(x, targets=y) with held-out examples, or leave learn_delta out",
            stacklevel=2,
        )
    tensors = model_tensors(model, method), method.state_dict()  # all processes, where it is sharded
    write = functools.partial(_write, path, model, method, *tensors)
    if method.parts.pieces:
        by_first(write, nothing, next(iter(method.parts.posteriors.values())).drop.device)
    else:
        write()


def _write(
    path: Path, model: nn.Module, method: Attached, weights: Mapping[str, Tensor], posterior: Mapping[str, Tensor]
) -> None:
    check_utf8(path)
    make_folder(path)
    tag = secrets.token_hex(4)
    files = {"model": f"model-{tag}.safetensors", "posterior": f"posterior-{tag}.safetensors"}
    index = {
        "format": FORMAT,
        "isingformer": __version__,
        "torch": torch.__version__,
        "model": {"class": plain_class(model, method).__name__, "config": _config(model, method)},
        "method": {"name": method.method.name, "settings": method.method.settings()},
        "examples": method.examples,
        "steps": method.planned_steps,
        **likelihood_as_json(method.parts.likelihood),
        "readers": method.readers,
        "topology": topology_as_json(method.parts.topology),
        "training": model.training,
        "files": files,
    }
    fresh = [path / name for name in files.values()]
    try:
        write_tensors(fresh[0], weights)
        write_tensors(fresh[1], posterior)
        write_json(path / INDEX, index)
    except BaseException:
        for file in fresh if tag not in _text_of(path / INDEX) else []:  # the new index may be in place already
            file.unlink(missing_ok=True)
        raise
    for old in saved_tensors(path):
        if old not in fresh:
            old.unlink(missing_ok=True)


def _config(model: nn.Module, method: Attached) -> dict[str, Any] | None:
    """What builds the model again: ours, and no subclass of it, whose forward we do not know."""
    return model.config if plain_class(model, method) is ViT and isinstance(model, ViT) else None


def load(
    folder: str | os.PathLike[str], model: nn.Module | None = None, *, likelihood: Likelihood | None = None
) -> nn.Module:
    """Read a saved model, with its method attached and in the mode it had.

    Args:
        folder: what `save` wrote.
        model: for a class other than our `ViT`, a freshly built model of the same structure, which is filled in.
        likelihood: where the method was attached with a likelihood object of the caller's, that object again.
    """
    path = Path(folder)
    index = _read_index(path)
    tensors = {kind: read_tensors(path / name)[0] for kind, name in index["files"].items()}
    about = index["model"]
    built = model
    if built is None and about["config"] is not None:
        with torch.random.fork_rng(devices=[]):  # its initial weights are not used, so no one's generator is moved
            built = ViT(**about["config"]).to(tensors["model"]["head.weight"].dtype)
    if built is None:
        raise ValueError(
            f"load: {path} holds a {about['class']}, which only you can build; pass a fresh one: "
            f"load(folder, model={about['class']}(...))"
        )
    meaning = saved_likelihood("load", path, index, likelihood)
    kind = _METHODS[index["method"]["name"]](**index["method"]["settings"])
    _check_fits(path, built, tensors["model"])
    topology = _topology(built, index)
    handle = attach_as(
        built, kind, topology, examples=index["examples"], steps=index["steps"], likelihood=meaning,
        readers=index["readers"],
        seeds=tensors["posterior"]["noise.keys"].tolist() if "noise.keys" in tensors["posterior"] else None,
    )  # fmt: skip
    try:
        handle.load_state_dict(tensors["posterior"])
    except ValueError:
        handle.detach()
        raise
    built.load_state_dict(tensors["model"])
    return built.train(index["training"])


def likelihood_as_json(kind: Likelihood) -> dict[str, Any]:
    """What `saved_likelihood` needs: a name alone does not tell one of ours from an object of the same name."""
    return {
        "likelihood": kind.name,
        "own_likelihood": type(kind) is not type(LIKELIHOODS.get(kind.name)),
        "variance": kind.variance if isinstance(kind, Gaussian) else None,
    }


def saved_likelihood(what: str, path: Path, about: Mapping[str, Any], given: Likelihood | None) -> Likelihood:
    """What the outputs mean: one of ours by its name, or the caller's object.

    Args:
        what: the caller, for the message.
        path: of the folder, likewise.
        about: what `likelihood_as_json` gave.
        given: by the caller.
    """
    name, variance = about["likelihood"], about["variance"]
    if given is not None and given.name != name:
        raise ValueError(
            f"{what}: {path} was saved with the likelihood {name!r}, got {given.name!r}; give the same one"
        )
    own = about.get("own_likelihood", name not in LIKELIHOODS)  # left out by folders from before it was kept
    if given is None and own:
        raise ValueError(
            f"{what}: {path} was saved with a likelihood object of yours, {name!r}; pass it: {what}(folder, "
            "likelihood=...)"
        )
    return given or (Gaussian(variance) if variance is not None else find_likelihood(name))


def topology_as_json(topology: Topology) -> dict[str, Any]:
    """A topology as plain values: a model need not be run again to be loaded."""
    return {
        "layers": list(topology.layers),
        "wiring": {
            name: [
                [each.rows.start, each.rows.stop, list(each.readers), each.columns.start, each.columns.stop,
                 each.head_size]
                for each in readings
            ]
            for name, readings in topology.wiring.items()
        },
        "node_layers": list(topology.node_layers),
        "embeddings": {name: list(parameters) for name, parameters in topology.embeddings.items()},
        "example_axes": dict(topology.example_axes),
        "flat": list(topology.flat),
    }  # fmt: skip


def _topology(model: nn.Module, index: Mapping[str, Any]) -> Topology:
    saved = index.get("topology")
    if saved is None:  # a folder from before it was kept
        return find_topology(model, index["readers"])
    wiring = {
        name: tuple(Reading(slice(a, b), tuple(readers), slice(c, d), size) for a, b, readers, c, d, size in readings)
        for name, readings in saved["wiring"].items()
    }
    embeddings = {name: tuple(parameters) for name, parameters in saved["embeddings"].items()}
    layers, nodes = tuple(saved["layers"]), tuple(saved["node_layers"])
    flat = tuple(saved.get("flat", ()))  # left out by folders from before it was kept
    return Topology(layers, wiring, nodes, embeddings, saved["example_axes"], flat)


def saved_tensors(path: Path) -> list[Path]:
    """The tensor files in a folder that `save` has named; other .safetensors there are not ours."""
    ours = re.compile(r"(model|posterior)-[0-9a-f]{8}\.safetensors")
    return [file for file in path.glob("*.safetensors") if ours.fullmatch(file.name)]


def check_saved(path: Path, remedy: str) -> None:
    """Raise, with the remedy, where a file of a saved model is missing or damaged, without reading its tensors."""
    for name in _read_index(path, "", remedy)["files"].values():
        check_tensors(path / name, remedy)


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _check_fits(path: Path, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    have = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    saved = {name: tuple(tensor.shape) for name, tensor in state.items()}
    odd = sorted(name for name in have.keys() | saved.keys() if have.get(name) != saved.get(name))
    if odd:
        name = odd[0]
        raise ValueError(
            f"load: {path} was saved from another model: {len(odd)} tensors do not fit, first {name!r}, saved "
            f"{saved.get(name, 'nowhere')}, here {have.get(name, 'nowhere')}. Build the model as it was when saved"
        )


def _read_index(path: Path, what: str = "load: ", remedy: str = SAVE_AGAIN) -> dict[str, Any]:
    file = path / INDEX
    if not file.is_file():
        raise FileNotFoundError(
            f"{what}{path} holds no saved model ({INDEX} is missing); give the folder that save() wrote"
        )
    return read_index(file, remedy, number=FORMAT, needed=NEEDED, what=what)
