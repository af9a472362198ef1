"""Likelihood-guided Ising regularisation: every weight's drop probability is a variational Ising posterior.

    q = sigmoid(coupling * (neighbours - delta) + pull of the evidence + logit(delta))

swept from the last layer to the first. `ising/field.py` has the terms, `ising_rule.py` when they are computed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..ising.field import Evidence
from .ising_rule import IsingRule
from .method import DEFAULT_KL_WEIGHT, Method, Parts, Rate, Rule

Curvature = Literal["fisher", "expand", "lm", "mc-fisher", "hutchinson"]
DEFAULT_WARMUP, DEFAULT_RAMP = 0.05, 0.3
MOST_NODE_NOISE, HALF_OF_IT_AT, FULL_WIDTH = 0.13, 100, 16
"""node_rate is the first times N / (N + the second), all of it in layers that read as many nodes as the third;
docs/log.md has the trials that these rules come from."""
MOST_CONTRAST, CONTRAST_OF_ONE_AT = 4.0, 3000


@dataclass(frozen=True, kw_only=True)
class Ising(Method):
    """A drop probability for every weight, from its neighbours, its evidence and a base rate.

    Args:
        delta: base rate in (0, 1): where q rests without evidence, but for the floor; or one a replica of a stacked
            model.
        learn_delta: share of the training examples, below a half, that `isingformer.train` and studies hold out of the
            gradient (256 at most) for the first part of a training, to learn delta on them; in a loop of your own call
            `Attached.learn_delta`. 0: delta stays as it is.
        coupling: weight of the neighbours' term; the paper has 2.
        evidence_weight, kl_weight: one number, the inverse temperature of a cold posterior: evidence_weight =
            1 / kl_weight. Give either, and the other follows; giving both is allowed. None of them: kl_weight =
            sqrt(3 / N), at most 0.1. evidence_weight counts where there is no `contrast`, and giving it turns that off.
        contrast: how far the evidence parts the weights of a network, by its logarithm: in place of evidence_weight *
            evidence the field gets -contrast z, z the weight's log evidence in standard deviations from the network's
            mean, and what keeps the mean of q at delta (`methods/pull.py`). 0: evidence as it is. None: (N / 3000)^2,
            at most 4; 0 where `evidence_weight` is given.
        floor: q stays at or above the smaller of this and 1.3 delta: noise that no evidence takes away. Evidence
            measured on the training examples frees the very weights that the network overfits with. None: the layer's
            own `node_rate`.
        evidence: ``obd`` -N h m^2 / 2, ``curvature`` -N h as the paper prints it, ``none`` 0.
        curvature: how h is measured. ``fisher`` and its approximation ``expand`` ride on the training backward pass;
            ``lm`` (the paper's recursion), ``mc-fisher`` and ``hutchinson`` make an extra pass at the expected network.
        node_rate: up to this rate, in [0, 1], weights that read one node are dropped together, one number a node; what
            is left of their q goes weight by weight. 0: all by weight, 1: all by node. None: 0.13 N / (N + 100), and 0
            with evidence ``none``.
        node_width: layers that read fewer nodes than this have less of that rate, in proportion, since one of few nodes
            is more of what a layer reads. None: 16 where `node_rate` is None, else the rate is the same for all.
        node_draw: with ``local`` sampling nodes are dropped anew for every ``example``, all its tokens alike, as at
            prediction; or for every ``token``, as ordinary dropout does.
        sampling: how training passes are drawn: ``local``, fresh for every example and token, or ``mask``, one draw a
            batch. `predict` draws masks unless asked otherwise.
        warmup: with nothing dropped, a number of steps (int) or a share of them (float below 1, needs `steps` at
            attach). None: 5% where `attach` knows `steps`, else 0.
        ramp: at each sweep q is in use in proportion to the steps done, wholly after so many of them (int) or a share
            of them (float up to 1). 0: at once. None: 30% where `attach` knows `steps` and `warmup` is not given, else
            0.
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
    contrast: float | None = None
    floor: float | None = None
    evidence: Evidence = "obd"
    curvature: Curvature = "fisher"
    node_rate: float | None = None
    node_width: int | None = None
    node_draw: Literal["example", "token"] = "example"
    warmup: int | float | None = None
    ramp: int | float | None = None
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
        check("node_rate", self.node_rate, 0 <= (self.node_rate or 0) <= 1, "in [0, 1]")
        check("node_width", self.node_width, self.node_width is None or self.node_width >= 1, "1 or more")
        check("node_draw", self.node_draw, self.node_draw in ("example", "token"), "'example' or 'token'")
        check("warmup", self.warmup, self.warmup is None or self.warmup >= 0, "zero or more steps, or a share below 1")
        if isinstance(self.warmup, float):
            check("warmup", self.warmup, self.warmup < 1, "a share below 1, or an int for a number of steps")
        check("ramp", self.ramp, (self.ramp or 0) >= 0, "zero or more steps, or a share up to 1")
        if isinstance(self.ramp, float):
            check("ramp", self.ramp, self.ramp <= 1, "a share up to 1, or an int for a number of steps")
        every = self.refresh == "epoch" or (isinstance(self.refresh, int) and self.refresh >= 1)
        check("refresh", self.refresh, every, "a number of steps from 1 on, or 'epoch'")
        check("average", self.average, 0 <= self.average < 1, "in [0, 1)")
        check(
            "measure_every",
            self.measure_every,
            self.measure_every is None or (isinstance(self.measure_every, int) and self.measure_every >= 1),
            "1 or more",
        )
        check("contrast", self.contrast, (self.contrast or 0) >= 0, "zero or more")
        check("floor", self.floor, 0 <= (self.floor or 0) < 1, "in [0, 1)")
        if self.contrast and (self.evidence == "none" or self.evidence_weight is not None):
            other = "evidence='none'" if self.evidence == "none" else f"evidence_weight={self.evidence_weight}"
            raise ValueError(f"Ising: contrast puts the evidence on a scale of its own; leave out contrast or {other}")
        for one, other in (("kl_weight", "evidence_weight"), ("evidence_weight", "kl_weight")):
            needed = self.evidence != "none" and not (self.contrast != 0 and other == "evidence_weight")
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
            sampling="mask", refresh="epoch", average=0.0, centred=False, contrast=0.0, node_rate=0.0, floor=0.0,
            node_width=1, ramp=0,
        )  # fmt: skip

    @classmethod
    def paper_obd(cls, delta: Rate = 0.1) -> Ising:
        """`paper` with the evidence of Optimal Brain Damage, -N h m^2 / 2, whose derivation the paper follows."""
        return dataclasses.replace(cls.paper(delta), evidence="obd")

    def settled(self, examples: float) -> Ising:
        """The same with a number wherever None leaves it to a rule of N, the number of training examples."""
        kl = _inverse(self.evidence_weight) if self.evidence_weight is not None else kl_weight_for(examples)
        noise = 0.0 if self.evidence == "none" else MOST_NODE_NOISE * examples / (examples + HALF_OF_IT_AT)
        width = FULL_WIDTH if self.node_rate is None else 1
        return dataclasses.replace(
            self,
            kl_weight=kl if self.kl_weight is None else self.kl_weight,
            contrast=self._contrast(examples) if self.contrast is None else self.contrast,
            node_rate=noise if self.node_rate is None else self.node_rate,
            node_width=width if self.node_width is None else self.node_width,
        )

    def _contrast(self, examples: float) -> float:
        literal = self.evidence == "none" or self.evidence_weight is not None
        return 0.0 if literal else min(MOST_CONTRAST, (examples / CONTRAST_OF_ONE_AT) ** 2)

    @property
    def weight_of_evidence(self) -> float:
        """evidence_weight, or 1 / kl_weight where only that was given; of settled settings."""
        return _inverse(self.weight_of_kl) if self.evidence_weight is None else self.evidence_weight

    def shared_rate(self, fan_in: int) -> float:
        """node_rate of a layer, of settled settings."""
        return (self.node_rate or 0.0) * min(1.0, fan_in / (self.node_width or 1))

    def lowest(self, fan_in: int) -> float:
        """The floor of a layer, likewise."""
        return self.lowest_at(self.shared_rate(fan_in))

    def lowest_at(self, node_rate: float) -> float:
        """The floor of a layer whose node_rate is known: what is left of a layer keeps that which it had."""
        return min(node_rate, 0.99) if self.floor is None else self.floor

    @property
    def by_example(self) -> bool:
        """Whether all tokens of an example lose the same nodes."""
        return self.node_draw == "example"

    @property
    def own_variance(self) -> bool:
        """Whether kept weights have a variance of their own."""
        return self.laplace_noise > 0

    def warmup_steps(self, steps: int | None) -> int:
        """How many steps drop nothing, for a training of `steps` steps (None: not known)."""
        return self._steps("warmup", DEFAULT_WARMUP if self.warmup is None and steps is not None else 0, steps)

    def ramp_steps(self, steps: int | None) -> int:
        """After how many steps q has its full value, likewise."""
        return self._steps("ramp", DEFAULT_RAMP if self.warmup is None and steps is not None else 0, steps)

    def _steps(self, what: str, default: float, steps: int | None) -> int:
        given = getattr(self, what)
        chosen = default if given is None else given
        if not isinstance(chosen, float):
            return chosen
        if steps is None and chosen > 0:
            raise ValueError(f"{what}={chosen} is a share of the steps: tell attach how many with steps=..., or give "
                             f"{what} as an int, a number of steps")  # fmt: skip
        return round(chosen * (steps or 0))

    def check_plan(self, steps: int | None) -> None:
        """A warm-up or a ramp as a share needs the number of steps."""
        self.warmup_steps(steps)
        self.ramp_steps(steps)

    def rule(self, parts: Parts, *, examples: float, steps: int | None) -> Rule:
        """The sweep, fed with curvature."""
        warmup, ramp = self.warmup_steps(steps), self.ramp_steps(steps)
        return IsingRule(self, parts, examples=examples, warmup=warmup, ramp=ramp)


def kl_weight_for(examples: float) -> float:
    """The weight of the divergence for so many examples, sqrt(3 / N), at most that of the comparison methods."""
    return min(DEFAULT_KL_WEIGHT, math.sqrt(3 / examples))


def _inverse(weight: float) -> float:
    return 1 / weight if weight else 0.0
