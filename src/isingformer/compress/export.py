"""Networks as files that other programs run: ONNX, and programs of torch.export.

Axes: images ``[B, C, H, W]``, probabilities ``[B, classes]``; B is free, all else is fixed.

    p = probabilities(f(x))                                 one network: deterministic, or the expected one
    p = mean over t = 1 ... T of probabilities(f_t(x))      T networks, drawn once by a seed

The T networks are those that `predict` draws, of our `ViT` or of a `CompactViT`, with a generator of that seed on the
same device. They run side by side, with one product a layer, so that a graph of many is no longer than a graph of one.
Only weights are drawn: the file holds every weight T times and all else once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .._files import make_folder, write_bytes
from ..curvature.likelihood import Likelihood
from ..curvature.likelihood import likelihood as find_likelihood
from ..methods import Attached, attached_to
from ..nn.masked import drawing, in_eval_mode, node_masks
from ..nn.noise import KeyedNoise
from ..predict.passes import wide
from .compact import CompactAttention, CompactViT, empty_compact
from .remove import expected_state
from .shape import shape_of
from .translate import ours

Format = Literal["onnx", "torch"]
SUFFIX: dict[str, str] = {"onnx": ".onnx", "torch": ".pt2"}
MOST_BYTES = 2_000_000_000
"""What an ONNX file can hold in one piece."""


class ProbabilityGraph(nn.Module):
    """Images to class probabilities; `probability_graph` makes it.

    Args:
        network: a plain network, or T of them side by side.
        likelihood: what its outputs mean.
        samples: T; None: one network.
        mean: of every channel, where images are pixels; None: they are standardised already.
        sd: likewise.
    """

    mean: Tensor | None
    sd: Tensor | None

    def __init__(
        self, network: CompactViT, likelihood: str | Likelihood, samples: int | None, mean: Tensor | None,
        sd: Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.network, self.kind, self.samples = network, find_likelihood(likelihood), samples
        self.register_buffer("mean", None if mean is None else mean.float().view(1, -1, 1, 1))
        self.register_buffer("sd", None if sd is None else sd.float().view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:  # [B, C, H, W]
        """Probabilities, ``[B, classes]``; as in `predict`, float32 at least."""
        x = images if self.mean is None or self.sd is None else (images.float() - self.mean) / self.sd
        x = x.to(self.network.position.dtype)
        if self.samples is None:
            return self.kind.probabilities(wide(self.network(x)))
        return self.kind.probabilities(wide(self.network(x.expand(self.samples, *x.shape)))).mean(0)


class _Layers(nn.Module):
    """T linear layers with one bias: x ``[T, B, ..., in]`` to ``[T, B, ..., out]``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weights: list[Tensor], bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", torch.stack(weights))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x.flatten(1, -2), self.weight.mT).view(*x.shape[:-1], self.weight.shape[-2]) + self.bias


class _Kept(nn.Module):
    """T masks of the embeddings' nodes."""

    kept: Tensor

    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.stack(kept)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:  # [T, B, tokens, D]
        return x * self.kept


@torch.no_grad()
def probability_graph(
    model: nn.Module,
    *,
    samples: int | None = None,
    seed: int = 0,
    mean: Tensor | None = None,
    sd: Tensor | None = None,
    likelihood: str | Likelihood = "softmax",
) -> ProbabilityGraph:
    """A plain module from images to class probabilities; the model stays as it is.

    Args:
        model: a `ViT` or `CompactViT`, with a method or without.
        samples: T networks drawn from the posterior, whose mean is given; None: one pass of the network, or of the
            expected network where there is a posterior.
        seed: of the drawn networks.
        mean: of every channel ``[C]``: images are then pixels, as the training data had them. None: images are
            standardised, as the model reads them.
        sd: likewise; give both or neither.
        likelihood: what the outputs mean, where the model has no method to say it.
    """
    if (mean is None) != (sd is None):
        raise ValueError(f"export: give mean and sd together, got mean={mean} and sd={sd}")
    if samples is not None and samples < 1:
        raise ValueError(f"export: samples must be a number of networks from 1 on, or None, got {samples}")
    model = ours(model)
    shape, handle = shape_of(model), attached_to(model)
    if handle is None and samples is not None:
        raise ValueError(
            f"export: samples={samples} networks are drawn from a posterior, and this {type(model).__name__} has none; "
            "leave samples out, or compress with bayesian=True"
        )
    network = empty_compact(shape.compact(), model.get_parameter("head.weight"))
    network.load_state_dict(model.state_dict() if handle is None or samples is not None else expected_state(handle))
    if handle is not None and samples is not None:
        _draw(network, handle, samples, seed)
    kind = likelihood if handle is None else handle.parts.likelihood
    return ProbabilityGraph(network, kind, samples, mean, sd).cpu().eval().requires_grad_(False)


