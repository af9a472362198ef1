"""What a method is: a description (`Method`) that users write down, and a `Rule` that moves q while a model trains."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..curvature.likelihood import Likelihood
from ..nn.masked import weight_of
from ..nn.posterior import NodeMask, Posterior, Sampling
from ..topology import Topology
from .distributed import check_whole
from .pieces import Piece

Rate = float | tuple[float, ...]
"""A drop rate: one for the model, or one a replica of a stacked model."""
DEFAULT_KL_WEIGHT = 0.1
"""A cold posterior, temperature 1/10; of the comparison methods, and of `Ising` with few examples."""


def plain(value: Any) -> Any:
    """A number of NumPy's, or a tensor of a single one, as Python's own, which JSON can hold; all else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def make_plain(settings: Any) -> None:
    """Make the numbers of a frozen dataclass Python's own."""
    for each in dataclasses.fields(settings):
        object.__setattr__(settings, each.name, plain(getattr(settings, each.name)))


@dataclass
class Parts:
    """The pieces of a model that carry a method, by layer name."""

    model: nn.Module
    layers: dict[str, nn.Module]
    posteriors: dict[str, Posterior]
    node_masks: dict[str, NodeMask]
    topology: Topology
    likelihood: Likelihood
    pieces: dict[str, Piece] = field(default_factory=dict)
    """Which piece of each layer this process keeps, where `fully_shard` has cut them up; see `sharded.py`."""

    def own_mean(self, name: str) -> Tensor:
        """m of a layer, ``[*R, out, in]``, detached: all of it, or this process's piece."""
        if self.pieces:
            return self.pieces[name].of(self.layers[name]).detach()
        return check_whole(weight_of(self.layers[name]).detach(), name)

    def whole(self, name: str, own: Tensor) -> Tensor:
        """Something that each process has a piece of, put together; all must ask."""
        return self.pieces[name].gather(own) if self.pieces else own

    def mean(self, name: str) -> Tensor:
        """m of a layer, ``[*R, out, in]``, detached and whole."""
        return self.whole(name, self.own_mean(name))

    def means(self) -> dict[str, Tensor]:
        """m of every layer, at least in q's precision."""
        return {name: self.mean(name).to(part.drop.dtype) for name, part in self.posteriors.items()}

    def drops(self) -> dict[str, Tensor]:
        """q of every layer, whole; live, unless it had to be put together."""
        return {name: part.whole() for name, part in self.posteriors.items()}


