"""What goes on inside a network during a pass, and the gradient of a class score at every place.

Axes: N images, L blocks, H heads, Q query and K key tokens (1 + patches each), C channels of a head, D width, U hidden
    units of an MLP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..methods import attached_to
from ..methods.measure import model_outputs
from ..predict.passes import wide
from .anatomy import Anatomy


@dataclass(frozen=True)
class Trace:
    """One pass and, where a class was asked for, the gradients of that class's score; all float32 at least."""

    logits: Tensor
    """``[N, classes]``."""
    attention: Tensor
    """softmax(q k' / sqrt(C)), ``[N, L, H, Q, K]``."""
    values: Tensor
    """``[N, L, H, K, C]``."""
    mixed: Tensor
    """attention @ values, as `proj` reads it, ``[N, L, H, Q, C]``."""
    hidden: Tensor
    """What the second layer of each MLP reads, ``[N, L, Q, U]``."""
    stream: Tensor
    """The residual stream that enters each block, ``[N, L, Q, D]``."""
    pulls: Pulls | None = None


@dataclass(frozen=True)
class Pulls:
    """Gradients of the score."""

    pixels: Tensor
    """The mean on the way from the baseline to the image, ``[N, channels, rows, columns]``."""
    here: Tensor
    """At the image itself, likewise."""
    mixed: Tensor
    """``[N, L, H, Q, C]``."""
    hidden: Tensor
    """``[N, L, Q, U]``."""
    middle: Tensor
    """Between attention and MLP of each block, ``[N, L, Q, D]``."""
    read: Tensor
    """Of what the classifier reads, already times what is there, by token, ``[N, Q]``."""
    embedded: Tensor
    """Likewise of the embedded tokens that enter the first block, ``[N, Q]``."""


