"""The Ising method: when q moves, what it becomes, its presets, Proposition 2 and its errors."""

import copy

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from frozen import freeze_noise, squared_gradients_one_by_one
from isingformer.ising import evidence, sweep
from isingformer.ising.reference import stationary_by_descent
from isingformer.nn.masked import posteriors
from training import one_step


def all_q(method):
    return torch.cat([q.flatten() for q in method.drop_probability().values()])


def test_q_is_the_sweep_of_measured_curvature(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(
        model, isf.Ising(delta=0.3, coupling=1.5, evidence_weight=4.0, refresh=1, warmup=0, node_rate=0.0), examples=70
    )
    freeze_noise(model)
    h = squared_gradients_one_by_one(model, lambda: F.cross_entropy(model(x), y, reduction="none"))
    one_step(model, method, x, y)
    means = {name: model.get_parameter(f"{name}.weight").detach() for name in h}
    pull = {name: 4.0 * evidence(means[name], h[name], examples=70) for name in h}
    wanted = sweep(means, pull, method.parts.topology.wiring, delta=0.3, coupling=1.5).drop
    torch.testing.assert_close(method.drop_probability(), wanted, rtol=1e-9, atol=1e-12)


def test_useful_weights_are_kept_and_idle_ones_dropped_more(tiny, batch):
    model, (x, y) = tiny(), batch(6)
    x[:, :, :2] = 0  # the upper half of every image says nothing
    method = isf.attach(
        model, isf.Ising(delta=0.4, refresh=1, warmup=0, evidence_weight=100.0, floor=0.0), examples=1000
    )
    for _ in range(5):
        one_step(model, method, x, y)
    q = method.drop_probability()
    assert float(all_q(method).mean()) < 0.4
    assert min(float(values.min()) for values in q.values()) < 0.1


def test_nothing_is_dropped_during_warm_up_and_q_moves_at_its_end(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(delta=0.3, warmup=5, refresh=2), examples=10)
    for step in range(1, 8):
        one_step(model, method, x, y)
        assert bool((all_q(method) > 0).all()) is (step >= 5)


@pytest.mark.parametrize(
    "warmup, steps, wanted", [(None, 200, 10), (None, None, 0), (0.25, 40, 10), (7, None, 7), (0.0, None, 0)]
)
def test_warm_up_as_a_share_or_a_number(warmup, steps, wanted):
    assert isf.Ising(warmup=warmup).warmup_steps(steps) == wanted


@pytest.mark.parametrize(
    "refresh, examples, wanted",
    [
        (3, 10, [3, 6, 9]),
        ("epoch", 12, [3, 6, 9]),
        ("epoch", 14, [4, 8]),
    ],  # an epoch: whenever N examples went by, 4 a step
)
def test_q_moves_only_when_a_refresh_is_due(tiny, batch, refresh, examples, wanted):
    model, (x, y) = tiny(), batch(4)
    method = isf.attach(model, isf.Ising(warmup=0, refresh=refresh), examples=examples)
    before, moved = all_q(method), []
    for step in range(1, 10):
        one_step(model, method, x, y)
        if not torch.equal(all_q(method), before):
            moved.append(step)
        before = all_q(method)
    assert moved == wanted


@pytest.mark.parametrize(
    "given, wanted",
    [({}, (20.0, 0.05)), ({"evidence_weight": 4.0}, (4.0, 0.25)), ({"kl_weight": 0.5}, (2.0, 0.5)),
     ({"evidence_weight": 3.0, "kl_weight": 0.2}, (3.0, 0.2))],
)  # fmt: skip
def test_evidence_weight_and_kl_weight_are_one_number(given, wanted):
    settled = isf.Ising(**given).settled(1200)
    assert (settled.weight_of_evidence, settled.weight_of_kl) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "examples, wanted",
    [(100, (0.1, 1 / 900, 0.065)), (300, (0.1, 0.01, 0.0975)), (6000, (0.5 * 0.002**0.5, 4.0, 0.13 * 60 / 61))],
)
def test_what_is_left_open_follows_from_the_number_of_examples(examples, wanted):
    """kl_weight = sqrt(3 / N) up to 0.1, contrast = (N / 3000)^2 up to 4, node_rate = 0.13 N / (N + 100)."""
    settled = isf.Ising().settled(examples)
    assert (settled.kl_weight, settled.contrast, settled.node_rate) == pytest.approx(wanted)
    assert settled.settled(10 * examples) == settled
    for fan_in, share in ((2, 0.125), (8, 0.5), (16, 1.0), (512, 1.0)):  # of few nodes fewer are dropped
        assert settled.shared_rate(fan_in) == settled.lowest(fan_in) == pytest.approx(share * wanted[2])


