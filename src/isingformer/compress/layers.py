"""Whole attentions and MLPs: what is lost without them, and how many of them go.

One that goes takes its norm and all its calls with it, and a pass of few images is calls more than products. A gate
that closes on all of it goes far from where N h / 2 of `gates.py` holds, so what is lost is measured, not expanded:

    mean over images n of  sum over classes y of  p(y | n) log (p(y | n) / p'(y | n))

p of the expected network, p' of what is left, with means over images in the place of what is gone. N h / 2 is N times
this to second order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..methods import Attached
from ..nn.masked import in_eval_mode
from .choose import Candidate, least_removal, sublayers
from .gates import OF_CLASSES
from .selection import Node, Selection
from .shape import Shape

IMAGES, CHUNK = 512, 128
"""How many images losses are measured on, at most, and how many at once."""
Fits = Callable[[Selection], bool]


def every_sublayer(shape: Shape) -> dict[str, tuple[Node, ...]]:
    """The nodes of all attentions and MLPs that there are, by name; see `sublayers` in `choose.py`."""
    return {name: nodes for i in range(len(shape.blocks)) for name, nodes in sublayers(shape, i).items()}


class Losses:
    """What a network loses without some of its sublayers, or as another network.

    Args:
        handle: on the model; its likelihood must be over classes.
        shape: of the model.
        images: ``[N, C, H, W]`` as the model reads them; the first 512 count.
    """

    def __init__(self, handle: Attached, shape: Shape, images: Tensor) -> None:
        self.kind, self.model, self.images = handle.parts.likelihood, handle.model, images[:IMAGES]
        if self.kind.name not in OF_CLASSES:
            raise ValueError(
                f"compress: 'layers' are judged by probabilities of classes, and {self.kind.name!r} has none; leave "
                "them out of structures"
            )
        self.means: dict[str, Tensor] = {}
        read = shape.compact().read
        hooks = [
            self.model.get_submodule(name).register_forward_hook(self._adds_up(name, read(int(name.split(".")[1]))))
            for name in every_sublayer(shape)
        ]
        try:
            self.before = self._probabilities(self.model)
        finally:
            for hook in hooks:
                hook.remove()

    def without(self, gone: Iterable[str]) -> float:
        """The loss where these sublayers give their means."""
        hooks = [
            self.model.get_submodule(name).register_forward_hook(
                lambda module, args, output, mean=self.means[name]: mean.expand_as(output)
            )
            for name in gone
        ]
        try:
            return self.of(self.model)
        finally:
            for hook in hooks:
                hook.remove()

    def of(self, network: nn.Module) -> float:
        """The loss of a network in the place of the model."""
        tiny = torch.finfo(self.before.dtype).tiny
        after = self._probabilities(network)
        return float((self.before * (self.before.clamp_min(tiny) / after.clamp_min(tiny)).log()).sum(-1).mean())

    @torch.no_grad()
    def _probabilities(self, network: nn.Module) -> Tensor:  # [N, classes]
        with in_eval_mode(network):
            return torch.cat([self.kind.probabilities(network(chunk).double()) for chunk in self.images.split(CHUNK)])

    def _adds_up(self, name: str, read: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        """A hook that sums up a sublayer's mean output over images and the tokens that will be read, ``[D]``."""

        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            part = output[:, :read].mean(1).sum(0) / len(self.images)
            self.means[name] = self.means[name] + part if name in self.means else part

        return hook


def least_loss(
    everything: Selection,
    ranked: Sequence[Candidate],
    fits: Fits,
    losses: Losses,
    saved: Mapping[str, float],
    made: Callable[[Selection], nn.Module],
) -> Selection:
    """Without how many sublayers a target costs least, with as much of the ranking gone as each leaves to do.

    Sublayers go one after the other, always the one that loses least more for what it saves. What they alone lose grows
    on the way, so that the search ends where it passes what the best selection loses in all.

    Args:
        everything: to remove from.
        ranked: what else may go, in order.
        fits: whether a selection is small enough; once true it stays true.
        losses: of the network.
        saved: what the network costs less without each sublayer, in any unit, above 0.
        made: the network of a selection.

    Returns:
        The selection; where nothing fits, all that can go is gone.
    """
    layers, gone = every_sublayer(everything.shape), list[str]()
    best, least, lost = everything.without(_nodes(ranked)).without(_all(layers)), float("inf"), 0.0
    while True:
        start = everything.without(_all({name: layers[name] for name in gone}))
        found = least_removal(start, ranked, fits)
        # What a timing found to fit is not timed again: the next time might say otherwise.
        reached = found.result() != start.without(_nodes(ranked)).result() or fits(found)
        if reached:
            loss = losses.of(made(found))
            best, least = (found, loss) if loss < least else (best, least)
        left = [name for name in layers if name not in gone]
        if not left or (reached and found.result() == start.result()):  # these sublayers alone are enough
            return best
        trials = {name: losses.without([*gone, name]) for name in left}
        following = min(left, key=lambda name: (trials[name] - lost) / saved[name])
        gone, lost = [*gone, following], trials[following]
        if lost >= least:
            return best


def _nodes(ranked: Iterable[Candidate]) -> list[Node]:
    return [node for one in ranked for node in one.nodes]


def _all(layers: Mapping[str, tuple[Node, ...]]) -> list[Node]:
    return [node for nodes in layers.values() for node in nodes]
