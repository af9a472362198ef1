"""A drop rate for each replica of a stacked model."""

import pytest
import torch

import isingformer as isf
from isingformer.methods import named_method

SHAPE = {"image_size": 8, "channels": 1, "patch": 4, "width": 8, "depth": 1, "heads": 2, "mlp": 12, "classes": 3}


def test_every_replica_has_its_own():
    rates = (0.1, 0.3, 0.5)
    for name in ("dropconnect", "dropout", "ising"):
        model = isf.ViT(**SHAPE, replicas=3)
        method = isf.attach(model, named_method(name, rates), examples=10)
        for layer, q in method.drop_probability().items():
            if name != "dropout" or layer not in ("embed", "head"):
                assert torch.allclose(q.mean((1, 2)), torch.tensor(rates)), (name, layer)
        for mask in method.parts.node_masks.values():
            assert torch.allclose(mask.drop.mean(1), torch.tensor(rates))


@pytest.mark.parametrize("replicas", [None, 2])
def test_their_number_must_be_that_of_the_replicas(replicas):
    model = isf.ViT(**SHAPE, replicas=replicas)
    for name in ("dropconnect", "dropout", "ising"):
        with pytest.raises(ValueError, match="a rate for each of 3 replicas"):
            isf.attach(model, named_method(name, (0.1, 0.2, 0.3)), examples=10)
        assert type(model.head).__name__ in ("Linear", "StackedLinear")  # and the model is as it was


def test_each_is_checked():
    for name in ("dropconnect", "dropout", "ising"):
        with pytest.raises(ValueError, match=r"got 1\.5"):
            named_method(name, (0.1, 1.5))


def test_they_are_saved_and_loaded(tmp_path):
    model = isf.ViT(**SHAPE, replicas=2)
    isf.attach(model, isf.Ising(delta=(0.1, 0.4)), examples=10)
    isf.save(model, tmp_path / "saved")
    again = isf.load(tmp_path / "saved")
    assert again._isingformer.method.delta == (0.1, 0.4)


@torch.no_grad()
def test_the_expected_network_that_detach_leaves_has_each_replicas_rate():
    model = isf.ViT(**{**SHAPE, "replicas": 2}).double()
    handle = isf.attach(model, isf.Dropout(p=(0.1, 0.5)), examples=10)
    x = torch.randn(2, 3, 1, 8, 8, dtype=torch.float64)
    expected = model.eval()(x)
    torch.testing.assert_close(handle.detach(weights="expected")(x), expected)