def test_what_is_given_stays_and_decides_the_rest():
    for given in ({"evidence_weight": 7.0}, {"evidence": "none"}):
        assert isf.Ising(**given).settled(6000).contrast == 0.0  # evidence as it is, and none
    assert isf.Ising(evidence="none").settled(6000).node_rate == 0.0
    given = isf.Ising(node_rate=0.3, kl_weight=0.2).settled(6000)
    assert given.shared_rate(4) == given.lowest(4) == 0.3 and given.kl_weight == 0.2
    own = isf.Ising(kl_weight=0.2, contrast=1.0, node_rate=0.5, floor=0.1, node_width=10)
    assert own.settled(6000) == own and (own.shared_rate(4), own.lowest(4)) == (0.2, 0.1)
    for preset in (isf.Ising.paper(0.1), isf.Ising.paper_obd(0.1)):
        settled = preset.settled(6000)
        assert (settled.kl_weight, settled.contrast, settled.node_rate, settled.lowest(128)) == (0.0, 0.0, 0.0, 0.0)
        assert settled.ramp_steps(1000) == 0


def test_an_attached_method_says_what_it_settled_on(tiny):
    method = isf.attach(tiny(), isf.Ising(delta=0.2), examples=900)
    assert method.method == isf.Ising(delta=0.2).settled(900)


@pytest.mark.parametrize(
    "settings, steps, wanted",
    [({}, 200, 60), ({}, None, 0), ({"warmup": 0}, 200, 0), ({"ramp": 0.5}, 40, 20), ({"ramp": 7}, None, 7)],
)
def test_ramp_as_a_share_or_a_number(settings, steps, wanted):
    assert isf.Ising(**settings).ramp_steps(steps) == wanted


def test_q_rises_with_the_steps_to_what_the_sweep_says(tiny, batch):
    """Without evidence a sweep says delta; one comes every second step, and all of it is in use from the eighth on."""
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(delta=0.3, warmup=0, refresh=2, ramp=8, evidence="none"), examples=50)
    assert not bool(all_q(method).any())
    for step in range(1, 13):
        one_step(model, method, x, y)
        wanted = 0.3 * min(1.0, step // 2 * 2 / 8)
        torch.testing.assert_close(all_q(method), torch.full_like(all_q(method), wanted), rtol=1e-9, atol=1e-12)


def test_presets_are_the_papers_values():
    paper, obd = isf.Ising.paper(delta=0.5), isf.Ising.paper_obd(delta=0.5)
    wanted = {
        "delta": 0.5, "coupling": 2.0, "evidence_weight": 1.0, "kl_weight": 0.0, "curvature": "lm", "sampling": "mask",
        "refresh": "epoch", "centred": False,
    }  # fmt: skip
    for preset in (paper, obd):
        assert {name: getattr(preset, name) for name in wanted} == wanted
    assert (paper.evidence, obd.evidence) == ("curvature", "obd")


def test_the_papers_preset_backpropagates_the_nll_alone(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising.paper(delta=0.1), examples=10)
    freeze_noise(model)
    F.cross_entropy(model(x), y).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    (F.cross_entropy(model(x), y) + method.kl()).backward()
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, wanted, rtol=0, atol=0)


