"""Likelihood-guided Ising regularisation: every weight's drop probability is a variational Ising posterior.

    q = sigmoid(coupling * (neighbours - delta) + evidence_weight * evidence + logit(delta))

swept from the last layer to the first. `ising/field.py` has the terms, `ising_rule.py` when they are computed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..ising.field import Evidence
from .ising_rule import IsingRule
from .method import DEFAULT_KL_WEIGHT, Method, Parts, Rate, Rule

Curvature = Literal["fisher", "expand", "lm", "mc-fisher", "hutchinson"]
DEFAULT_WARMUP = 0.05


@dataclass(frozen=True, kw_only=True)
class Ising(Method):
    """A drop probability for every weight, from its neighbours, its evidence and a base rate.

    Args:
        delta: base rate in (0, 1): where q rests without evidence; or one a replica of a stacked model.
        learn_delta: share of the training examples, below a half, that `isingformer.train` and studies hold out of the
            gradient (256 at most) for the first part of a training, to learn delta on them; in a loop of your own call
            `Attached.learn_delta`. 0: delta stays as it is.
        coupling: weight of the neighbours' term; the paper has 2.
        evidence_weight, kl_weight: one number, the inverse temperature of a cold posterior: evidence_weight =
            1 / kl_weight. Give either, and the other follows (default 10 and 0.1); giving both is allowed.
        contrast: instead of evidence_weight * evidence the field gets contrast * (1 - evidence / its mean over all
            weights): a weight of less than average evidence is pushed out, one of more is held, whatever N and the
            size of the network. Most weights then end near logit q = logit(delta) + contrast, a few near q = 0. 0:
            evidence as it is.
        floor: q stays at or above the smaller of this and delta: noise that no evidence takes away. Evidence measured
            on the training examples frees the very weights that the network overfits with.
        evidence: ``obd`` -N h m^2 / 2, ``curvature`` -N h as the paper prints it, ``none`` 0.
        curvature: how h is measured. ``fisher`` and its approximation ``expand`` ride on the training backward pass;
            ``lm`` (the paper's recursion), ``mc-fisher`` and ``hutchinson`` make an extra pass at the expected network.
        node_rate: up to this rate, in [0, 1], weights that read one node are dropped together, one number a node; what
            is left of their q goes weight by weight. 0: all by weight, 1: all by node.
        sampling: how training passes are drawn: ``local``, fresh for every example and token, or ``mask``, one draw a
            batch. `predict` draws masks unless asked otherwise.
        warmup: with nothing dropped, a number of steps (int) or a share of them (float below 1, needs `steps` at
            attach). None: 5% where `attach` knows `steps`, else 0.
        refresh: sweep q every so many steps; ``"epoch"``: once every N training examples.
        average: what the running mean of h keeps at a refresh.
        measure_every: measure h on every so many steps. None: every second for riders, every tenth for extra passes
            (and at least once a refresh).
        weight_noise, slab, spike: s, s2, s1 times sqrt(fan_in); see `Method`.
        laplace_noise: temperature of the kept weights' own noise, whose variance is laplace_noise / (N h + 1 / s2^2):
            much where the data say little of a weight. 0: none but s.
        centred: rest at q = delta without evidence (our default); False is the field as printed.
        spike_slab: the field also gets the slab-minus-spike difference, so that a weight must earn its keep twice.
        two_way: iterate to the exact stationary point of the bound instead of one backward sweep.
    """

    delta: Rate = 0.1
    learn_delta: float = 0.0
    coupling: float = 1.0
    evidence_weight: float | None = None
    contrast: float = 0.0
    floor: float = 0.0
    evidence: Evidence = "obd"
    curvature: Curvature = "fisher"
    node_rate: float = 0.0
    warmup: int | float | None = None
    refresh: int | Literal["epoch"] = 10
    average: float = 0.9
    measure_every: int | None = None
    laplace_noise: float = 0.0
    centred: bool = True
    spike_slab: bool = False
    two_way: bool = False

    name: ClassVar[str] = "ising"

    def __post_init__(self) -> None:
        """Check every setting."""
        super().__post_init__()
        check = self._check
        self._check_rate("delta", lambda delta: 0 < delta < 1, "in (0, 1)")
        check("learn_delta", self.learn_delta, 0 <= self.learn_delta < 0.5, "a share in [0, 0.5)")
        check("coupling", self.coupling, self.coupling >= 0, "zero or more")
        check("evidence_weight", self.evidence_weight, (self.evidence_weight or 0) >= 0, "zero or more")
        check("evidence", self.evidence, self.evidence in ("obd", "curvature", "none"), "'obd', 'curvature' or 'none'")
        kinds = ("fisher", "expand", "lm", "mc-fisher", "hutchinson")
        check("curvature", self.curvature, self.curvature in kinds, f"one of {kinds}")
        check("node_rate", self.node_rate, 0 <= self.node_rate <= 1, "in [0, 1]")
        check("warmup", self.warmup, self.warmup is None or self.warmup >= 0, "zero or more steps, or a share below 1")
        if isinstance(self.warmup, float):
            check("warmup", self.warmup, self.warmup < 1, "a share below 1, or an int for a number of steps")
        every = self.refresh == "epoch" or (isinstance(self.refresh, int) and self.refresh >= 1)
        check("refresh", self.refresh, every, "a number of steps from 1 on, or 'epoch'")
        check("average", self.average, 0 <= self.average < 1, "in [0, 1)")
        check(
            "measure_every",
            self.measure_every,
            self.measure_every is None or (isinstance(self.measure_every, int) and self.measure_every >= 1),
            "1 or more",
        )
        check("contrast", self.contrast, self.contrast >= 0, "zero or more")
        check("floor", self.floor, 0 <= self.floor < 1, "in [0, 1)")
        if self.contrast and (self.evidence == "none" or self.evidence_weight is not None):
            other = "evidence='none'" if self.evidence == "none" else f"evidence_weight={self.evidence_weight}"
            raise ValueError(f"Ising: contrast weighs the evidence by its own mean; leave out contrast or {other}")
        for one, other in (("kl_weight", "evidence_weight"), ("evidence_weight", "kl_weight")):
            needed = self.evidence != "none" and not (self.contrast and other == "evidence_weight")
            if getattr(self, one) == 0 and getattr(self, other) is None and needed:
                raise ValueError(f"Ising: {one}=0 leaves {other} = 1/0 open; give {other} too")
        check("laplace_noise", self.laplace_noise, 0 <= self.laplace_noise <= 1, "in [0, 1]")
        if self.laplace_noise and self.evidence == "none":
            raise ValueError("Ising: laplace_noise needs h, which evidence='none' does not measure; drop one")
        if self.spike_slab and not (self.spike or self.weight_noise):
            raise ValueError("Ising: spike_slab with weight_noise=0 needs a spike width; give spike, for example 0.01")

    @classmethod
    def paper(cls, delta: Rate = 0.1) -> Ising:
        """The paper as printed: its field, coupling 2, evidence -N h by its recursion, a refresh an epoch, NLL only."""
        return cls(
            delta=delta, coupling=2.0, evidence_weight=1.0, kl_weight=0.0, evidence="curvature", curvature="lm",
            sampling="mask", refresh="epoch", average=0.0, centred=False,
        )  # fmt: skip

    @classmethod
    def paper_obd(cls, delta: Rate = 0.1) -> Ising:
        """`paper` with the evidence of Optimal Brain Damage, -N h m^2 / 2, whose derivation the paper follows."""
        return dataclasses.replace(cls.paper(delta), evidence="obd")

    @property
    def weight_of_kl(self) -> float:
        """kl_weight, or 1 / evidence_weight where only that was given."""
        if self.kl_weight is not None:
            return self.kl_weight
        return DEFAULT_KL_WEIGHT if self.evidence_weight is None else _inverse(self.evidence_weight)

    @property
    def weight_of_evidence(self) -> float:
        """evidence_weight, or 1 / kl_weight where only that was given."""
        if self.evidence_weight is not None:
            return self.evidence_weight
        return _inverse(DEFAULT_KL_WEIGHT if self.kl_weight is None else self.kl_weight)

    @property
    def shared_rate(self) -> float:
        """node_rate."""
        return self.node_rate

    @property
    def own_variance(self) -> bool:
        """Whether kept weights have a variance of their own."""
        return self.laplace_noise > 0

    def warmup_steps(self, steps: int | None) -> int:
        """How many steps drop nothing, for a training of `steps` steps (None: not known)."""
        warmup = self.warmup
        if warmup is None:
            warmup = DEFAULT_WARMUP if steps is not None else 0
        if isinstance(warmup, float):
            if steps is None and warmup > 0:
                raise ValueError(f"warmup={warmup} is a share of the steps: tell attach how many with steps=..., "
                                 "or give warmup as an int, a number of steps")  # fmt: skip
            return round(warmup * (steps or 0))
        return warmup

    def check_plan(self, steps: int | None) -> None:
        """A warm-up as a share needs the number of steps."""
        self.warmup_steps(steps)

    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """The sweep, fed with curvature."""
        return IsingRule(self, parts, examples=examples, warmup=self.warmup_steps(steps))


def _inverse(weight: float) -> float:
    return 1 / weight if weight else 0.0
