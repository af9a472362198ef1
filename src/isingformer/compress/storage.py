"""Saving and loading compact networks: safetensors and JSON, never pickle.

A folder holds ``compact.json`` (the widths, and the method where there is one) and one file of tensors, under a name of
its own at every save. The JSON is replaced last, by a rename: whenever the process dies, the folder is the old network
or the new one.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import SAVE_AGAIN, check_utf8, make_folder, read_index, read_tensors, write_json, write_tensors
from .._version import __version__
from ..curvature.likelihood import Likelihood
from ..methods import Attached, attached_to, named_method
from ..methods.storage import likelihood_as_json, saved_likelihood
from ..nn.noise import KeyedNoise, Noise, TorchNoise
from .carry import masks_everywhere, put_method_on
from .compact import CompactViT, empty_compact, freeze, frozen_names
from .shape import Shape

INDEX = "compact.json"
FORMAT = 1
NEEDED: dict[str, tuple[str, ...]] = {"config": (), "file": (), "method": (), "training": ()}


def save_compact(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a `CompactViT`, with its posterior where it kept one; an earlier save there is replaced whole.

    Args:
        model: what `compress` gave.
        folder: created where it does not exist; other files in it are left alone.
    """
    prepared(model, folder)()


def prepared(model: nn.Module, folder: str | os.PathLike[str]) -> Callable[[], None]:
    """The first part of `save_compact`, which takes the room and the time; what it returns puts the network in place.

    Whatever fails in either, the network that was there before stays whole.
    """
    if not isinstance(model, CompactViT):
        raise ValueError(f"save_compact: expected a CompactViT, got {type(model).__name__}; save others with save")
    check_utf8(Path(folder))
    path, handle = make_folder(Path(folder)), attached_to(model)
    file = path / f"compact-{secrets.token_hex(4)}.safetensors"
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if handle is not None:
        tensors |= {f"method.{name}": tensor for name, tensor in handle.state_dict().items()}
    index = {
        "format": FORMAT,
        "isingformer": __version__,
        "torch": torch.__version__,
        "config": model.config,
        "method": None if handle is None else _described(handle),
        "training": model.training,
        "frozen": frozen_names(model),
        "file": file.name,
    }
    write_tensors(file, tensors)

    def put_in_place() -> None:
        try:
            write_json(path / INDEX, index)
        except BaseException:
            if file.name not in _text_of(path / INDEX):  # the new index may be in place already
                file.unlink(missing_ok=True)
            raise
        for old in path.glob("*.safetensors"):
            if re.fullmatch(r"compact-[0-9a-f]{8}\.safetensors", old.name) and old != file:
                old.unlink(missing_ok=True)

    return put_in_place


def load_compact(folder: str | os.PathLike[str], *, likelihood: Likelihood | None = None) -> CompactViT:
    """Read a saved `CompactViT`, with its method attached where it had one, in the mode it had.

    Args:
        folder: what `save_compact` wrote.
        likelihood: where its method has a likelihood object of the caller's, that object again.
    """
    return read_compact(Path(folder), likelihood)


def read_compact(path: Path, likelihood: Likelihood | None = None, remedy: str = SAVE_AGAIN) -> CompactViT:
    """`load_compact`, whose errors about missing or damaged files end with the remedy."""
    index = _read_index(path, remedy)
    tensors = read_tensors(path / index["file"], remedy=remedy)[0]
    own = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    compact = empty_compact(Shape.from_config(index["config"]), own["head.weight"])
    compact.load_state_dict(own)
    freeze(compact, index.get("frozen", ()))  # left out by folders from before it was kept
    if index["method"] is not None:
        state = {name.removeprefix("method."): t for name, t in tensors.items() if name.startswith("method.")}
        meaning = saved_likelihood("load_compact", path, index["method"], likelihood)
        _put_back(compact, index["method"], state, meaning)
    return compact.train(index["training"])


def _described(handle: Attached) -> dict[str, Any]:
    return {
        "name": handle.method.name,
        "settings": handle.method.settings(),
        "examples": handle.examples,
        "steps": handle.planned_steps,
        **likelihood_as_json(handle.parts.likelihood),
        "noise_sd": {name: part.noise_sd for name, part in handle.parts.posteriors.items()},
        "node_rate": {name: part.node_rate for name, part in handle.parts.posteriors.items()},
        "everywhere": masks_everywhere(handle),
    }


def _put_back(compact: CompactViT, about: dict[str, Any], state: dict[str, Tensor], likelihood: Likelihood) -> None:
    noise: Noise = KeyedNoise(state["noise.keys"]) if "noise.keys" in state else TorchNoise()
    handle = put_method_on(
        compact, named_method(about["name"], settings=about["settings"]), examples=about["examples"],
        steps=about["steps"], noise=noise, noise_sd=about["noise_sd"], everywhere=about.get("everywhere", False),
        node_rate=about.get("node_rate"),  # left out by folders from before it was kept
        likelihood=likelihood,
    )  # fmt: skip
    handle.load_state_dict(state)


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _read_index(path: Path, remedy: str) -> dict[str, Any]:
    file = path / INDEX
    if not file.is_file():
        raise FileNotFoundError(f"load_compact: {path} holds no compact network ({INDEX} is missing); {remedy}")
    return read_index(file, remedy, number=FORMAT, needed=NEEDED, what="load_compact: ")
