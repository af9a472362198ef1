"""delta that is learned from examples held out of the gradient."""

import math

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.methods.base_rate import (
    HIGHEST,
    LOWEST,
    OWN_STREAM,
    PASSES,
    SHIFT,
    STRIDE,
    LearnedDelta,
    mean_and_error,
    preference,
)  # fmt: skip
from isingformer.nn.masked import drawing
from isingformer.nn.noise import KeyedNoise

LEARNS = isf.Ising(delta=0.2, learn_delta=0.2, refresh=1, warmup=0, coupling=0.0, evidence_weight=10.0, node_rate=0.0)


def step(method, x, y):
    F.cross_entropy(method.model(x), y).add(method.kl()).backward()
    method.step()


def test_moves_are_those_of_the_formula():
    base = LearnedDelta((0.1, 0.5), torch.zeros(2, 3, 4))
    expected, trail = [math.log(0.1 / 0.9), 0.0], [[], []]
    for mean, error in [((0.2, -0.1), (0.1, 0.05)), ((-3.0, 0.0), (0.1, 0.0)), ((0.05, -0.02), (0.2, 0.02))]:
        base.move(torch.tensor(mean, dtype=torch.float64), torch.tensor(error, dtype=torch.float64))
        for r in range(2):
            sure = math.tanh(mean[r] / error[r]) if error[r] else 0.0
            expected[r] -= STRIDE * sure
            trail[r].append(expected[r])
        found = base.value.flatten().tolist()
        assert found == pytest.approx([1 / (1 + math.exp(-value)) for value in expected], abs=1e-6)
    base.settle()
    means = [(own[0] + 2 * own[1] + 3 * own[2]) / 6 for own in trail]
    assert base.logit.flatten().tolist() == pytest.approx(means)
    assert base.value.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-value)) for value in means], abs=1e-6)


@pytest.mark.parametrize(("mean", "end"), [(1.0, LOWEST), (-1.0, HIGHEST)])
def test_it_stays_inside_its_range(mean, end):
    base = LearnedDelta(0.3, torch.zeros(3, 4))
    for _ in range(40):
        base.move(torch.tensor(mean, dtype=torch.float64), torch.tensor(1e-9, dtype=torch.float64))
    assert float(base.logit) == pytest.approx(end)


def test_a_replica_that_diverged_moves_neither_itself_nor_others():
    base = LearnedDelta((0.1, 0.5), torch.zeros(2, 3, 4))
    base.move(torch.tensor([float("nan"), 1.0]).double(), torch.tensor([float("nan"), 0.1]).double())
    assert base.value.flatten().tolist() == pytest.approx([0.1, 1 / (1 + math.exp(STRIDE))], abs=1e-6)


def test_saving_tells_who_forgot_to_learn(tiny, batch, tmp_path):
    x, y = batch()
    method = isf.attach(tiny(), LEARNS, examples=10)
    isf.save(method.model, tmp_path / "untrained")
    step(method, x, y)
    with pytest.warns(UserWarning, match=r"never learned, though learn_delta asks for it.*call method\.learn_delta"):
        isf.save(method.model, tmp_path / "a")
    method.learn_delta(x, targets=y)
    isf.save(method.model, tmp_path / "a")


def test_nobody_moves_it_unless_asked():
    base = LearnedDelta(0.3, torch.zeros(3, 4))
    base.settle()
    assert float(base.value) == pytest.approx(0.3)


def test_the_preference_is_a_difference_of_predictive_likelihoods(tiny, batch):
    """Against a loop that writes the shifted q into the model itself, one network at a time."""
    x, y = batch()
    method = isf.attach(tiny(), LEARNS, examples=10)
    for _ in range(3):
        step(method, x, y)
    before, state = method.drop_probability(), torch.random.get_rng_state()
    found = preference(method, (x,), {}, y, place=5)
    assert method.model.training and torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(q, before[name]) for name, q in method.drop_probability().items())
    logs = {}
    for sign in (-1, 1):
        for name, part in method.parts.posteriors.items():
            odds = before[name] / (1 - before[name]) * math.exp(sign * SHIFT)
            part.drop.copy_(odds / (1 + odds))
        noise, probs = KeyedNoise(torch.zeros((), dtype=torch.int64)), 0.0
        method.model.eval()
        with drawing(method.model, "mask", noise), torch.no_grad():
            for t in range(PASSES):
                noise.set(masks=5 * PASSES + t, weights=5 * PASSES + t)
                probs = probs + method.model(x).softmax(-1)[torch.arange(len(y)), y] / PASSES
        logs[sign] = probs.log()
    torch.testing.assert_close(found, logs[-1] - logs[1], rtol=1e-4, atol=1e-5)
    assert found.shape == y.shape and bool(found.any())


def test_mean_and_error_are_those_of_a_sample():
    d = torch.randn(3, 50, dtype=torch.float64)
    mean, error = mean_and_error(d, together=True)
    torch.testing.assert_close(mean, d.mean(1))
    torch.testing.assert_close(error, d.std(1, correction=0) / 50**0.5)


