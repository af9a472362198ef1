"""The life of a model under a method, for models of every family: what is checked is the same for all of them."""

import copy
import importlib
import warnings

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.methods import attached_to
from isingformer.methods.measure import model_outputs
from isingformer.nn.masked import posteriors

QUIET = {"warmup": 100, "refresh": 1, "measure_every": 1, "weight_noise": 0.0, "kl_weight": 0.1}


def installed(name):
    """A library that may be missing, or be there and not work, as a torchvision built for another torch: then skip."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own making
            return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"{name} cannot be imported: {error}", allow_module_level=True)


def structure(model):
    return [(name, type(module)) for name, module in model.named_modules()]


def train(model, handle, x, y, steps=4, forward=None):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
    for _ in range(steps):
        (F.cross_entropy(model_outputs((model if forward is None else forward)(x)), y) + handle.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()


def check_life(build, x, y, tmp_path, **options):
    """Attach, train, predict, save, load and detach; the model at the end is plain, as it was built."""
    model = build().train()
    before, keys, parameters = structure(model), list(model.state_dict()), list(model.parameters())
    handle = isf.attach(model, isf.Ising(delta=0.2, warmup=0, refresh=2), examples=10, **options)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    resting = handle.drop_probability()
    train(model, handle, x, y)
    assert all((h >= 0).all() and h.max() > 0 for h in handle.curvature().values())
    assert all(not torch.equal(q, resting[name]) for name, q in handle.drop_probability().items())
    check_every_layer_is_random(model, x)
    drawn = isf.predict(model, x, samples=3, generator=torch.Generator().manual_seed(0))
    isf.save(model, tmp_path)
    loaded = isf.load(tmp_path, build())
    again = isf.predict(loaded, x, samples=3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn.samples, again.samples)
    assert attached_to(loaded).parts.topology == handle.parts.topology
    expected = model_outputs(model.eval()(x))
    trained = copy.deepcopy(model.state_dict())
    assert handle.detach() is model and structure(model) == before and list(model.state_dict()) == keys
    plain = build().eval()
    plain.load_state_dict(trained)
    torch.testing.assert_close(model_outputs(model(x)), model_outputs(plain(x)), rtol=0, atol=0)
    attached_to(loaded).detach("expected")
    torch.testing.assert_close(model_outputs(loaded.eval()(x)), expected)
    return model


def check_every_layer_is_random(model, x):
    """With one layer's weights in doubt and no others, the passes of `predict` differ: no path goes around it."""
    parts = posteriors(model)
    before = {name: (part.drop.clone(), part.noise_sd) for name, part in parts.items()}
    for part in parts.values():
        part.drop.zero_()
        part.noise_sd = 0.0
    for name, part in parts.items():
        part.drop.fill_(0.5)
        drawn = isf.predict(model, x, samples=4).samples
        assert not torch.equal(drawn[0], drawn[1]) or not torch.equal(drawn[0], drawn[2]), name
        part.drop.zero_()
    for name, (drop, noise_sd) in before.items():
        parts[name].drop.copy_(drop)
        parts[name].noise_sd = noise_sd


def check_curvature(build, x, y, matrices, sampling="mask", **options):
    """`fisher` of every layer equals squared gradients of the plain model, one example at a time, in float64.

    `matrices` gives from a model's parameters by name what each layer's matrix is.
    """
    plain = build().double().train()
    model = copy.deepcopy(plain)
    handle = isf.attach(model, isf.Ising(sampling=sampling, **QUIET), examples=10, **options)
    (F.cross_entropy(model_outputs(model(x)), y) + handle.kl()).backward()
    handle.step()
    wanted = dict.fromkeys(handle.curvature(), 0.0)
    for i in range(len(y)):
        plain.zero_grad()
        F.cross_entropy(model_outputs(plain(x[i : i + 1])), y[i : i + 1]).backward()
        gradients = {name: p.grad for name, p in plain.named_parameters()}
        for name in wanted:
            wanted[name] = wanted[name] + matrices(name, gradients).square() / len(y)
    rtol = 1e-9 if sampling == "mask" else 1e-7  # whose smallest noise is 1e-10, not 0
    for name, found in handle.curvature().items():
        assert wanted[name].max() > 0, name
        atol = rtol * float(wanted[name].max())
        torch.testing.assert_close(found, wanted[name], rtol=rtol, atol=atol, msg=name)


def weight(name, gradients):
    """The matrix of an ordinary linear layer."""
    return gradients[f"{name}.weight"]


def check_checkpointed(build, x, y, checkpoint):
    """Recomputed passes see the masks of the first: gradients and curvature are those without checkpointing."""
    results = []
    for each in (None, checkpoint):
        model = build().train()
        if each is not None:
            each(model)
        handle = isf.attach(model, isf.Ising(delta=0.3, warmup=0, refresh=2, sampling="mask"), examples=10)
        torch.manual_seed(3)
        for _ in range(2):
            model.zero_grad()
            (F.cross_entropy(model_outputs(model(x)), y) + handle.kl()).backward()
            handle.step()
        results.append({**handle.curvature(), **{name: p.grad for name, p in model.named_parameters()}})
    torch.testing.assert_close(*results)


def check_compiled(model, x, y):
    """Compiled, the model trains, stays random in training mode, and is its expected network in eval mode."""
    torch._dynamo.reset()
    handle = isf.attach(model.train(), isf.Ising(delta=0.3, warmup=0, refresh=2), examples=10)
    compiled = torch.compile(model, backend="aot_eager")
    train(model, handle, x, y, steps=2, forward=compiled)
    assert all(h.max() > 0 for h in handle.curvature().values())
    assert not torch.equal(model_outputs(compiled(x)), model_outputs(compiled(x)))
    model.eval()
    torch.testing.assert_close(model_outputs(compiled(x)), model_outputs(model(x)))
    torch._dynamo.reset()


def check_on_a_gpu(model, layers):
    """A model of real size: all of its layers are random and their readers known, but for the last; it trains."""
    torch.manual_seed(0)
    model = model.cuda().train()
    x, y = torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(1000, (8,), device="cuda")
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=100)
    wiring = handle.parts.topology.wiring
    assert len(wiring) == layers and [name for name, found in wiring.items() if not found] == [list(wiring)[-1]]
    optimizer, resting = torch.optim.AdamW(model.parameters(), 1e-4), handle.drop_probability()
    for _ in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        (loss + handle.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()
    assert loss.isfinite()
    assert all(not torch.equal(q, resting[name]) for name, q in handle.drop_probability().items())
    drawn = isf.predict(model, x, samples=3).samples
    assert bool(drawn.isfinite().all()) and not torch.equal(drawn[0], drawn[1])
    handle.detach()
