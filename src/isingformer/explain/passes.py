"""`explain`: T passes of an attached vision transformer, each a network drawn anew, with what goes on inside.

Axes: T drawn networks, N images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..nn.masked import in_eval_mode
from ..predict import Prediction
from .anatomy import Anatomy, anatomy
from .architecture import DEFAULT_SAMPLES, architecture_of
from .attention import attention_of, attention_spread
from .explanation import Explanation
from .networks import Networks
from .paths import Shares, shares_of, strongest_paths
from .relevance import relevance_of, relevance_spread
from .traces import Trace, Way, trace, uncast

PATHS = 5
ATTENTION_ERROR = 0.05
"""What rounding may make of the attention that is computed again, as a share of its largest output; bfloat16 is 1%."""


def explain(
    model: nn.Module,
    x: Tensor,
    *,
    samples: int = DEFAULT_SAMPLES,
    target: Tensor | Sequence[int] | int | None = None,
    baseline: float | Tensor = 0.0,
    steps: int = Way.steps,
    paths: int = PATHS,
    level: float = 0.9,
    generator: torch.Generator | None = None,
) -> Explanation:
    """Explain images under T networks drawn from the posterior of an attached vision transformer.

    All images see the same T networks, those that `predict` would draw from a generator in the same state. The model's
    mode does not matter and is left as it was. Keep it to a few dozen images a call: for the paths, the moves between
    all tokens are held for every image and network.

    Args:
        model: an attached `ViT`, `ViTForImageClassification` of transformers or `VisionTransformer` of torchvision.
        x: images ``[N, channels, rows, columns]``, as the model takes them.
        samples: T.
        target: the class to trace back, one or one an image; None: the most probable class of each image.
        baseline: what a patch looks like that says nothing, a number or pixels that broadcast with an image. The
            default 0 is the training mean of standardised images.
        steps: points between baseline and image at which the gradient is taken.
        paths: how many paths to look for in each image.
        level: of the credible intervals in pictures and pages.
        generator: where the seed of the T networks comes from; None: torch's default generator.
    """
    parts = anatomy(model)
    networks = Networks.draw(model, samples, generator)
    _check(parts, x)
    if not 0 < level < 1:
        raise ValueError(f"explain: level must be in (0, 1), got {level}")
    if steps < 1 or paths < 0:
        raise ValueError(f"explain: steps must be 1 or more and paths 0 or more, got {steps} and {paths}")
    model, way = networks.model, Way(baseline, steps)
    with in_eval_mode(model):
        plain = trace(model, parts, x)
    _check_attention(plain)
    expected = plain.logits
    # The most probable class of the T passes is known only after them. That of the expected network is nearly always
    # the same; where it is not, the passes are made again.
    classes = expected.argmax(-1) if target is None else _targets(target, *expected.shape).to(x.device)
    passes = networks.each(partial(one_pass, model, parts, x.detach(), classes, way, paths > 0))
    found = prediction_of(passes).classes
    if target is None and not torch.equal(found, classes):
        classes = found
        passes = networks.each(partial(one_pass, model, parts, x.detach(), classes, way, paths > 0))
    return Explanation(
        parts=parts, images=x.detach(), target=classes, prediction=prediction_of(passes),
        attention=attention_spread([one.attention for one in passes]),
        relevance=relevance_spread([one.relevance for one in passes]),
        paths=tuple(
            tuple(strongest_paths(one, count=paths, level=level)) for one in _by_image([one.shares for one in passes])
        ) if paths else tuple(() for _ in x),
        architecture=architecture_of(networks, parts, level), level=level,
    )  # fmt: skip


class Pass(NamedTuple):
    """What is kept of one pass; the trace itself would fill the memory."""

    logits: Tensor
    attention: tuple[Tensor, Tensor, Tensor, Tensor]
    relevance: tuple[Tensor, Tensor, Tensor]
    shares: Shares | None


def one_pass(
    model: nn.Module, parts: Anatomy, x: Tensor, classes: Tensor, way: Way, with_shares: bool = False
) -> Pass:  # fmt: skip
    """What a model shows of images when it is set to draw one network: traced back from their classes ``[N]``."""
    found = trace(model, parts, x, classes, way)
    with uncast(x):
        return Pass(
            found.logits, attention_of(found.attention, parts.pool), relevance_of(found, x, parts.patch, way.baseline),
            shares_of(found, x, parts.patch, way.baseline) if with_shares else None,
        )  # fmt: skip


def _by_image(passes: list[Shares | None]) -> Iterator[Shares]:
    """The shares of each image under all networks, with the leading axis T."""
    found = [one for one in passes if one is not None]
    for n in range(len(found[0].starts)):
        yield Shares(*(torch.stack([getattr(one, name)[n] for one in found]) for name in ("starts", "moves", "ends")))


def prediction_of(passes: Sequence[Pass]) -> Prediction:
    """The predictive distribution of T passes."""
    return Prediction(torch.stack([one.logits for one in passes]).softmax(-1))


def _check(parts: Anatomy, x: Tensor) -> None:
    rows, columns = (side * parts.patch for side in parts.grid)
    expected = [parts.channels, rows, columns]
    if not isinstance(x, Tensor) or x.dim() != 4 or list(x.shape[1:]) != expected or not len(x):
        given = f"a tensor of shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"explain: x must be at least one image of shape {expected}, [N, ...], got {given}")


def _check_attention(found: Trace) -> None:
    """Refuse a model whose attention is not what its queries and keys say: with a bias or a mask of its own, say."""
    error, scale = (found.attention @ found.values - found.mixed).abs().max(), found.mixed.abs().max()
    if error > ATTENTION_ERROR * scale:
        raise ValueError(
            "explain: expected attention that is softmax(q k' / sqrt(channels)) of its query and key layers, and this "
            f"model's differs from it by up to {float(error / scale):.0%} of its largest output"
        )


def _targets(target: Tensor | Sequence[int] | int, n: int, count: int) -> Tensor:
    classes = torch.as_tensor(target, dtype=torch.int64)
    classes = classes.expand(n) if classes.dim() == 0 else classes
    if classes.shape != (n,):
        raise ValueError(f"explain: target must be one class or {n}, one an image, got {list(classes.shape)}")
    if int(classes.min()) < 0 or int(classes.max()) >= count:
        raise ValueError(f"explain: target must be classes 0 ... {count - 1}, got {classes.tolist()}")
    return classes
