"""A smaller network out of the posterior: rank, choose, remove."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..methods import Attached
from .checks import check_not_frozen, check_posterior_speaks, checked_handle
from .choose import candidates, checked_structures, kinds_cut, least_removal, more_dropped_than_kept
from .compact import CompactViT
from .latency import latency_ms as measured_latency
from .remove import remove
from .scores import Score, dropped_share, node_costs, node_gates, node_scores
from .selection import Selection
from .shape import Shape, shape_of


def compress(
    model: nn.Module,
    *,
    weights: float | None = None,
    macs: float | None = None,
    latency_ms: float | None = None,
    structures: Sequence[str] | None = None,
    score: Score | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    bayesian: bool = False,
    batch: int = 1,
    generator: torch.Generator | None = None,
) -> CompactViT:
    """A physically smaller network out of a trained one; the model stays as it is.

    Hidden units, channels, heads or residual channels are ranked by what they are worth for what they cost, over all
    layers at once, and removed from the least on until the target is met. Without a target everything goes that the
    posterior holds for dropped rather than kept: sum m^2 q > sum m^2 / 2 over its weights.

    Args:
        model: a `ViT` that was trained with a method, a `CompactViT` that kept one, or a ViT of transformers,
            torchvision or timm that was trained with one; see `foreign.py`.
        weights: share of the weights to keep, in (0, 1).
        macs: share of the multiply-adds to keep, in (0, 1).
        latency_ms: how long a pass of the deterministic network may take on this machine, in milliseconds, at most.
        structures: what may go: ``units`` of the MLPs; of attention ``channels`` or ``slices``, and ``heads``; and
            ``residual`` channels. See `candidates` in `choose.py`. None: units, slices and heads, since attention stays
            fast that way; without a target units and channels, each by itself.
        score: what a node is worth, see `scores.py`; None: ``gate`` where there are images, else ``both``.
        images: images as the model reads them ``[N, C, H, W]``: removed nodes are replaced by their means over these
            instead of what their masks leave. Needed by ``gate``, and with `labels` by ``taylor``.
        labels: ``[N]``.
        bayesian: keep the posterior of what remains, for `predict`; False: a deterministic network of the expected
            weights m (1 - q).
        batch: images a pass, for `latency_ms`.
        generator: where ``random`` draws from.

    Raises:
        ValueError: the model or the target cannot be; nothing was changed.
    """
    model = checked_handle("compress", model).model
    selection = plan(
        model, weights=weights, macs=macs, latency_ms=latency_ms, structures=structures, score=score, images=images,
        labels=labels, batch=batch, generator=generator,
    )  # fmt: skip
    return remove(model, selection, images=images, bayesian=bayesian)


def plan(
    model: nn.Module,
    *,
    weights: float | None = None,
    macs: float | None = None,
    latency_ms: float | None = None,
    structures: Sequence[str] | None = None,
    score: Score | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    batch: int = 1,
    generator: torch.Generator | None = None,
) -> Selection:
    """What `compress` would keep, with the same arguments; `remove` does the rest."""
    handle = checked_handle("compress", model)
    cut = checked_structures(default_structures(weights, macs, latency_ms) if structures is None else structures)
    model = handle.model
    shape = shape_of(model)
    score = score or ("both" if images is None else "gate")
    _check_target(weights, macs, latency_ms)
    _check_images(shape, images, labels)
    check_not_frozen("compress", model, shape, kinds_cut(shape, cut))
    gates = node_gates(handle, shape, images) if score == "gate" else None
    worth = node_scores(handle, shape, score, images=images, labels=labels, generator=generator, gates=gates)
    ranked = candidates(shape, cut, worth, node_costs(shape, macs=weights is None), gates, macs=weights is None)
    everything = Selection.everything(shape)
    if weights is not None:
        aim = weights * shape.weights()
        selection = least_removal(everything, ranked, lambda some: some.result().weights() <= aim)
        _check_reached("weights", weights, selection.result().weights() / shape.weights(), cut)
    elif macs is not None:
        aim = macs * shape.macs()
        selection = least_removal(everything, ranked, lambda some: some.result().macs() <= aim)
        _check_reached("macs", macs, selection.result().macs() / shape.macs(), cut)
    elif latency_ms is not None:

        def fast(some: Selection) -> bool:
            return measured_latency(remove(model, some), batch=batch) <= latency_ms

        selection = least_removal(everything, ranked, fast)
        if selection.result() == everything.without(node for one in ranked for node in one.nodes).result():
            _check_fast_enough(latency_ms, measured_latency(remove(model, selection), batch=batch), cut)
    else:
        check_posterior_speaks("compress", handle, "choosing without a target")
        selection = more_dropped_than_kept(everything, ranked, *dropped_share(handle, shape))
    _notice(handle, selection)
    return selection


def default_structures(*targets: float | None) -> tuple[str, ...]:
    """What may go where the caller does not say, for these targets."""
    return ("units", "channels") if all(target is None for target in targets) else ("units", "slices", "heads")


def _check_target(weights: float | None, macs: float | None, latency: float | None) -> None:
    given = {"weights": weights, "macs": macs, "latency_ms": latency}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) > 1:
        raise ValueError(f"compress: give one target, got {', '.join(f'{name}={v}' for name, v in asked.items())}")
    for name, value in asked.items():
        if name == "latency_ms" and not (math.isfinite(value) and value > 0):
            raise ValueError(f"compress: latency_ms must be a time above 0, got {value}")
        if name != "latency_ms" and not 0 < value < 1:
            raise ValueError(f"compress: {name} must be the share to keep, in (0, 1), got {value}")


def _check_images(shape: Shape, images: Tensor | None, labels: Tensor | None) -> None:
    size = [shape.channels, shape.image_size, shape.image_size]
    if images is not None and (images.dim() != 4 or list(images.shape[1:]) != size or not len(images)):
        raise ValueError(f"compress: images have shape {list(images.shape)}; expected {['N', *size]}".replace("'", ""))
    if labels is not None and (images is None or labels.shape != images.shape[:1]):
        what = "no images" if images is None else f"{len(images)} images"
        raise ValueError(f"compress: labels have shape {list(labels.shape)} for {what}; expected one label an image")


def _check_reached(name: str, asked: float, least: float, structures: Sequence[str]) -> None:
    if least > asked:
        raise ValueError(
            f"compress: {name}={asked} is less than can be kept: without all that {', '.join(structures)} can give, "
            f"{least:.3f} remain (embedding and head always stay); ask for more, or add structures"
        )


def _check_fast_enough(asked: float, least: float, structures: Sequence[str]) -> None:
    if least > asked:
        raise ValueError(
            f"compress: latency_ms={asked} is less than a pass takes without all that {', '.join(structures)} can "
            f"give, {least:.3g} ms on this machine; ask for more, or add structures"
        )


def _notice(handle: Attached, selection: Selection) -> None:
    """Warn where nothing is removed, and where all of a block's attention or MLP is."""
    if all(bool(kept.all()) for kept in selection.keep.values()):
        about = handle.summary()
        warnings.warn(
            f"compress: nothing is removed (mean q {about['mean_q']:.2f}, {about['dropped']:.0%} of the weights more "
            "likely dropped than kept); give a smaller target, or train with a larger delta",
            stacklevel=4,
        )
    empty = selection.emptied()
    if empty:
        warnings.warn(
            f"compress: nothing is left of {', '.join(empty)}: a constant takes the place; keep more if that costs "
            "too much",
            stacklevel=4,
        )
