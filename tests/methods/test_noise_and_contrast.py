"""What the data say of single weights: Laplace noise, and evidence by its logarithm."""

import pytest
import torch

import isingformer as isf


def test_a_kept_weights_own_noise_is_what_the_data_leave_open(tiny, batch):
    """v = temperature / (N h + 1 / s2^2), nothing before h is known, and charged for in kl()."""
    how = {"refresh": 1, "kl_weight": 1.0, "evidence_weight": 1.0}
    method = isf.attach(tiny(), isf.Ising(warmup=1, laplace_noise=0.3, **how), examples=10)
    parts = method.parts.posteriors
    assert not any(bool(part.variance.any()) for part in parts.values())
    x, y = batch()
    torch.nn.functional.cross_entropy(method.model(x), y).add(method.kl()).backward()
    method.step()
    for name, h in method.curvature().items():
        fan_in = h.shape[-1]
        torch.testing.assert_close(parts[name].variance, 0.3 / (10 * h + fan_in))
        torch.testing.assert_close(method.weight_posterior()[name].own_variance, parts[name].variance)
    noisy = method.kl().item()
    costs = 0.0
    for part in parts.values():
        s, s2, v = part.noise_sd, 1 / part.shape[-1] ** 0.5, part.variance
        wide = (s**2 + v).sqrt()
        cost = (s / wide).log() + (wide**2 - s**2) / (2 * s2**2)
        costs += float(((1 - part.drop) * cost).sum()) / 10
        v.zero_()
    method._constant_is_old = True
    assert noisy - method.kl().item() == pytest.approx(costs)


