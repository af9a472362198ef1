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
from .gates import OF_CLASSES
from .latency import latency_ms as measured_latency
from .layers import Losses, every_sublayer, least_loss
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
    layers at once, and removed from the least on until the target is met; whole attentions and MLPs go where that loses
    less. Without a target everything goes that the posterior holds for dropped rather than kept:
    sum m^2 q > sum m^2 / 2 over its weights.

    Args:
        model: a `ViT` that was trained with a method, a `CompactViT` that kept one, or a ViT of transformers,
            torchvision or timm that was trained with one; see `foreign.py`.
        weights: share of the weights to keep, in (0, 1).
        macs: share of the multiply-adds to keep, in (0, 1).
        latency_ms: how long a pass of the deterministic network may take on this machine, in milliseconds, at most.
        structures: what may go: ``units`` of the MLPs; of attention ``channels`` or ``slices``, and ``heads``;
            ``layers``, whole attentions and MLPs, by what is lost on `images`, see `layers.py`; and ``residual``
            channels. See `candidates` in `choose.py`. None: units, slices and heads, since attention stays fast that
            way, for `latency_ms` with images layers too; without a target units and channels, each by itself.
        score: what a node is worth, see `scores.py`; None: ``gate`` where there are images, else ``both``.
        images: images as the model reads them ``[N, C, H, W]``: removed nodes are replaced by their means over these
            instead of what their masks leave. Needed by ``gate`` and ``layers``, and with `labels` by ``taylor``.
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
    measurable = images is not None and handle.parts.likelihood.name in OF_CLASSES
    given = default_structures(weights, macs, latency_ms, layers=measurable) if structures is None else structures
    cut = checked_structures(given)
    model = handle.model
    shape = shape_of(model)
    score = score or ("both" if images is None else "gate")
    _check_target(weights, macs, latency_ms)
    _check_images(shape, images, labels)
    if "layers" in cut and images is None and not weights is macs is latency_ms is None:
        raise ValueError("compress: 'layers' go by what is lost on images; give images, or leave them out")
    check_not_frozen("compress", model, shape, kinds_cut(shape, cut))
    gates = node_gates(handle, shape, images) if score == "gate" else None
    worth = node_scores(handle, shape, score, images=images, labels=labels, generator=generator, gates=gates)
    everything, costs = Selection.everything(shape), node_costs(shape, macs=weights is None)
    if weights is macs is latency_ms is None:
        check_posterior_speaks("compress", handle, "choosing without a target")
        ranked = candidates(shape, cut, worth, costs, gates, macs=True)
        selection = more_dropped_than_kept(everything, ranked, *dropped_share(handle, shape))
    else:
        ranked = candidates(shape, [one for one in cut if one != "layers"], worth, costs, gates, macs=weights is None)
        aim = _Aim(model, everything, weights=weights, macs=macs, latency_ms=latency_ms, batch=batch)
        if "layers" in cut:
            assert images is not None  # checked
            selection = least_loss(
                everything, ranked, aim.fits, Losses(handle, shape, images), aim.saved_by_layers(),
                made=lambda some: remove(model, some, images=images),
            )  # fmt: skip
        else:
            selection = least_removal(everything, ranked, aim.fits)
        every = candidates(shape, cut, worth, costs) if "layers" in cut else ranked
        aim.check_reached(selection, everything.without(node for one in every for node in one.nodes), cut)
    _notice(handle, selection, cut, aimed=not weights is macs is latency_ms is None)
    return selection


def default_structures(
    weights: float | None = None, macs: float | None = None, latency_ms: float | None = None, *, layers: bool = True
) -> tuple[str, ...]:
    """What may go where the caller does not say.

    Args:
        weights: as `compress` takes it.
        macs: likewise.
        latency_ms: likewise.
        layers: whether there are images to judge whole sublayers on.
    """
    if weights is macs is latency_ms is None:
        return ("units", "channels")
    # Only where time counts: for multiply-adds alone, a part of many sublayers costs less than all of some.
    return ("units", "slices", "heads", "layers") if latency_ms is not None and layers else ("units", "slices", "heads")


class _Aim:
    """What a network may cost.

    Args:
        model: before.
        everything: all of it.
        weights: as `compress` takes it; one of the three is given.
        macs: likewise.
        latency_ms: likewise.
        batch: likewise.
    """

    def __init__(
        self, model: nn.Module, everything: Selection, *, weights: float | None, macs: float | None,
        latency_ms: float | None, batch: int,
    ) -> None:  # fmt: skip
        self.model, self.everything, self.batch = model, everything, batch
        targets = {"weights": weights, "macs": macs, "latency_ms": latency_ms}
        self.name, self.asked = next((name, value) for name, value in targets.items() if value is not None)

    def cost(self, some: Selection) -> float:
        """Weights or multiply-adds, as shares of the model's, or milliseconds."""
        if self.name == "latency_ms":
            return measured_latency(remove(self.model, some), batch=self.batch)
        left, all_of_it = some.result(), self.everything.shape
        if self.name == "weights":
            return left.weights() / all_of_it.weights()
        return left.macs() / all_of_it.macs()

    def fits(self, some: Selection) -> bool:
        """Whether it costs no more than asked."""
        return self.cost(some) <= self.asked

    def saved_by_layers(self) -> dict[str, float]:
        """What each attention and MLP costs by itself; by the clock, at least a hundredth of the whole."""
        whole = self.cost(self.everything)
        each = every_sublayer(self.everything.shape)
        return {
            name: max(whole - self.cost(self.everything.without(nodes)), 0.01 * whole) for name, nodes in each.items()
        }

    def check_reached(self, selection: Selection, least: Selection, structures: Sequence[str]) -> None:
        """Raise where not even the least that can be kept is little enough."""
        if self.name == "latency_ms" and selection.result() != least.result():
            return  # it was timed, and another time would say something else
        found = self.cost(selection)
        if found <= self.asked:
            return
        gone = f"without all that {', '.join(structures)} can give"
        if self.name == "latency_ms":
            raise ValueError(
                f"compress: latency_ms={self.asked} is less than a pass takes {gone}, {found:.3g} ms on this machine; "
                "ask for more, or add --kinds (structures=)"
            )
        raise ValueError(
            f"compress: {self.name}={self.asked} is less than can be kept: {gone}, {found:.3f} remain (embedding and "
            "head always stay); ask for more, or add --kinds (structures=)"
        )


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


def _notice(handle: Attached, selection: Selection, structures: Sequence[str], *, aimed: bool) -> None:
    """Warn where nothing is removed, where all of an attention or MLP is that was not to go, and where all is lost."""
    if all(bool(kept.all()) for kept in selection.keep.values()):
        about = handle.summary()  # without a target it is an Ising posterior, which has a delta
        warnings.warn(
            "compress: nothing is removed, since the whole network meets the target; give a smaller one"
            if aimed
            else f"compress: nothing is removed (mean q {about['mean_q']:.2f}, {about['dropped']:.0%} of the weights "
            "more likely dropped than kept); give a target, or train with a larger delta",
            stacklevel=4,
        )
    empty, left = selection.emptied(), selection.result()
    if any(name.endswith("attn") for name in empty) and left.pool == "class" and not any(b.value for b in left.blocks):
        warnings.warn(
            "compress: no attention is left, so that the class token sees nothing of an image and the answer is the "
            "same for all; keep more",
            stacklevel=4,
        )
    if empty and "layers" not in structures:
        warnings.warn(
            f"compress: nothing is left of {', '.join(empty)}: a constant takes the place; keep more if that costs "
            "too much",
            stacklevel=4,
        )
