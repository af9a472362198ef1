import math

import pytest
import torch

import isingformer as isf
from isingformer.explain import anatomy
from isingformer.explain.networks import Networks
from isingformer.explain.traces import Way, attention_weights, class_logits, log_odds, trace, watched


def test_attention_weights_by_hand():
    query, key = torch.tensor([[2.0, 0, 0, 0]]), torch.tensor([[math.log(3), 0, 0, 0], [0.0, 0, 0, 0]])
    # scores 2 log 3 / sqrt(4) = log 3 and 0, so 3 : 1
    assert attention_weights(query, key)[0].tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_weights_times_values_are_what_the_block_itself_computed(tiny, batch, pool):
    model = tiny(pool=pool)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    parts, x = anatomy(model), batch()[0]
    for found in Networks.draw(model, 3).each(lambda: trace(model, parts, x)):
        assert found.attention.shape == (6, 2, 2, 5, 5)
        torch.testing.assert_close(found.attention @ found.values, found.mixed)
        torch.testing.assert_close(found.attention.sum(-1), torch.ones(6, 2, 2, 5).double())


def test_what_is_seen_makes_the_logits(tiny, batch):
    model, x = tiny(), batch()[0]
    found = trace(model, anatomy(model), x)
    torch.testing.assert_close(found.logits, model(x))
    last = model.blocks[1]
    stream = found.stream[:, 1]
    stream = stream + last.attn.proj(found.mixed[:, 1].transpose(1, 2).flatten(-2))
    stream = stream + last.mlp.fc2(found.hidden[:, 1])
    torch.testing.assert_close(model.read_out(stream), found.logits)


def test_hooks_are_gone_also_after_an_error(tiny, batch):
    model = tiny()
    with pytest.raises(RuntimeError), watched(model, inputs=["norm"], outputs=["head"]):
        raise RuntimeError
    assert not model.norm._forward_pre_hooks and not model.head._forward_hooks


def test_log_odds_by_hand():
    logits = torch.tensor([[math.log(2), math.log(3), math.log(5)]])
    assert log_odds(logits, torch.tensor([2])).item() == pytest.approx(math.log(0.5 / 0.5))
    assert log_odds(logits, torch.tensor([0])).item() == pytest.approx(math.log(0.2 / 0.8))


def test_a_single_logit_is_two_classes():
    logits = class_logits("binary", torch.tensor([[1.5]]))
    assert log_odds(logits, torch.tensor([1])).item() == pytest.approx(1.5)
    assert log_odds(logits, torch.tensor([0])).item() == pytest.approx(-1.5)
    with pytest.raises(ValueError, match="got the likelihood 'gaussian'"):
        class_logits("gaussian", torch.zeros(1, 2))


def test_the_way_is_straight_and_in_the_middle_of_its_steps():
    points = Way(baseline=1.0, steps=2).points(torch.tensor([5.0, 9.0]).view(2, 1, 1, 1))
    assert points.flatten().tolist() == [2.0, 3.0, 4.0, 7.0]  # a quarter of the way, then three quarters


def score(model, x, target):
    return log_odds(model(x), target)


def test_gradients_are_finite_differences(tiny, batch):
    model, (x, _) = tiny(), batch(2)
    parts, target = anatomy(model), torch.tensor([2, 0])
    pulls = trace(model, parts, x, target, Way(0.0, 3)).pulls
    step = 1e-6 * torch.zeros_like(x).index_put_((torch.tensor([0, 1]), *torch.tensor([[0, 0], [1, 3], [2, 0]])),
                                                 torch.ones(2).double())  # one pixel of each image  # fmt: skip
    change = (score(model, x + step, target) - score(model, x - step, target)) / 2e-6
    torch.testing.assert_close(pulls.here[step > 0], change, rtol=1e-5, atol=1e-7)
    on_the_way = [(score(model, a * x + step, target) - score(model, a * x - step, target)) / 2e-6
                  for a in (1 / 6, 3 / 6, 5 / 6)]  # fmt: skip
    torch.testing.assert_close(pulls.pixels[step > 0], torch.stack(on_the_way).mean(0), rtol=1e-5, atol=1e-7)


def test_gradients_inside_are_finite_differences(tiny, batch):
    model, (x, _) = tiny(), batch(1)
    parts, target = anatomy(model), torch.tensor([1])
    pulls = trace(model, parts, x, target).pulls

    def nudged(name, place, by):
        def nudge(module, args):
            value = args[0].clone()
            value[(0, *place)] += by
            return (value,)

        hook = model.get_submodule(name).register_forward_pre_hook(nudge)
        found = score(model, x, target)
        hook.remove()
        return found

    for name, place, own in (
        ("blocks.0.attn.proj", (3, 5), pulls.mixed[0, 0, 1, 3, 1]),  # channel 5 is channel 1 of the second head
        ("blocks.1.mlp.fc2", (0, 7), pulls.hidden[0, 1, 0, 7]),
    ):
        change = (nudged(name, place, 1e-6) - nudged(name, place, -1e-6)) / 2e-6
        assert own.item() == pytest.approx(change.item(), rel=1e-4, abs=1e-8)


def test_what_is_read_is_the_class_token_or_every_token(tiny, batch):
    (x, _), target = batch(1), torch.tensor([1])
    read = {pool: trace(m := tiny(pool=pool), anatomy(m), x, target).pulls.read[0] for pool in ("class", "mean")}
    assert read["class"][0] != 0 and (read["class"][1:] == 0).all()
    assert (read["mean"] != 0).all()


def test_without_a_class_there_are_no_gradients(tiny, batch):
    model = tiny()
    assert trace(model, anatomy(model), batch()[0]).pulls is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_pass_under_no_grad_has_gradients_too(tiny, batch):
    model, (x, _) = tiny(), batch(1)
    with torch.no_grad():
        assert trace(model, anatomy(model), x, torch.tensor([0])).pulls.here.abs().sum() > 0
