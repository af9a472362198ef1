"""Noise that comes out the same at every pass, so that a pass can be repeated and its gradients taken one by one."""

import torch

from isingformer.nn.masked import posteriors


class FrozenNoise:
    def __init__(self):
        self.held = {}

    def _hold(self, draw, kind, shape, like, layer):
        key = (kind, layer, tuple(shape))
        if key not in self.held:
            self.held[key] = draw(tuple(shape), dtype=like.dtype, device=like.device)
        return self.held[key]

    def uniform(self, shape, like, layer):
        return self._hold(torch.rand, "uniform", shape, like, layer)

    def normal(self, shape, like, layer):
        return self._hold(torch.randn, "normal", shape, like, layer)


def freeze_noise(model):
    noise = FrozenNoise()
    for part in posteriors(model).values():
        part.noise = noise


def squared_gradients_one_by_one(model, nll_of):
    """Mean over examples of the squared gradient with respect to the weight each pass used, by plain autograd.

    A zero matrix added to every masked layer's weight stands for it; `nll_of()` gives one term an example, and each
    term is differentiated on its own.
    """
    owners = {name: model.get_submodule(name) for name in posteriors(model)}
    shifts = {name: torch.zeros_like(owner.weight, requires_grad=True) for name, owner in owners.items()}

    def shifted(name):
        def hook(module, args, output):
            return output + args[0] @ shifts[name].mT

        return hook

    companions = {name: owner.posterior.companion for name, owner in owners.items()}
    hooks = [owner.register_forward_hook(shifted(name)) for name, owner in owners.items()]
    try:
        for owner in owners.values():
            owner.posterior.companion = None
        terms = nll_of()
        total = {name: torch.zeros_like(shift) for name, shift in shifts.items()}
        for term in terms:
            for name, grad in zip(shifts, torch.autograd.grad(term, shifts.values(), retain_graph=True), strict=True):
                total[name] += grad.square()
    finally:
        for hook in hooks:
            hook.remove()
        for name, owner in owners.items():
            owner.posterior.companion = companions[name]
    return {name: value / len(terms) for name, value in total.items()}
