"""A training pass that ran as a CUDA graph is counted as one that Python saw."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf


def trained(method, model, x, y):
    """One pass in Python."""
    (F.cross_entropy(model(x), y) + method.kl()).backward()
    model.zero_grad()


def test_a_pass_that_measured_is_counted(tiny, batch):
    model, (x, y) = tiny(), batch()
    method = isf.attach(model, isf.Ising(warmup=0, refresh=4, measure_every=2), examples=10)
    kinds = []
    for _ in range(4):
        kinds.append(method.measures_next)
        if len(kinds) == 2:  # what the graph's kernels would have done, without Python
            taken = [part.clone() for part in method.rule.average.tensors().values()]
            trained(method, model, x, y)
            method.rule.passes = 0
            assert not all(
                torch.equal(a, b) for a, b in zip(taken, method.rule.average.tensors().values(), strict=True)
            )
        method.replayed(x)
        if len(kinds) == 4:
            assert method.rule.passes == 2
        method.step()
    assert kinds == [False, True, False, True]


def test_without_being_told_the_refresh_would_find_no_pass(tiny):
    method = isf.attach(tiny(), isf.Ising(warmup=0, refresh=2, measure_every=1), examples=10)
    method.step()
    with pytest.raises(RuntimeError, match="no backward pass"):
        method.step()


def test_examples_are_counted_for_refreshes_by_epoch(tiny, batch):
    model, x = tiny(), batch()[0]
    method = isf.attach(model, isf.Ising(warmup=0, refresh="epoch", evidence="none"), examples=2 * len(x))
    seen = []
    for _ in range(3):
        method.replayed(x)
        seen.append(int(method.rule.seen))
        method.step()
    assert seen == [len(x), 2 * len(x), len(x)]


@pytest.mark.parametrize("method", [isf.DropConnect(), isf.Dropout(), isf.Plain()], ids=lambda m: m.name)
def test_methods_that_measure_nothing_have_one_kind_of_pass(method, tiny, batch):
    attached = isf.attach(tiny(), method, examples=10)
    assert attached.measures_next is False
    attached.replayed(batch()[0])
    attached.step()