class Rule(ABC):
    """How q moves. One exists for every attached model."""

    has_mask_prior: ClassVar[bool]
    """Whether q is charged against a prior over masks (KL_xi)."""
    warmup = 0
    """Steps in which nothing is dropped yet."""
    settling = 0
    """Steps until all of q is in use."""
    together = True
    """Whether the processes of `torch.distributed`, where there are several, move one q; see `distributed.py`."""
    launch: Callable[[str, Callable[[], None]], None] = staticmethod(lambda name, work: work())
    """How a piece of work on the device is run, by its name: called, unless whoever trains records it as a graph."""

    @abstractmethod
    def begin(self) -> None:
        """Set q as it is before the first step."""

    @property
    def watches_forward(self) -> bool:
        """Whether `before_forward` is to be called."""
        return False

    def before_forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:  # noqa: B027
        """A training pass of the model begins, with these arguments."""

    def watch(self, probe: Tensor, terms: float | None) -> None:  # noqa: B027
        """A zero that enters the loss with kl(), ``[*R]``: its gradient is what the mean loss was multiplied by."""

    @property
    def measures_next(self) -> bool:
        """Whether the next training pass leaves curvature in its backward pass."""
        return False

    def replayed(self) -> None:  # noqa: B027
        """A training pass ran as a captured graph: on the device it did all it does, but no hook was called."""

    def step(self, step: int, targets: Tensor | None) -> bool:
        """Do what is due after training step number `step` (from 1); whether q changed."""
        return False

    def curvature(self) -> dict[str, Tensor]:
        """h by layer, where the rule measures it."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The rule's own state as live tensors."""
        return {}

    def synchronise(self) -> None:  # noqa: B027
        """Let the state of one process stand for all that train together."""

    def resume(self, step: int) -> None:  # noqa: B027
        """The state of training step number `step` has been restored."""

    def stop(self) -> None:  # noqa: B027
        """The model is being detached."""

    def shard(self, pieces: Mapping[str, Piece]) -> None:  # noqa: B027
        """Keep of everything that a weight has this process's pieces alone; an error where that cannot be."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The settings that all methods share; see `Ising`, `DropConnect` and `Dropout`.

    s, s1 and s2 scale with a layer's fan-in: s = weight_noise / sqrt(fan_in), s2 = slab / sqrt(fan_in), and s1 = s
    unless `spike` is given.
    """

    kl_weight: float | None = None
    weight_noise: float = 0.01
    slab: float = 1.0
    spike: float | None = None
    sampling: Sampling = "local"

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Check every setting; an error names the value and what is allowed."""
        make_plain(self)
        self._check("weight_noise", self.weight_noise, self.weight_noise >= 0, "zero or more")
        self._check("slab", self.slab, self.slab > 0, "more than zero")
        self._check("spike", self.spike, self.spike is None or self.spike > 0, "more than zero, or None")
        self._check("kl_weight", self.kl_weight, self.kl_weight is None or self.kl_weight >= 0, "zero or more")
        self._check("sampling", self.sampling, self.sampling in ("mask", "local"), "'mask' or 'local'")
        for sd in ("spike", "weight_noise"):
            value = getattr(self, sd)
            fine = value is None or value <= self.slab
            self._check(sd, value, fine, f"at most the slab, {self.slab}")

    def _check_rate(self, what: str, fine: Callable[[float], bool], expected: str) -> None:
        """Check a `Rate`; JSON's lists become tuples."""
        rate = getattr(self, what)
        if isinstance(rate, tuple | list):
            rate = tuple(map(plain, rate))
            object.__setattr__(self, what, rate)
        for one in rate if isinstance(rate, tuple) else (rate,):
            self._check(what, one, fine(one), expected)

    def _check(self, what: str, value: object, fine: bool, expected: str) -> None:
        if not fine or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{type(self).__name__}: {what} must be {expected}, got {value!r}")

    def noise_sd(self, fan_in: int) -> float:
        """s of a layer."""
        return self.weight_noise / math.sqrt(fan_in)

    def slab_sd(self, fan_in: int) -> float:
        """s2 of a layer."""
        return self.slab / math.sqrt(fan_in)

    def spike_sd(self, fan_in: int) -> float:
        """s1 of a layer: s unless `spike` says otherwise."""
        return (self.weight_noise if self.spike is None else self.spike) / math.sqrt(fan_in)

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return dataclasses.asdict(self)

    @property
    def weight_of_kl(self) -> float:
        """kl_weight as used."""
        return DEFAULT_KL_WEIGHT if self.kl_weight is None else self.kl_weight

    def settled(self, examples: float) -> Method:
        """The settings as numbers, where some follow from the number of training examples; see `Ising`."""
        return self

    def check_plan(self, steps: int | None) -> None:  # noqa: B027
        """Raise where the settings need to know more of the plan than is known."""

    def node_dropout(self, layer: str, topology: Topology) -> bool:
        """Whether a layer's masks are tied over the outgoing weights of each input node."""
        return False

    def shared_rate(self, fan_in: int) -> float:
        """Up to which rate one number a node decides for the masks of its outgoing weights."""
        return 0.0

    @property
    def by_example(self) -> bool:
        """Whether nodes that `local` sampling drops are dropped for a whole example, not token by token."""
        return False

    @property
    def own_variance(self) -> bool:
        """Whether kept weights have a variance of their own."""
        return False

    def embedding_drop(self) -> float | None:
        """Drop probability for the nodes of the embeddings; None where the method leaves them alone."""
        return None

    @abstractmethod
    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """The rule that moves q of an attached model."""


def by_replica(rate: Rate, drop: Tensor) -> float | Tensor:
    """A rate as it enters the arithmetic of a layer: a number, or ``[R, 1, 1]`` for q ``[R, out, in]``."""
    if not isinstance(rate, tuple):
        return rate
    replicas = len(drop) if drop.dim() == 3 else 1
    if drop.dim() != 3 or len(rate) != replicas:
        raise ValueError(
            f"a rate for each of {len(rate)} replicas, {rate}, on a model of {replicas}; give one number, or one a "
            "replica of a stacked model"
        )
    return torch.tensor(rate, dtype=drop.dtype, device=drop.device).view(-1, 1, 1)


class FixedRule(Rule):
    """q stays as it was set: the rule of the comparison methods."""

    has_mask_prior = False

    def __init__(self, parts: Parts, drop: dict[str, Rate]) -> None:
        self.parts, self.drop = parts, drop

    def begin(self) -> None:
        """Fill q."""
        with torch.no_grad():
            for name, part in self.parts.posteriors.items():
                rate = by_replica(self.drop[name], part.drop)
                part.drop.copy_(rate) if isinstance(rate, Tensor) else part.drop.fill_(rate)