@contextlib.contextmanager
def watched(
    model: nn.Module, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Inside, every pass leaves the inputs and the outputs of these modules in two dictionaries, by name."""
    into: dict[str, Tensor] = {}
    out_of: dict[str, Tensor] = {}
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys(inputs):
            hook = _called(model, name).register_forward_pre_hook(
                lambda module, args, name=name: into.__setitem__(name, args[0])
            )
            stack.callback(hook.remove)
        for name in dict.fromkeys(outputs):
            hook = _called(model, name).register_forward_hook(
                lambda module, args, output, name=name: out_of.__setitem__(name, output)
            )
            stack.callback(hook.remove)
        yield into, out_of


def _called(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(
            f"explain: {name} carries no posterior, and torch computes it inside nn.MultiheadAttention, where nothing "
            "can be seen; attach with the attention included"
        ) from None


def attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """softmax over keys of q k' / sqrt(C): ``[..., Q, C]`` and ``[..., K, C]`` to ``[..., Q, K]``."""
    return (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(-1)


@dataclass(frozen=True)
class Way:
    """The straight way from a baseline to the images, on which pixel gradients are averaged.

        x_k = baseline + (k - 1/2) / steps * (x - baseline),    k = 1 ... steps

    A gradient at the image alone says what a small change would do, and is small where the model is sure; its mean on
    the way says what the whole patch did, and the relevances of all patches add up to S(x) - S(baseline) as the steps
    become many (integrated gradients).
    """

    baseline: float | Tensor = 0.0
    """What an image looks like that says nothing: a number, or pixels that broadcast with an image."""
    steps: int = 4

    def points(self, x: Tensor) -> Tensor:
        """``[steps * N, channels, rows, columns]``, the points of all images together, step by step."""
        baseline = torch.as_tensor(self.baseline, dtype=x.dtype, device=x.device)
        return torch.cat([torch.lerp(baseline.expand_as(x), x, (k + 0.5) / self.steps) for k in range(self.steps)])


def trace(
    model: nn.Module, parts: Anatomy, x: Tensor, target: Tensor | None = None, way: Way | None = None
) -> Trace:  # fmt: skip
    """One pass of a model as it is set to draw, with the gradients of a class's log-odds where a class is given.

    Args:
        model: with the parts that `parts` names.
        parts: of the model.
        x: images ``[N, channels, rows, columns]``.
        target: the class of each image, ``[N]``.
        way: on which pixel gradients are averaged; None: the default one.
    """
    n, way = len(x), way or Way()
    rows = [part for b in parts.blocks for part in (b.query, b.key, b.value)]
    inputs = [name for b in parts.blocks for name in (b.proj, b.fc2, b.first, b.middle)]
    points = x.detach() if target is None else torch.cat([x.detach(), way.points(x.detach())]).requires_grad_()
    seen = watched(model, inputs=inputs, outputs=[*(r.layer for r in rows), parts.norm])
    with seen as (into, out_of), torch.set_grad_enabled(target is not None):
        logits = class_logits(_likelihood(model), model_outputs(model(points)))
        score = None if target is None else log_odds(logits, target.repeat(1 + way.steps)).sum()
    pulls = None
    if score is not None:
        places = [*(into[b.proj] for b in parts.blocks), *(into[b.fc2] for b in parts.blocks)]
        places += [*(into[b.middle] for b in parts.blocks), into[parts.blocks[0].first], out_of[parts.norm]]
        pulls = _pulls(parts, score, [points, *places], n)
    with torch.no_grad(), uncast(x):
        queries, keys, values = (
            torch.stack([parts.by_head(wide(out_of[r.layer][:n, :, r.rows])) for r in rows[k::3]], 1) for k in range(3)
        )
        return Trace(
            logits[:n].detach(), attention_weights(queries, keys), values,
            torch.stack([parts.by_head(wide(into[b.proj][:n])) for b in parts.blocks], 1),
            torch.stack([wide(into[b.fc2][:n]) for b in parts.blocks], 1),
            torch.stack([wide(into[b.first][:n]) for b in parts.blocks], 1),
            pulls,
        )  # fmt: skip


def uncast(x: Tensor) -> torch.autocast:
    """Inside, no autocast: the model may run in half precision, what is made of its passes does not."""
    return torch.autocast(x.device.type, enabled=False)


def class_logits(likelihood: str, outputs: Tensor) -> Tensor:
    """A model's outputs as one logit a class, ``[N, classes]``; as in `predict`, float32 at least."""
    if likelihood == "softmax":
        return wide(outputs)
    if likelihood == "binary":
        f = wide(outputs).reshape(len(outputs), 1)
        return torch.cat([torch.zeros_like(f), f], -1)
    raise ValueError(f"explain: expected a model of classes (softmax or binary), got the likelihood {likelihood!r}")


def log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """log p / (1 - p) of each example's class under a softmax: z_c - log sum over c' != c of exp z_c', ``[N]``."""
    own = logits.gather(-1, target[:, None])
    others = logits.scatter(-1, target[:, None], -torch.inf)
    return own.squeeze(-1) - others.logsumexp(-1)


def _likelihood(model: nn.Module) -> str:
    method = attached_to(model)
    return "softmax" if method is None else method.parts.likelihood.name


def _pulls(parts: Anatomy, score: Tensor, places: list[Tensor], n: int) -> Pulls:
    """Gradients at the first n entries, the images themselves; of pixels the mean over the others, the way to them."""
    depth = len(parts.blocks)
    pixels, *found = (wide(gradient) for gradient in torch.autograd.grad(score, places))
    inner = [gradient[:n] for gradient in found]
    embedded, read = ((wide(place[:n].detach()) * g).sum(-1) for place, g in zip(places[-2:], inner[-2:], strict=True))
    if read.dim() == 1:  # the classifier reads the class token alone
        read = torch.nn.functional.pad(read[:, None], (0, parts.tokens - 1))
    mixed, hidden, middle = (inner[k * depth : (k + 1) * depth] for k in range(3))
    return Pulls(
        pixels[n:].unflatten(0, (-1, n)).mean(0), pixels[:n], torch.stack([parts.by_head(g) for g in mixed], 1),
        torch.stack(hidden, 1), torch.stack(middle, 1), read, embedded,
    )  # fmt: skip