def logs_of(method):
    """(log e of every weight by layer, their mean and sd over the network) by the running mean of h."""
    means = {name: method.parts.mean(name).double() for name in method.parts.posteriors}
    worth = {name: h.double().clamp_min(0) * means[name] ** 2 for name, h in method.curvature().items()}
    least = 1e-9 * torch.cat([each.flatten() for each in worth.values()]).mean()
    logs = {name: (each + least).log() for name, each in worth.items()}
    every = torch.cat([each.flatten() for each in logs.values()])
    return logs, every.mean(), every.std(correction=0)


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.8])
def test_contrast_parts_weights_by_the_logarithm_of_their_evidence(tiny, batch, delta):
    """logit q = logit(delta) sqrt(1 + pi c^2 / 8) - c z, whatever N."""
    for examples in (10, 1000):
        spec = isf.Ising(delta=delta, contrast=2.0, coupling=0.0, warmup=0, refresh=1, weight_noise=0.0, node_rate=0.0)
        torch.manual_seed(0)
        method = isf.attach(tiny(), spec, examples=examples)
        assert all(bool(((q - delta).abs() < 1e-12).all()) for q in method.drop_probability().values())  # nothing known
        x, y = batch()
        torch.nn.functional.cross_entropy(method.model(x), y).add(method.kl()).backward()
        method.step()
        logs, middle, spread = logs_of(method)
        rest = torch.logit(torch.tensor(delta, dtype=torch.float64)) * (1 + torch.pi * 4 / 8) ** 0.5
        for name, q in method.drop_probability().items():
            z = ((logs[name] - middle) / spread).clamp(-6, 6)
            torch.testing.assert_close(torch.logit(q), rest - 2.0 * z, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("delta", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("contrast", [0.5, 4.0])
def test_with_normal_log_evidence_the_mean_of_q_is_delta(delta, contrast):
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 300).double()
    spec = isf.Ising(delta=delta, contrast=contrast, coupling=0.0, warmup=0, node_rate=0.0)
    method = isf.attach(model, spec, examples=10)
    model.weight.data.fill_(0.5)
    method.rule.average.average.normal_().mul_(2).exp_()
    method.rule.average.weight.fill_(1.0)
    method.rule.sweep()
    assert float(method.drop_probability()[""].mean()) == pytest.approx(delta, abs=0.015)


@pytest.mark.parametrize("setting", [{"laplace_noise": 0.1}, {"contrast": 2.0}])
def test_curvature_that_comes_out_negative_does_no_harm(tiny, batch, setting):
    method = isf.attach(tiny(), isf.Ising(warmup=0, refresh=1, **setting), examples=10)
    method.rule.average.average.fill_(-5.0)
    method.rule.average.weight.fill_(1.0)
    method.rule.sweep()
    for part in method.parts.posteriors.values():
        assert bool(((part.drop >= 0) & (part.drop <= 1)).all())  # and no NaN
        assert part.variance is None or bool((part.variance >= 0).all())


def test_contrast_leaves_a_layer_alone_of_which_nothing_is_known(tiny, batch):
    spec = isf.Ising(delta=0.2, contrast=3.0, coupling=0.0, warmup=0, kl_weight=0.0, node_rate=0.0)
    method = isf.attach(tiny(), spec, examples=10)
    average = method.rule.average
    average.average.uniform_()
    average.weight.fill_(1.0)
    average.weight[average.numbers["head"]] = 0.0
    average.layer(average.average, "head").zero_()
    method.rule.sweep()
    q = method.drop_probability()
    torch.testing.assert_close(q.pop("head"), torch.full_like(method.parts.mean("head"), 0.2))
    z = torch.cat([torch.logit(each).flatten() for each in q.values()])  # by the others alone
    assert float(z.std(correction=0)) == pytest.approx(3.0, rel=1e-6)


def test_a_weight_that_earns_its_keep_twice_pays_for_its_own_noise_too(tiny):
    """The field's slab-minus-spike is what q moves in KL_W, the Laplace noise included."""
    spec = isf.Ising(warmup=0, spike_slab=True, laplace_noise=0.2, coupling=0.0, evidence_weight=0.0, kl_weight=1.0)
    method = isf.attach(tiny(), spec, examples=1)
    method.rule.average.average.uniform_()
    method.rule.average.weight.fill_(1.0)
    method.rule.sweep()
    with torch.no_grad():
        part = method.parts.posteriors["head"]
        pull = torch.logit(part.drop) - part.prior
        for value in (0.3, 0.4):
            part.drop.fill_(value)
            method._constant_is_old = True
            masks = torch.special.entr(part.drop) + torch.special.entr(1 - part.drop) + part.drop * part.prior
            whole = method.kl() + masks.sum()  # what is left is linear in q
            slope = (whole - slope) / 0.1 if value == 0.4 else whole  # noqa: F821
    assert float(slope) == pytest.approx(-float(pull.sum()), rel=1e-6)


@pytest.mark.parametrize(("delta", "lowest"), [(0.3, 0.1), (0.05, 0.065), ((0.3, 0.05), (0.1, 0.065))])
def test_no_evidence_takes_q_below_the_floor(tiny, delta, lowest):
    """Where the sweep stays above it q is as ever; below, it is the smaller of floor and 1.3 delta, by replica."""
    found = {}
    for floor in (0.0, 0.1):
        torch.manual_seed(0)
        model = isf.nn.stack([tiny(), tiny()]) if isinstance(delta, tuple) else tiny()
        spec = isf.Ising(delta=delta, evidence_weight=30.0, warmup=0, floor=floor)
        method = isf.attach(model, spec, examples=1000)
        torch.manual_seed(1)
        method.rule.average.average.uniform_()
        method.rule.average.weight.fill_(1.0)
        method.rule.sweep()
        found[floor] = method.drop_probability()
    least = torch.tensor(lowest).view(-1, 1, 1) if isinstance(lowest, tuple) else torch.tensor(lowest)
    raised = 0
    for name, q in found[0.0].items():
        torch.testing.assert_close(found[0.1][name], torch.maximum(q, least.expand_as(q)), rtol=0, atol=1e-7)
        raised += int((q < least).sum())
    assert raised > 20  # it had something to do


def test_weights_that_differ_by_rounding_alone_are_not_parted():
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 50)
    method = isf.attach(model, isf.Ising(delta=0.1, contrast=4.0, coupling=0.0, warmup=0, node_rate=0.0), examples=10)
    model.weight.data.fill_(0.3)
    method.rule.average.average.fill_(0.7)
    method.rule.average.weight.fill_(1.0)
    method.rule.sweep()
    q = method.drop_probability()[""]
    rest = torch.sigmoid(torch.logit(torch.tensor(0.1)) * (1 + torch.pi * 2) ** 0.5)  # where z = 0 is
    torch.testing.assert_close(q, rest.expand_as(q), rtol=0.05, atol=0)
