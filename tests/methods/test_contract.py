"""What holds for every method on every model: one suite over `Ising`, `DropConnect` and `Dropout`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import isingformer as isf
from isingformer.methods import attached_to

METHODS = {
    "ising": isf.Ising(delta=0.2, refresh=3, warmup=0),
    "ising-mask": isf.Ising(delta=0.2, refresh=3, warmup=0, sampling="mask"),
    "ising-node-laplace": isf.Ising(delta=0.2, refresh=3, warmup=0, node_rate=0.1, laplace_noise=0.1, floor=0.1),
    "ising-paper": isf.Ising.paper(delta=0.3),
    "dropconnect": isf.DropConnect(p=0.2),
    "dropconnect-mask": isf.DropConnect(p=0.2, sampling="mask"),
    "dropout": isf.Dropout(p=0.2),
    "dropout-mask": isf.Dropout(p=0.2, sampling="mask"),
}


@pytest.fixture(params=METHODS.values(), ids=METHODS.keys())
def method(request):
    return request.param


def train(model, handle, x, y, steps, lr=1e-2):
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y) + handle.kl()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    return loss


def q_and_weights(model, handle):
    return {**handle.drop_probability(), **model.state_dict()}


def assert_identical(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_attach_and_detach_leave_the_model_bit_identical(tiny, batch, method):
    model, (x, _) = tiny(), batch()
    before = copy.deepcopy(model)
    parameters = list(model.parameters())
    isf.attach(model, method, examples=10).detach(weights="mean")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert_identical(model.state_dict(), before.state_dict())
    assert torch.equal(model(x), before(x))
    for (name, module), (_, old) in zip(model.named_modules(), before.named_modules(), strict=True):
        assert type(module) is type(old), name
        assert module.__dict__.keys() == old.__dict__.keys(), name
        assert not module._forward_pre_hooks and not module._forward_hooks


def test_parameters_and_state_dict_keys_do_not_change_while_attached(tiny, batch, method):
    model, (x, y) = tiny(), batch()
    parameters, keys = [*model.named_parameters()], [*model.state_dict()]
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y, 4)
    assert [*model.state_dict()] == keys
    assert all(name == old and p is q for (name, p), (old, q) in zip(model.named_parameters(), parameters, strict=True))
    model.load_state_dict(tiny(seed=5).state_dict())


def test_training_passes_differ_and_eval_is_deterministic(tiny, batch, method):
    model, (x, _) = tiny(), batch()
    isf.attach(model, method, examples=10)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    with isf.sampled(model):
        assert not torch.equal(model(x), model(x))
    assert torch.equal(model(x), model(x))


def test_eval_is_the_expected_network(tiny, batch, method):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y, 5)
    expected = model.eval()(x)
    handle.detach(weights="expected")
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_probable_keeps_exactly_what_is_more_likely_kept(tiny, method):
    model = tiny()
    handle = isf.attach(model, method, examples=10)
    torch.manual_seed(0)
    for part in handle.parts.posteriors.values():
        part.drop.copy_(torch.rand_like(part.drop))
    q, old = handle.drop_probability(), {name: p.clone() for name, p in model.named_parameters()}
    handle.detach(weights="probable")
    for name, drop in q.items():
        weight = model.get_parameter(f"{name}.weight")
        assert torch.equal(weight, torch.where(drop < 0.5, old[f"{name}.weight"], 0.0))


def test_gradients_reach_every_mean(tiny, batch, method):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, method, examples=10)
    for _ in range(20):  # a mask may hide a weight from one batch
        (F.cross_entropy(model(x), y) + handle.kl()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).all(), name


def test_save_and_load_give_the_same_q_and_predictions(tiny, batch, method, tmp_path):
    model, (x, y) = tiny(torch.float32), batch(dtype=torch.float32)
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y, 7)
    isf.save(model, tmp_path / "saved")
    loaded = isf.load(tmp_path / "saved")
    assert loaded.training
    again = attached_to(loaded)
    assert_identical(handle.state_dict(), again.state_dict())
    assert again.method == handle.method
    predictions = [isf.predict(m, x, samples=4, generator=torch.Generator().manual_seed(3)) for m in (model, loaded)]
    assert torch.equal(predictions[0].samples, predictions[1].samples)


def test_training_goes_on_after_loading_as_if_never_interrupted(tiny, batch, method, tmp_path):
    model, (x, y) = tiny(torch.float32), batch(dtype=torch.float32)
    handle = isf.attach(model, method, examples=10, seeds=7)  # a stream of its own travels with the saved model
    train(model, handle, x, y, 5, lr=0.0)  # the next step is one that measures
    isf.save(model, tmp_path)
    loaded = isf.load(tmp_path)
    for one in (model, loaded):
        train(one, attached_to(one), x, y, 5, lr=0.0)
    assert_identical(handle.state_dict(), attached_to(loaded).state_dict())


def test_same_generator_same_masks_same_weights_after_20_steps(tiny, batch, method):
    results = []
    for _ in range(2):
        model, (x, y) = tiny(), batch()
        handle = isf.attach(model, method, examples=10, steps=20)
        torch.manual_seed(11)
        train(model, handle, x, y, 20)
        results.append(q_and_weights(model, handle))
    assert_identical(*results)


def test_another_generator_other_masks(tiny, batch, method):
    model, (x, _) = tiny(), batch()
    isf.attach(model, method, examples=10)
    torch.manual_seed(1)
    one = model(x)
    torch.manual_seed(2)
    assert not torch.equal(one, model(x))


def test_an_exception_inside_sampling_leaves_the_model_as_it_was(tiny, batch, method):
    model, (x, _) = tiny(), batch()
    isf.attach(model, method, examples=10)
    model.eval()
    model.blocks[1].train()
    state = [
        (module.training, getattr(module, "forced", None), getattr(module, "noise", None)) for module in model.modules()
    ]
    with pytest.raises(KeyError), isf.sampled(model):
        model(x)
        raise KeyError
    with pytest.raises(RuntimeError):
        isf.predict(model, torch.randn(2, 3, 5))  # not an image
    now = [
        (module.training, getattr(module, "forced", None), getattr(module, "noise", None)) for module in model.modules()
    ]
    assert now == state


def gradients_and_curvature(model, method, x, y, checkpointed, **kwargs):
    handle = isf.attach(model, method, examples=10, **kwargs)
    torch.manual_seed(5)
    for block in model.blocks:
        plain = type(block).forward.__get__(block)
        if checkpointed is not None:
            block.forward = lambda t, plain=plain: checkpoint(plain, t, use_reentrant=checkpointed)
    (F.cross_entropy(model(x), y) + handle.kl()).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    handle.step()
    return {**grads, **handle.state_dict()}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("own_stream", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients_and_curvature(tiny, batch, method, reentrant, own_stream):
    seeds = {"seeds": 3} if own_stream else {}
    plain = gradients_and_curvature(tiny(), method, *batch(), None, **seeds)
    replayed = gradients_and_curvature(tiny(), method, *batch(), reentrant, **seeds)
    torch.testing.assert_close(replayed, plain, rtol=1e-10, atol=1e-12)


def test_bfloat16_model_trains_and_keeps_q_in_float32(tiny, batch, method):
    model, (x, y) = tiny(torch.float32), batch(dtype=torch.bfloat16)
    handle = isf.attach(model, method, examples=10)
    q = handle.drop_probability()
    model.bfloat16()
    assert_identical(handle.drop_probability(), q)
    loss = train(model, handle, x, y, 4)
    assert torch.isfinite(loss)
    assert {part.drop.dtype for part in handle.parts.posteriors.values()} == {torch.float32}
    assert isf.predict(model, x, samples=3).probs.isfinite().all()


def test_moving_to_float64_and_back_carries_the_state(tiny, batch, method):
    model, (x, y) = tiny(torch.float32), batch(dtype=torch.float32)
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y, 4)
    model.double()
    train(model, handle, x.double(), y, 4)
    model.float()
    assert torch.isfinite(train(model, handle, x, y, 4))


def test_a_deep_copy_is_a_model_of_its_own(tiny, batch, method):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, method, examples=10)
    train(model, handle, x, y, 4)
    twin = copy.deepcopy(model)
    assert attached_to(twin).model is twin
    before = q_and_weights(model, handle)
    train(twin, attached_to(twin), x, y, 6)
    assert_identical(q_and_weights(model, handle), before)
    assert not torch.equal(twin.head.weight, model.head.weight)


@pytest.mark.parametrize("how", [{}, {"use_buffers": True, "multi_avg_fn": get_ema_multi_avg_fn(0.9)}])
def test_weight_averaging_predicts_with_the_current_q(tiny, batch, method, how):
    model, (x, y) = tiny(), batch()
    handle = isf.attach(model, method, examples=10)
    average = torch.optim.swa_utils.AveragedModel(model, **how)
    train(model, handle, x, y, 7)
    for _ in range(4):
        average.update_parameters(model)
    for name, part in attached_to(average.module).parts.posteriors.items():
        own = handle.parts.posteriors[name]
        assert torch.equal(part.drop, own.drop) if not how else part.drop.shape == own.drop.shape
        assert torch.equal(part.layer, own.layer)  # its average could be another layer's


def test_kl_is_reported_without_gradients_too(tiny, method):
    handle = isf.attach(tiny(), method, examples=10)
    with torch.no_grad():
        assert handle.kl() == handle.kl().detach() and not handle.kl().requires_grad


def test_the_handle_says_what_it_is(tiny, method):
    text = repr(isf.attach(tiny(), method, examples=10))
    assert text.startswith(f"<{method.name} on ViT: 10 layers, ") and text.endswith("step 0>")


def test_a_detached_method_says_so(tiny, method):
    handle = isf.attach(tiny(), method, examples=10)
    handle.detach()
    for call in (handle.kl, handle.step, handle.detach):
        with pytest.raises(RuntimeError, match="was detached"):
            call()


@pytest.mark.gpu
def test_trains_and_predicts_on_a_gpu(tiny, batch, method):
    model, (x, y) = tiny(torch.float32).cuda(), batch(dtype=torch.float32)
    handle = isf.attach(model, method, examples=10)
    assert torch.isfinite(train(model, handle, x.cuda(), y.cuda(), 12))
    assert isf.predict(model, x.cuda(), samples=5).probs.is_cuda
    model.cpu()
    assert torch.isfinite(train(model, handle, x, y, 4))
