"""When curvature is taken in and when q is swept, for an attached `Ising`.

Every so many steps (`measure_every`) the backward pass, or an extra one, adds to a running mean of h. Every `refresh`
steps the mean is brought up to date and, once the warm-up is over, q is swept. Of what the sweep says a share is in use
that rises to all of it (`ramp`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..curvature.average import CurvatureAverage
from ..curvature.linear import Squares
from ..ising import stationary_sweep, sweep
from ..nn.vit import ViT
from .base_rate import GivenDelta, LearnedDelta
from .distributed import add_up_curvature, total
from .loss_scale import check_taken_in, common_factor
from .measure import call_to_repeat, check_finite, measure
from .method import Parts, Rule
from .news import News
from .pieces import Piece
from .pull import Pull, own_variance
from .ramp import Ramp
from .sharded import add_up_counts, agreed, cut_average, own_squares, sweep_pieces

if TYPE_CHECKING:
    from .ising import Ising

RIDERS = ("fisher", "expand")
RIDER_EVERY = 2
EXTRA_PASS_EVERY = 10
FLOOR_OVER_DELTA = 1.3
"""No floor lifts q above so many times delta: who asks for little noise gets little."""


class IsingRule(Rule):
    """Curvature in, q out."""

    has_mask_prior = True

    def __init__(self, spec: Ising, parts: Parts, *, examples: float, warmup: int, ramp: int = 0) -> None:
        self.spec, self.parts, self.examples, self.warmup = spec, parts, examples, warmup
        self.average = CurvatureAverage(parts.drops(), spec.average, parts.topology.flat)
        self.rides = spec.evidence != "none" and spec.curvature in RIDERS
        self.extra = spec.evidence != "none" and not self.rides
        usual = RIDER_EVERY if self.rides else EXTRA_PASS_EVERY
        self.every = spec.measure_every or (usual if spec.refresh == "epoch" else min(usual, int(spec.refresh)))
        self.seen = torch.zeros((), dtype=torch.int64)  # training examples since the last refresh
        self._counted = 0  # those of them that all processes know of
        self.reached: set[str] = set()  # layers that this step's backward passes reached with kl() in the loss
        self.unscaled: set[str] = set()  # and without it
        self.watched = 0  # steps since the last refresh that were to be measured
        self.passes = 0  # and backward passes that were
        self._filled: set[str] = set()  # layers that the backward pass under way has measured
        self._factors: list[Tensor] = []  # and what its loss was multiplied by
        self._terms: float | None = None
        self._announced: float | None = None  # the same, before the pass
        self._pieces: dict[str, Tensor] = {}  # squares of a pass, where each process keeps a piece of a layer
        self._waits_for_end = False
        self.last_inputs: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
        self._news = News()
        first = next(iter(parts.posteriors.values())).drop
        self.ramp, self.settling = Ramp(ramp, first), max(warmup, ramp)
        self.base = LearnedDelta(spec.delta, first) if spec.learn_delta else GivenDelta(spec.delta)
        squares: Squares = "expand" if spec.curvature == "expand" else "exact"
        for part in parts.posteriors.values():
            part.measure(self.rides, squares)
        self._watch_next(1)

    @property
    def replica_axes(self) -> int:
        """How many leading axes of weights and outputs are replicas."""
        return next(iter(self.parts.posteriors.values())).drop.dim() - 2

    def begin(self) -> None:
        """During a warm-up nothing is dropped, nor where a ramp begins; else q starts where it rests."""
        self.ramp.reach(0, next(iter(self.parts.posteriors.values())).drop)
        self.sweep()
        if self.warmup:
            for part in self.parts.posteriors.values():
                part.drop.zero_()

    @torch.compiler.disable
    def before_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a training pass: how many examples, and for the extra-pass estimators which."""
        tensor = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim()), None)
        if tensor is not None:
            axis = tensor.dim() - 4 if isinstance(self.parts.model, ViT) else 0
            self.seen += tensor.shape[axis]
        if self.extra:
            self.last_inputs = call_to_repeat(self.parts.model, args, kwargs)

    @property
    def watches_forward(self) -> bool:
        """Whether `before_forward` is needed at all."""
        return self.extra or self.spec.refresh == "epoch"

    def watch(self, probe: Tensor, terms: float | None) -> None:
        """Learn from the probe's gradient, in backward, what the loss was multiplied by."""
        self._waits_for_end = False  # a pass that broke off must not silence the next
        self._announced = terms
        for name, part in self.parts.posteriors.items():
            part.on_filled(functools.partial(self._squares_filled, name))

        def learn(factor: Tensor) -> None:
            self._factors.append(factor.detach())
            self._terms = terms
            self._call_at_end_of_backward()

        probe.register_hook(learn)

    def _squares_filled(self, name: str) -> None:
        self._filled.add(name)
        part = self.parts.posteriors[name]
        if self.parts.pieces and part.companion is not None and part.companion.grad is not None:
            # At once, so that no more than one layer's squares are held whole.
            self._pieces[name] = own_squares(self.parts.pieces[name], part.companion.grad, self._announced)
            part.companion.grad = None
        self._call_at_end_of_backward()

    def _call_at_end_of_backward(self) -> None:
        # The probe's and the companions' gradients come in any order; both are there when the pass has ended.
        if not self._waits_for_end:
            self._waits_for_end = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    @torch.no_grad()
    def _backward_ended(self) -> None:
        factors, terms, filled = self._factors, self._terms, self._filled
        self._factors, self._terms, self._filled, self._waits_for_end = [], None, set(), False
        (self.reached if factors else self.unscaled).update(filled)
        if not filled:
            return
        self.average.follow(next(iter(self.parts.posteriors.values())).drop)
        gradients = [None if part.companion is None else part.companion.grad for part in self.parts.posteriors.values()]
        for part in self.parts.posteriors.values():
            if part.companion is not None:
                part.companion.grad = None
        pieces, self._pieces = self._pieces, {}
        if not factors:
            return
        self.passes += 1
        factor = common_factor(factors)
        if pieces:
            add_up_counts(pieces)
            finite = self.average.take_in([pieces.get(name) for name in self.parts.posteriors], factor, None, agreed)
        else:
            finite = self.average.take_in(gradients, factor, terms)
        check_taken_in(factor, finite)  # what infinite gradients there may be yet, `News` notices at a refresh

    @property
    def measures_next(self) -> bool:
        """Riders measure on every so many steps."""
        return self.rides and next(iter(self.parts.posteriors.values())).measuring

    def replayed(self) -> None:
        """Count the pass that a graph has run, as `_backward_ended` would have."""
        if self.measures_next:
            self.passes += 1

    def step(self, step: int, targets: Tensor | None) -> bool:
        """Measure where it is time to, fold and sweep where a refresh is due."""
        self.average.follow(next(iter(self.parts.posteriors.values())).drop)
        if self.rides and self._watching(step):
            self.watched += 1
            self._check_kl_was_there()
        refresh = self.spec.refresh
        if refresh == "epoch":
            self._count_together()
        due = int(self.seen) >= self.examples if refresh == "epoch" else (step - self.warmup) % int(refresh) == 0
        first = step in (self.warmup, self.ramp.steps)  # a short training has no other refresh after it
        if self.extra and (due or first or step % self.every == 0):
            if self.spec.curvature == "lm":  # the others draw from generators, which no graph repeats
                self.launch("measure", functools.partial(self._measure, None))
            else:
                self._measure(targets)
        swept = (due or first) and step >= self.warmup
        if due or first:
            self.seen.zero_()
            self._counted = 0
            self.ramp.reach(step, next(iter(self.parts.posteriors.values())).drop)
            self._refresh(sweeping=swept)
        self._watch_next(step + 1)
        return swept

    def _count_together(self) -> None:
        """Ranks may have batches of different sizes; they must refresh at the same step all the same."""
        if self.together:
            fresh = int(self.seen) - self._counted
            self._counted += total(fresh, "examples", self.average.news.device)
            self.seen.fill_(self._counted)

    def _watching(self, step: int) -> bool:
        return step % self.every == 0

    def _watch_next(self, step: int) -> None:
        on = self.rides and self._watching(step)
        for part in self.parts.posteriors.values():
            if part.measuring is not on:  # setting a module's attribute is not free
                part.measuring = on
            if part.companion is not None:
                part.companion.grad = None  # what passes without kl() may have left

    def _check_kl_was_there(self) -> None:
        missed = self.unscaled - self.reached
        self.reached, self.unscaled = set(), set()
        if missed:
            raise RuntimeError(
                f"this step's backward pass reached {sorted(missed)[0]!r} without method.kl() in the loss, so its "
                "scale is unknown and no curvature was taken in; train on mean loss + method.kl(), in one backward"
            )

    def _refresh(self, *, sweeping: bool) -> None:
        """Bring the running mean of h up to date, and q where it is time."""
        passes, watched, self.passes, self.watched = self.passes, self.watched, 0, 0
        if watched and not passes:
            raise RuntimeError(
                "since the last refresh no backward pass with method.kl() in its loss reached the masked layers in "
                "training mode, so there is no curvature to sweep with; train on mean loss + method.kl()"
            )
        self.synchronise()
        if self.average.news.device.type == "cuda" and not self.spec.two_way:  # which looks at its own progress
            self.launch("sweep" if sweeping else "fold", self._fold_and_sweep if sweeping else self.average.fold)
            self._news.check(self.average.news, passes)
            return
        self.average.fold()
        self._news.check(self.average.news, passes)
        if sweeping:
            self.sweep()

    def _fold_and_sweep(self) -> None:
        self.average.fold()
        self.sweep()

    def _measure(self, targets: Tensor | None) -> None:
        if self.last_inputs is None:
            raise RuntimeError(
                f"curvature {self.spec.curvature!r} measures on the last training batch, but the model ran no forward "
                "pass in training mode since attach; call model(x) before method.step()"
            )
        h, terms = measure(
            self.spec.curvature, self.parts.model, self.last_inputs, self.parts.likelihood,
            replica_axes=self.replica_axes, targets=targets,
        )  # fmt: skip
        check_finite(h, self.spec.curvature)
        for name, value in h.items():
            self.average.add(name, value, terms)

    @torch.no_grad()
    def sweep(self) -> None:
        """Recompute q of every layer from m, the running mean of h, and the wiring."""
        spec, parts = self.spec, self.parts
        delta = self.base.at(next(iter(parts.posteriors.values())).drop)
        settings: dict[str, Any] = {"delta": delta, "coupling": spec.coupling, "centred": spec.centred}
        if parts.pieces:
            found = sweep_pieces(parts, Pull(self), **settings)
        else:
            how = stationary_sweep if spec.two_way else sweep
            found = how(parts.means(), Pull(self), parts.topology.wiring, **settings)
        layers = parts.posteriors
        torch._foreach_copy_([part.drop for part in layers.values()], [found.drop[name] for name in layers])
        torch._foreach_copy_([part.prior for part in layers.values()], [found.prior[name] for name in layers])
        for name, part in layers.items():
            part.drop.clamp_(min=self.floor(part.node_rate, delta))
            if part.variance is not None:
                part.variance.copy_(own_variance(self, name))
        self.ramp.scale(part.drop for part in layers.values())

    def floor(self, node_rate: float, delta: float | Tensor) -> float | Tensor:
        """Below what no q of a layer of that node_rate falls, min(its floor, 1.3 delta); of shape delta."""
        most, lowest = FLOOR_OVER_DELTA * delta, self.spec.lowest_at(node_rate)
        return most.clamp_max(lowest) if isinstance(most, Tensor) else min(most, lowest)

    def synchronise(self) -> None:
        """What was measured since the last refresh, shared out equally."""
        if self.together and not self.parts.pieces:  # which are sums over processes already
            add_up_curvature(self.average)

    def shard(self, pieces: Mapping[str, Piece]) -> None:
        """Cut the running mean; what needs all layers at once cannot be."""
        if self.spec.two_way or self.extra:
            what = "two_way" if self.spec.two_way else f"curvature {self.spec.curvature!r}"
            raise ValueError(
                f"shard: {what} needs all layers whole at once; use curvature 'fisher' or 'expand', one-way"
            )
        self.average = cut_average(self.average, pieces)

    def resume(self, step: int) -> None:
        """Go on after training step number `step`."""
        self._counted = int(self.seen)
        self.base.take_up()
        self._watch_next(step + 1)

    def tensors(self) -> dict[str, Tensor]:
        """The running mean of curvature, the examples seen, and delta where it is learned."""
        return {**self.average.tensors(), "examples_seen": self.seen, **self.base.tensors()}

    def curvature(self) -> dict[str, Tensor]:
        """h by layer as the next sweep would use it."""
        return {name: self.parts.whole(name, self.average.value(name)).clone() for name in self.parts.posteriors}

    def stop(self) -> None:
        """Forget the last batch."""
        self.last_inputs = None
