"""A method on a model: what `attach` returns and a training loop talks to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.masked import take_off
from ..nn.noise import KeyedNoise, Noise
from .base_rate import learn, learned
from .distributed import add_up
from .divergence import constant_divergence, slab_pull
from .method import Method, Parts
from .sharded import own_state, reshard, shard, whole_state
from .weights import WeightPosterior
from .written import Weights, check_writable, write

HANDLE = "_isingformer"
"""Where a model keeps the method that is attached to it."""


class Attached:
    """A method attached to a model. Make one with `attach`.

    A training step is ``(mean loss + method.kl()).backward()``, the optimiser's step, and ``method.step()``.
    """

    def __init__(
        self, parts: Parts, method: Method, *, examples: float, steps: int | None, noise: Noise,
        readers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:  # fmt: skip
        self.parts, self.method, self.examples, self.planned_steps, self.noise = parts, method, examples, steps, noise
        self.readers = None if readers is None else {name: list(names) for name, names in readers.items()}
        self.rule = method.rule(parts, examples=examples, steps=steps)
        self.steps = 0
        self.attached = True
        self._constant: Tensor | None = None  # of the divergence, what m does not move
        self._constant_is_old = True
        self._hook: Any = None
        self._entered = False  # since the last step, through the hook
        self.rule.begin()
        # Their fused path would read the weights past the posterior; without this mark they do not take it.
        self._fused = [layer for layer in parts.model.modules() if isinstance(layer, nn.TransformerEncoderLayer)]
        self._fused_marks = [layer.activation_relu_or_gelu for layer in self._fused]
        for layer in self._fused:
            layer.activation_relu_or_gelu = 0
        if isinstance(noise, KeyedNoise) or self.rule.watches_forward:
            self._hook = parts.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        setattr(parts.model, HANDLE, self)

    @property
    def model(self) -> nn.Module:
        """The model that carries the method."""
        return self.parts.model

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entered = True
        if isinstance(self.noise, KeyedNoise) and self._draws(module):
            self.noise.advance()
        if self.rule.watches_forward and module.training and torch.is_grad_enabled():
            self.rule.before_forward(args, kwargs)

    def _draws(self, module: nn.Module) -> bool:
        """Whether a pass draws from the method's own noise; `predict` brings another."""
        parts = self.parts.posteriors.values()
        return any((module.training or part.forced) and part.noise is self.noise for part in parts)

    @torch.compiler.disable
    def kl(self, *, terms: float | None = None) -> Tensor:
        """(kl_weight / N) (KL_W + KL_xi), to be added to the mean loss: a scalar, or ``[R]`` for stacked replicas.

        It must be part of the loss even where its weight is 0: through it the method learns what the loss was
        multiplied by (a loss scaler, an accumulation), which squared gradients cannot tell. So never multiply it by a
        factor that the loss does not have; its weight is `kl_weight`.

        Args:
            terms: over how many terms this batch's loss is a mean, where that is not the number of examples: tokens
                for a language model, say, with `examples` given in tokens too.
        """
        self._check_attached("kl()")
        first = next(iter(self.parts.posteriors.values())).drop
        weight = self.method.weight_of_kl / self.examples
        if weight:
            value = weight * (slab_pull(self.parts, self.method) + self._constant_divergence(first))
        else:
            value = first.new_zeros(first.shape[:-2])
        if not torch.is_grad_enabled():
            return value
        probe = torch.zeros_like(value, requires_grad=True)
        self.rule.watch(probe, terms)
        return value + probe

    def _constant_divergence(self, like: Tensor) -> Tensor:
        known = self._constant
        if known is None or known.is_inference() or (known.device, known.dtype) != (like.device, like.dtype):
            known = self._constant = constant_divergence(self.parts, self.method, masks=self.rule.has_mask_prior)
        elif self._constant_is_old:  # written where it is: a CUDA graph of kl() goes on reading there
            known.copy_(constant_divergence(self.parts, self.method, masks=self.rule.has_mask_prior))
        self._constant_is_old = False
        return known

    def step(self, *, targets: Tensor | None = None) -> None:
        """Count a training step; take in curvature and sweep q where that is due. Before or after the optimiser's step.

        Args:
            targets: the batch's labels, needed by ``curvature="hutchinson"`` alone.
        """
        self._check_attached("step()")
        self._check_entered()
        if self.rule.step(self.steps + 1, targets):
            self._constant_is_old = True
        self.steps += 1

    def _check_entered(self) -> None:
        """Streams and counts of examples move on when the model itself is called: a part of it does not do."""
        if self._hook is not None and not self._entered:
            raise RuntimeError(
                f"step(): this {type(self.model).__name__} was not called since the last step, so that its masks stood "
                "still; call model(x) before method.step(), not a part or a method of it, or attach to what you call"
            )
        self._entered = False

    def learn_delta(self, *args: Any, targets: Tensor, **kwargs: Any) -> None:
        """Move delta by examples that the gradient does not see; see `base_rate.py`.

        A few dozen calls, spread over the first part of a training, do; then `settle_delta`, and the examples may be
        trained on too. Processes that train together all call it, each with its own examples.

        Args:
            *args: the model's inputs, for each replica of a stacked model its own.
            targets: their labels.
            **kwargs: inputs given by name.
        """
        learn(self, args, kwargs, targets)

    def settle_delta(self) -> None:
        """Leave delta at the mean of where `learn_delta` has moved it, later moves weighing more."""
        learned(self, "settle_delta()").settle()

    @property
    def measures_next(self) -> bool:
        """Whether the next training pass measures curvature too; a CUDA graph is good for passes of its kind alone."""
        return self.rule.measures_next

    def replayed(self, *args: Any, **kwargs: Any) -> None:
        """Tell the method that a CUDA graph of a training pass, forward to backward with kl(), was launched.

        The kernels did their work, but Python saw nothing of it. Before `step()`, once a launch; not for the capture
        itself, which Python did see.

        Args:
            *args: the model's inputs: the tensors that the graph reads.
            **kwargs: those given by name.
        """
        self._check_attached("replayed()")
        self._entered = True
        if self.rule.watches_forward:
            self.rule.before_forward(args, kwargs)
        self.rule.replayed()

    def drop_probability(self) -> dict[str, Tensor]:
        """q of every masked layer by name, ``[*R, out, in]``; a copy."""
        return {name: part.whole().clone() for name, part in self.parts.posteriors.items()}

    def curvature(self) -> dict[str, Tensor]:
        """h of every masked layer by name, as the next sweep uses it; empty for methods that measure none."""
        return self.rule.curvature()

    def weight_posterior(self) -> dict[str, WeightPosterior]:
        """Mean, sd and credible interval of every weight, by layer."""
        return {
            name: WeightPosterior(
                self.parts.mean(name).to(part.drop.dtype),
                part.whole().clone(),
                part.noise_sd,
                None if (own := part.whole_variance()) is None else own.clone(),
            )
            for name, part in self.parts.posteriors.items()
        }

    def summary(self) -> dict[str, float]:
        """Mean q over all weights, and the share of them more likely dropped than kept."""
        drops = [part.drop for part in self.parts.posteriors.values()]
        sums = torch.stack([torch.stack([q.sum(), (q > 0.5).sum()]) for q in drops]).sum(0)
        mean_q, dropped = ((add_up(sums, "q") if self.parts.pieces else sums) / self._weights()).tolist()
        return {"mean_q": mean_q, "dropped": dropped}

    def _weights(self) -> int:
        return sum(math.prod(part.shape) for part in self.parts.posteriors.values())

    def __repr__(self) -> str:
        parts, weights = self.parts.posteriors.values(), self._weights()
        if self.parts.pieces:  # whose mean q one process alone cannot know
            return (
                f"<{self.method.name} on {type(self.model).__name__}, sharded: {weights:,} weights, step {self.steps}>"
            )
        about = self.summary()
        return (
            f"<{self.method.name} on {type(self.model).__name__}: {len(parts)} layers, {weights:,} weights, mean q "
            f"{about['mean_q']:.3f}, {about['dropped']:.1%} more likely dropped than kept, step {self.steps}>"
        )

    @torch.no_grad()
    def detach(self, weights: Weights = "mean") -> nn.Module:
        """Take the method off and return the model, plain as it came.

        Args:
            weights: ``mean`` leaves m untouched; ``expected`` writes m (1 - q), the network of eval mode; ``probable``
                keeps m where q < 1/2 and writes 0 elsewhere.
        """
        self._check_attached("detach()")
        check_writable(self.parts, weights)
        if self.parts.pieces:
            reshard(self.parts)
        write(self.parts, weights)
        for layer in self.parts.layers.values():
            take_off(layer)
        for name in self.parts.node_masks:
            take_off(self.model.get_submodule(name))
        for fused, mark in zip(self._fused, self._fused_marks, strict=True):
            fused.activation_relu_or_gelu = mark
        if self._hook is not None:
            self._hook.remove()
        self.rule.stop()
        delattr(self.model, HANDLE)
        self.attached = False
        return self.model

    def _live(self) -> dict[str, Tensor]:
        state = self.rule.tensors()
        for name, part in self.parts.posteriors.items():
            state[f"{name}.drop"], state[f"{name}.prior"] = part.drop, part.prior
            if part.variance is not None:
                state[f"{name}.variance"] = part.variance
        if isinstance(self.noise, KeyedNoise) and self.noise.stored:
            state["noise.keys"], state["noise.position"] = self.noise.keys, self.noise.position
        return state

    def shard(self) -> None:
        """Cut q and curvature up like the weights, after ``fully_shard(model)`` and before the next pass.

        Every process then keeps q and h of its own pieces alone. All must call it, and from then on whatever gives or
        takes whole layers: `drop_probability`, `curvature`, `weight_posterior`, `summary`, `state_dict`, `save`.

        Raises:
            ValueError: The model is not sharded by fully_shard over all processes, or the method cannot be: `two_way`,
                the extra-pass curvatures and stacked replicas.
        """
        self._check_attached("shard()")
        shard(self)
        self._constant_is_old = True

    def check_whole(self, what: str) -> None:
        """Raise where q is in pieces, for work that needs all of it in one process."""
        if self.parts.pieces:
            raise ValueError(f"{what}: the method is sharded over processes; save the model and load it in one process")

    def synchronise(self) -> None:
        """Let the state of this process stand for all that train together: before one of them saves it.

        Between refreshes each has measured curvature of its own. All must call this, at the same step; alone it does
        nothing.
        """
        self._check_attached("synchronise()")
        self.rule.synchronise()

    def state_dict(self) -> dict[str, Tensor]:
        """All that the method itself remembers, as named tensors: q, curvature, counters. The model keeps its own."""
        live = self._live()
        state = whole_state(self, live) if self.parts.pieces else live
        state = {name: tensor.detach().clone() for name, tensor in state.items()}
        return {**state, "steps": torch.tensor(self.steps)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; a state of another model or method is refused before anything changes."""
        live = {**self._live(), "steps": torch.tensor(0)}
        if self.parts.pieces:
            state = own_state(self, state)
        odd = sorted(set(live) ^ set(state))
        odd += [name for name in live if name in state and live[name].shape != state[name].shape]
        if odd:
            raise ValueError(
                f"this state is not of {type(self.model).__name__} with {self.method.name}: {len(odd)} entries do not "
                f"fit, first {odd[0]!r}. Load it into the model and method it was saved from"
            )
        for name, tensor in live.items():
            tensor.copy_(state[name])
        self.steps = int(state["steps"])
        self._constant_is_old = True
        self.rule.resume(self.steps)

    def _check_attached(self, what: str) -> None:
        if not self.attached:
            raise RuntimeError(f"{what}: the method was detached from its model; attach it again first")


def attached_to(model: nn.Module) -> Attached | None:
    """The method that a model carries, or None."""
    handle = getattr(getattr(model, "_orig_mod", model), HANDLE, None)
    return handle if isinstance(handle, Attached) else None