def export(
    model: nn.Module,
    file: str | os.PathLike[str],
    *,
    format: Format = "onnx",
    samples: int | None = None,
    seed: int = 0,
    mean: Tensor | None = None,
    sd: Tensor | None = None,
    pixels: torch.dtype = torch.uint8,
    likelihood: str | Likelihood = "softmax",
) -> Path:
    """Write `probability_graph` to a file, whole or not at all; input ``images``, output ``probabilities``.

    Args:
        model: as `probability_graph` takes it, with the other arguments.
        file: where to; a file that is there is replaced.
        format: ``onnx``, for onnxruntime and others; ``torch``, for `torch.export.load`.
        samples: see `probability_graph`.
        seed: likewise.
        mean: likewise.
        sd: likewise.
        pixels: type of the images where `mean` and `sd` are given; without them it is that of the model.
        likelihood: see `probability_graph`.

    Raises:
        ImportError: ``onnx`` without the packages it takes.
    """
    check_format(format)
    graph, shape = probability_graph(
        model, samples=samples, seed=seed, mean=mean, sd=sd, likelihood=likelihood
    ), shape_of(model)  # fmt: skip
    held = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    if format == "onnx" and held > MOST_BYTES:
        raise ValueError(
            f"export: {samples} networks take {held:,} bytes, and an ONNX file holds {MOST_BYTES:,}; draw fewer, or "
            "use format='torch'"
        )
    dtype = graph.network.position.dtype if mean is None else pixels
    images = torch.zeros(2, shape.channels, shape.image_size, shape.image_size, dtype=dtype)
    path = Path(file)
    make_folder(path.parent)
    with torch.no_grad(), _quiet():
        program = torch.export.export(graph, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        written = io.BytesIO()
        if format == "torch":
            torch.export.save(program, written)
        else:
            names = {"input_names": ["images"], "output_names": ["probabilities"]}
            made = torch.onnx.export(program, (images,), dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
            assert made is not None  # it is where no file is given
            written.write(made.model_proto.SerializeToString())
    write_bytes(path, written.getvalue())
    return path


def check_format(format: str) -> None:
    """Refuse a format that is unknown, or that lacks its packages."""
    if format not in get_args(Format):
        raise ValueError(f"export: format must be one of {', '.join(get_args(Format))}, got {format!r}")
    lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if format == "onnx" and lacking:
        raise ImportError(
            f"export: format='onnx' needs {' and '.join(lacking)}; pip install 'isingformer[onnx]', or use "
            "format='torch'"
        )


def _draw(network: CompactViT, handle: Attached, samples: int, seed: int) -> None:
    """Put T drawn matrices in the place of every one, in place."""
    model, parts = handle.model, handle.parts.posteriors
    key = torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed))  # as `predict` takes it
    noise = KeyedNoise(key.to(network.position.device))
    drawn: dict[str, list[Tensor]] = {name: [] for name in parts}
    kept: dict[str, list[Tensor]] = {name: [] for name in node_masks(model)}
    with in_eval_mode(model), drawing(model, "mask", noise):
        for t in range(samples):
            noise.set(masks=t, weights=t)
            for name, part in parts.items():
                drawn[name].append(part.draw(handle.parts.mean(name)))
            for name, mask in node_masks(model).items():
                kept[name].append(mask(torch.ones_like(network.position[0, 0])))
    for name, weights in drawn.items():
        network.set_submodule(name, _Layers(weights, network.get_parameter(f"{name}.bias").detach()))
    for name, masks in kept.items():
        network.set_submodule(name, _Kept(masks))
    for module in network.modules():
        if isinstance(module, CompactAttention):
            module.even = False  # ONNX has fused attention for one axis of images, not for networks and images


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, torch does not say which packages it would also know how to export."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # of one part of torch to another
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        log.setLevel(level)
