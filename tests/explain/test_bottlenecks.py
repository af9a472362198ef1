import math

import pytest
import torch

import isingformer as isf
from isingformer.explain import bottlenecks
from isingformer.explain.bottlenecks import Bottleneck, Bottlenecks
from training import one_step


def trained(model, batch, method):
    handle = isf.attach(model, method, examples=6)
    for seed in range(4):
        one_step(model, handle, *batch(seed=seed))
    return handle


@pytest.mark.parametrize("settings", [{}, {"contrast": 4.0, "floor": 0.2}], ids=["plain", "floor"])
def test_one_way_is_what_the_method_swept(tiny, batch, settings):
    model = tiny()
    handle = trained(model, batch, isf.Ising(delta=0.3, coupling=2.0, refresh=2, **settings))
    if settings:
        assert min(float(q.min()) for q in handle.drop_probability().values()) == pytest.approx(0.2)
    found = {one.layer: one for one in bottlenecks(model).layers}
    for name, q in handle.drop_probability().items():
        assert found[name].one_way == pytest.approx(float(q.mean()), abs=1e-9)
        assert found[name].shape == tuple(q.shape)


def test_a_learned_delta_is_the_one_in_both_sweeps(tiny, batch):
    model = tiny()
    handle = trained(model, batch, isf.Ising(delta=0.3, refresh=2, learn_delta=0.2))
    handle.rule.base.logit.fill_(-4.0)
    handle.rule.base.take_up()
    handle.rule.sweep()
    found = {one.layer: one for one in bottlenecks(model).layers}
    assert found["head"].two_way < 0.1
    for name, q in handle.drop_probability().items():
        assert found[name].one_way == pytest.approx(float(q.mean()), abs=1e-6)


@pytest.mark.parametrize("slab", [False, True], ids=["plain", "spike_slab"])
def test_two_way_is_what_a_two_way_method_sweeps(tiny, batch, slab):
    """The same weights and curvature, swept by the method itself with two_way=True."""
    torch.manual_seed(0)
    model = tiny()
    settings = {"delta": 0.3, "coupling": 1.0, "refresh": 2, "spike_slab": slab, "evidence_weight": 10.0}
    handle = trained(model, batch, isf.Ising(two_way=True, **settings))
    found = {one.layer: one for one in bottlenecks(model).layers}
    for name, q in handle.drop_probability().items():
        assert found[name].two_way == pytest.approx(float(q.mean()), abs=1e-4)
    assert max(one.widest for one in found.values()) > 1e-3  # and both ways do differ


def test_the_coupling_alone_never_keeps_more_one_way(tiny, batch):
    """Evidence is never above 0, so upstream q is below its prior, readers are charged, and two-way q is no higher."""
    model = tiny()
    trained(model, batch, isf.Ising(delta=0.3, coupling=2.0, refresh=2, evidence_weight=100.0))
    found = bottlenecks(model).layers
    assert min(one.excess for one in found) > -1e-5 and max(one.excess for one in found) > 1e-3


def test_without_evidence_there_is_nothing_to_charge(tiny):
    model = tiny()
    isf.attach(model, isf.Ising(delta=0.3, coupling=2.0, evidence="none", centred=False), examples=6)
    found = {one.layer: one for one in bottlenecks(model).layers}
    assert max(one.widest for one in found.values()) < 1e-9
    # sigmoid(2 q + logit 0.3) from the classifier at q = 0.3 backwards
    assert found["head"].one_way == pytest.approx(0.3)
    assert found["blocks.1.mlp.fc2"].one_way == pytest.approx(1 / (1 + math.exp(-0.6) * 7 / 3))


def test_the_model_s_own_q_is_left(tiny):
    model = tiny()
    method = isf.attach(model, isf.Ising(delta=0.3), examples=6)
    before = method.drop_probability()
    bottlenecks(model)
    assert all(torch.equal(q, before[name]) for name, q in method.drop_probability().items())


def test_figures_and_table_by_hand():
    table = Bottlenecks((Bottleneck("a", (10, 64), 0.5, 0.25, 0.3), Bottleneck("b", (8, 8), 0.5, 0.5, 0.0))).table()
    assert table.rows[0] == ("a", "64 → 10", 0.5, 0.25, 0.25, 0.3, "yes")
    assert table.rows[1][-1] == "no"


def test_other_methods_are_refused(tiny):
    model = tiny()
    with pytest.raises(ValueError, match="expected a model with Ising attached, got ViT"):
        bottlenecks(model)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    with pytest.raises(ValueError, match="got one with dropconnect"):
        bottlenecks(model)