def test_two_way_is_the_stationary_point_of_the_bound(batch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    how = {"refresh": 1, "warmup": 0, "evidence_weight": 10.0, "node_rate": 0.0}
    method = isf.attach(model, isf.Ising(delta=0.3, coupling=1.0, two_way=True, **how), examples=40)
    one_step(model, method, x, y)
    means = {name: layer.weight.detach() for name, layer in method.parts.layers.items()}
    pull = {name: 10.0 * evidence(means[name], h, examples=40) for name, h in method.curvature().items()}
    wanted = stationary_by_descent(means, pull, method.parts.topology.wiring, delta=0.3, coupling=1.0)
    torch.testing.assert_close(method.drop_probability(), wanted, rtol=0, atol=1e-5)


def test_spike_slab_makes_large_idle_weights_pay(tiny):
    small = isf.Ising(warmup=0, coupling=0.0, evidence="none", spike_slab=True, weight_noise=0.05, slab=1.0)
    model = tiny()
    method = isf.attach(model, small, examples=10)
    q, m = method.drop_probability()["head"], model.head.weight.detach()
    order = m.abs().flatten().argsort()
    assert (q.flatten()[order].diff() >= 0).all() and float(q.min()) > 0.1


class TestPropositionTwo:
    """With q constant the method is dropconnect; with masks tied over a node's outgoing weights too, node dropout."""

    flat = isf.Ising(delta=0.3, warmup=0, coupling=0.0, evidence="none")

    @pytest.mark.parametrize("sampling", ["mask", "local"])
    def test_ising_without_coupling_and_evidence_is_dropconnect(self, tiny, batch, sampling):
        (x, y), results = batch(), []
        for kind in (
            isf.Ising(delta=0.3, warmup=0, coupling=0.0, evidence="none", sampling=sampling, kl_weight=0.0),
            isf.DropConnect(p=0.3, sampling=sampling, kl_weight=0.0),
        ):
            model = tiny()
            method = isf.attach(model, kind, examples=10)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            torch.manual_seed(4)
            passes = [model(x) for _ in range(3)]
            for _ in range(5):
                one_step(model, method, x, y, optimizer)
            results.append((method.drop_probability(), torch.stack(passes), model.state_dict()))
        torch.testing.assert_close(*(r[0] for r in results), rtol=1e-12, atol=1e-12)  # q = sigmoid(logit(delta))
        torch.testing.assert_close(*(r[1] for r in results), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(*(r[2] for r in results), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("sampling", ["mask", "local"])
    def test_with_tied_masks_it_is_node_dropout(self, sampling):
        torch.manual_seed(0)
        stack = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).double()
        x, results = torch.randn(5, 4, dtype=torch.float64), []
        for kind in (
            isf.Ising(delta=0.3, warmup=0, coupling=0.0, evidence="none", sampling=sampling),
            isf.Dropout(p=0.3, sampling=sampling),
        ):
            model = copy.deepcopy(stack)
            method = isf.attach(model, kind, examples=10)
            for part in posteriors(model).values():
                part.tied = True
            torch.manual_seed(7)
            results.append((method.drop_probability(), torch.stack([model(x) for _ in range(4)])))
        torch.testing.assert_close(*(r[0] for r in results), rtol=1e-12, atol=1e-12)
        assert torch.equal(results[0][1], results[1][1])

    def test_tied_masks_equal_torchs_own_dropout_without_its_rescaling(self):
        torch.manual_seed(0)
        layer = torch.nn.Linear(50, 3).double()
        x = torch.ones(2000, 50, dtype=torch.float64)
        isf.attach(layer, isf.Dropout(p=0.3, weight_noise=0.0), examples=10)
        ours = layer(x)
        torchs = F.linear(F.dropout(x, 0.3) * 0.7, layer.weight, layer.bias)
        torch.testing.assert_close(ours.mean(0), torchs.mean(0), rtol=0, atol=0.05)
        torch.testing.assert_close(ours.std(0), torchs.std(0), rtol=0.1, atol=0)

    def test_in_a_vit_dropout_sits_where_bayesformer_puts_it(self, tiny):
        model = tiny()
        q = isf.attach(model, isf.Dropout(p=0.3), examples=10).drop_probability()
        inside = {name for name, drop in q.items() if (drop > 0).any()}
        assert inside == {
            f"blocks.{i}.{layer}" for i in (0, 1) for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        }
        torch.testing.assert_close(model.embedded.posterior.drop, torch.full((8,), 0.3, dtype=torch.float64))


def test_kl_of_the_masks_is_right_during_warm_up(tiny):
    method = isf.attach(tiny(), isf.Ising(delta=0.3, warmup=1, refresh=1, evidence="none", kl_weight=1.0), examples=1)
    weights = sum(q.numel() for q in method.drop_probability().values())
    with torch.no_grad():
        at_zero = method.kl()
        for part in method.parts.posteriors.values():
            part.prior.fill_(-1e9)  # a prior that is sure of q = 0 costs nothing
        method._constant_is_old = True
        without_masks = method.kl()
    torch.testing.assert_close(at_zero - without_masks, -weights * torch.tensor(0.7, dtype=torch.float64).log())


def test_kl_asked_for_in_inference_mode_first_can_be_trained_with(tiny, batch):
    method = isf.attach(tiny(), isf.Ising(warmup=0, refresh=1), examples=10)
    with torch.inference_mode():
        method.kl()
    x, y = batch()
    said = []
    for _ in range(2):
        said.append(method.kl())
        torch.nn.functional.cross_entropy(method.model(x), y).add(said[-1]).backward()
        method.step()
    assert said[0].item() != said[1].item()  # q was swept in between


def test_what_kl_reads_stays_where_it_is_when_q_is_swept(tiny, batch):
    """A CUDA graph of a training step goes on reading there; elsewhere it would read memory that was let go."""
    method = isf.attach(tiny(), isf.Ising(warmup=0, refresh=1, kl_weight=1.0), examples=10)
    x, y = batch()
    before, place = method.kl().item(), method._constant
    torch.nn.functional.cross_entropy(method.model(x), y).add(method.kl()).backward()
    method.step()
    assert method.kl().item() != before and method._constant is place


def test_the_fused_encoder_layer_does_not_compute_around_its_masks():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    x = torch.randn(3, 5, 8)
    readers = {"linear1": ["linear2"]}
    method = isf.attach(layer, isf.DropConnect(p=0.5, weight_noise=0.0), examples=10, readers=readers)
    layer.eval()
    with torch.no_grad():
        fused, honest = layer(x), None
    honest = layer(x).detach()
    torch.testing.assert_close(fused, honest)
    with torch.no_grad(), isf.sampled(layer):
        assert not torch.equal(layer(x), layer(x))
    method.detach()
    assert layer.activation_relu_or_gelu == 1
