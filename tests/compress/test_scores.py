"""What weights and nodes are worth."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.compress.gates import gate_evidence
from isingformer.compress.scores import node_costs, node_scores, weight_scores
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.nn.masked import posteriors


def weights_of(model):
    return {name: model.get_submodule(name).weight.detach() for name in posteriors(model)}


def test_scores_of_the_posterior(tiny, attached):
    model = attached(tiny())
    handle = isf.attached_to(model)
    q, h, m = handle.drop_probability(), handle.curvature(), weights_of(model)
    for name in m:
        lost = 50 * h[name] * m[name] ** 2 / 2
        torch.testing.assert_close(weight_scores(handle, "keep")[name], 1 - q[name])
        torch.testing.assert_close(weight_scores(handle, "evidence")[name], lost)
        torch.testing.assert_close(weight_scores(handle, "both")[name], (1 - q[name]) * lost)


def test_magnitude_is_relative_to_the_layer(tiny, attached):
    model = attached(tiny())
    found = weight_scores(isf.attached_to(model), "magnitude")
    for name, m in weights_of(model).items():
        w = m * (1 - posteriors(model)[name].drop)
        torch.testing.assert_close(found[name], w**2 / (w**2).mean())


def test_taylor_is_gradient_times_weight(tiny, batch, attached):
    """Against plain autograd on a network whose weights are m (1 - q)."""
    model = attached(tiny())
    x, y = batch(n=100)
    found = weight_scores(isf.attached_to(model), "taylor", images=x, labels=y)
    plain = tiny()
    plain.load_state_dict(model.state_dict())
    for name, part in posteriors(model).items():
        plain.get_submodule(name).weight.data *= 1 - part.drop
    total = dict.fromkeys(found, 0)
    for rows in (slice(0, 64), slice(64, 100)):
        plain.zero_grad()
        F.cross_entropy(plain(x[rows]), y[rows]).backward()
        for name in total:
            weight = plain.get_submodule(name).weight
            total[name] = total[name] + (weight * weight.grad).abs().detach() / 2
    for name in found:
        torch.testing.assert_close(found[name], total[name])
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_gates_against_gates(tiny, batch, attached, pool):
    """c + z (x - c) put into the network, a z for every image, and log p differentiated class by class."""
    model = attached(tiny(pool=pool))
    shape, (x, _) = shape_of(model), batch(n=7)
    gates = gate_evidence(isf.attached_to(model), shape, x)
    found = gates.alone
    for kind, size in shape.nodes().items():
        z = torch.ones(len(x), 1, size, dtype=x.dtype, requires_grad=True)
        with gated(model, shape, kind, z):
            log_p = model(x).log_softmax(-1)
        h, pairs = 0, 0
        for y in range(3):
            (slope,) = torch.autograd.grad(log_p[:, y].sum(), z, retain_graph=True)
            h = h + (log_p[:, y].detach().exp()[:, None] * slope[:, 0] ** 2).mean(0)
            pairs = pairs + torch.einsum("n,ni,nj->ij", log_p[:, y].detach().exp() / len(x), slope[:, 0], slope[:, 0])
        torch.testing.assert_close(found[kind], 50 * h / 2)
        if kind in gates.pairs:
            some = [1, 2, 6]
            assert gates.together([(kind, n) for n in some]) == pytest.approx(float(25 * pairs[some][:, some].sum()))


def test_gates_are_the_same_where_what_comes_before_is_frozen(tiny, batch, attached):
    model, (x, _) = attached(tiny()), batch(n=7)
    handle, shape = isf.attached_to(model), shape_of(model)
    before = gate_evidence(handle, shape, x)
    frozen = [p for name, p in model.named_parameters() if not name.startswith(("blocks.1", "head"))]
    for parameter in frozen:
        parameter.requires_grad_(False)
    found = gate_evidence(handle, shape, x)
    for kind, own in before.alone.items():
        torch.testing.assert_close(found.alone[kind], own)
    for kind, own in before.pairs.items():
        torch.testing.assert_close(found.pairs[kind], own)
    assert all(p.grad is None for p in model.parameters())


class gated:
    def __init__(self, model, shape, kind, z):
        self.hooks = []
        for layer, (rows, columns) in shape.wiring().items():
            module = model.get_submodule(layer)
            if columns == kind:
                # Of the last block the head reads the class token alone, so that the mean is that token's.
                alone = shape.pool == "class" and layer.startswith("blocks.1.") and not layer.endswith("qkv")
                hook = lambda m, args, alone=alone: (self.gate(args[0], z, alone),)  # noqa: E731
                self.hooks.append(module.register_forward_pre_hook(hook))
            elif kind in rows and kind.endswith("qk"):  # keys alone: a score is a product
                self.hooks.append(module.register_forward_hook(lambda m, a, out: self.keys(out, z)))

    @staticmethod
    def gate(x, z, alone=False):
        c = (x[:, :1] if alone else x).detach().flatten(0, -2).mean(0)
        return c + (z if x.dim() == 3 else z[:, 0]) * (x - c)

    def keys(self, out, z):
        q, k, v = out.split(8, dim=-1)
        return torch.cat([q, self.gate(k, z), v], dim=-1)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()


def test_random_is_drawn_for_the_cost(tiny, attached):
    model = attached(tiny())
    shape, handle = shape_of(model), isf.attached_to(model)
    one, other = (node_scores(handle, shape, "random", generator=torch.Generator().manual_seed(s)) for s in (0, 0))
    costs = node_costs(shape)
    for kind in one:
        assert torch.equal(one[kind], other[kind])
        assert bool((one[kind] < costs[kind]).all()) and bool((one[kind] >= 0).all())


@pytest.mark.parametrize("macs", [False, True], ids=["weights", "macs"])
def test_a_node_costs_what_its_removal_saves(tiny, macs):
    shape = shape_of(tiny()).compact()
    everything = Selection.everything(shape)
    count = (lambda s: s.macs()) if macs else (lambda s: s.weights())
    for kind, cost in node_costs(shape, macs=macs).items():
        for number in (0, len(cost) - 1):
            assert count(shape) - count(everything.without([(kind, number)]).result()) == int(cost[number])


@pytest.mark.parametrize(
    ("score", "given", "message"),
    [
        ("taylor", {}, "needs images and labels"),
        ("gate", {}, "needs images"),
        ("size", {}, "score must be one of keep, evidence, both, magnitude, taylor, random, gate, got 'size'"),
    ],
)
def test_what_a_score_needs(tiny, attached, score, given, message):
    model = attached(tiny())
    with pytest.raises(ValueError, match=message):
        node_scores(isf.attached_to(model), shape_of(model), score, **given)