def test_the_next_sweep_takes_q_along(tiny, batch):
    x, y = batch()
    method = isf.attach(tiny(), LEARNS, examples=10)
    step(method, x, y)
    pull = {name: torch.logit(q) - math.log(0.2 / 0.8) for name, q in method.drop_probability().items()}
    method.learn_delta(x, targets=y)
    base = method.rule.base
    assert 0 < abs(float(base.logit) - math.log(0.2 / 0.8)) <= STRIDE
    method.rule.sweep()
    for name, q in method.drop_probability().items():
        torch.testing.assert_close(torch.logit(q) - float(base.logit), pull[name], rtol=1e-3, atol=1e-3)


def test_too_much_noise_is_taken_back_and_too_little_is_raised(tiny):
    """Labels that follow from the image: noise harms. Labels drawn by chance: only noise keeps the network modest."""
    torch.manual_seed(0)
    x = torch.randn(256, 1, 4, 4, dtype=torch.float64)
    clear, chance = (x[:, 0, :2].mean((1, 2)) > x[:, 0, 2:].mean((1, 2))).long(), torch.randint(2, (256,))
    found = {}
    for name, y in (("clear", clear), ("chance", chance)):
        torch.manual_seed(1)
        method = isf.attach(
            tiny(),
            isf.Ising(delta=0.3, learn_delta=0.5 - 1e-9, refresh=5, warmup=0, evidence_weight=10.0, node_rate=0.0),
            examples=128,
        )
        optimizer = torch.optim.AdamW(method.model.parameters(), 1e-2)
        for number in range(120):
            rows = torch.randint(128, (32,))
            step(method, x[rows], y[rows])
            optimizer.step()
            optimizer.zero_grad()
            if number >= 40 and number % 5 == 0:
                method.learn_delta(x[128:], targets=y[128:])
        method.settle_delta()
        found[name] = float(method.rule.base.value)
    assert found["clear"] < 0.3 < found["chance"]


def test_what_was_learnt_is_kept(tiny, batch):
    x, y = batch()
    method = isf.attach(tiny(), LEARNS, examples=10)
    for _ in range(3):
        step(method, x, y)
        method.learn_delta(x, targets=y)
    state = method.state_dict()
    again = isf.attach(tiny(), LEARNS, examples=10)
    again.load_state_dict(state)
    assert float(again.rule.base.value) == float(method.rule.base.value) != pytest.approx(0.2)
    assert int(again.rule.base.moves) == 3
    for handle in (method, again):  # the same weights, and the networks of the fourth move
        handle.learn_delta(x, targets=y)
    assert torch.equal(again.rule.base.logit, method.rule.base.logit)
    with pytest.raises(ValueError, match="is not of ViT with ising"):
        isf.attach(tiny(), isf.Ising(), examples=10).load_state_dict(state)


def test_replicas_learn_their_own(tiny, batch):
    """The networks that a replica is judged by follow from its key, not from its place."""
    x, y = batch()
    models = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        models.append(tiny())
    rates = (0.1, 0.2, 0.5)

    def learned(places):
        spec = isf.Ising(delta=tuple(rates[p] for p in places), learn_delta=0.2, refresh=1, warmup=0, sampling="mask")
        method = isf.attach(
            isf.nn.stack([models[p] for p in places]), spec, examples=10, seeds=[10 + p for p in places]
        )
        many = len(places)
        for _ in range(2):
            method.learn_delta(x.expand(many, *x.shape), targets=y.expand(many, *y.shape))
        return method.rule.base.logit.flatten()

    together = learned((0, 1, 2))
    for place in range(3):
        torch.testing.assert_close(learned((place,))[0], together[place], rtol=1e-5, atol=1e-6)
    assert OWN_STREAM and len(set(together.tolist())) == 3


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0])
def test_a_share_that_leaves_too_little_is_refused(share):
    with pytest.raises(ValueError, match=rf"learn_delta must be a share in \[0, 0\.5\), got {share}"):
        isf.Ising(learn_delta=share)


def test_who_does_not_learn_says_so(tiny, batch):
    x, y = batch()
    for spec in (isf.Ising(), isf.Dropout()):
        method = isf.attach(tiny(), spec, examples=10)
        with pytest.raises(RuntimeError, match=r"only Ising\(learn_delta=\.\.\.\) learns its delta"):
            method.learn_delta(x, targets=y)
    method = isf.attach(tiny(), isf.Ising(learn_delta=0.1, warmup=2), examples=10)
    with pytest.raises(RuntimeError, match=r"in the 2 steps of warm-up and ramp not all of q is in use"):
        method.learn_delta(x, targets=y)
    for _ in range(2):
        step(method, x, y)
    method.learn_delta(x, targets=y)
    method.detach()
    with pytest.raises(RuntimeError, match="was detached"):
        method.settle_delta()
