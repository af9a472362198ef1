"""torch.compile on attached models: whole graphs, the same numbers, real noise."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf

# torch's own: Dynamo instantiates autograd functions, inductor still scripts.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]

METHODS = {
    "ising": isf.Ising(delta=0.3, warmup=0, refresh=2),
    "ising-mask": isf.Ising(delta=0.3, warmup=0, refresh=2, sampling="mask"),
    "dropconnect": isf.DropConnect(p=0.3),
    "dropout": isf.Dropout(p=0.3),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(model, forward, handle, x, y, steps):
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)  # AdamW would blow a rounding error up to a step
    for _ in range(steps):
        (F.cross_entropy(forward(x), y) + handle.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        handle.step()


@pytest.mark.parametrize(
    "name, seeds", [*((name, None) for name in METHODS), pytest.param("ising-mask", 3, marks=pytest.mark.slow)]
)
def test_traces_whole_trains_and_stays_random(tiny, batch, name, seeds):
    method = METHODS[name]
    model, (x, y) = tiny(torch.float32, depth=1), batch(dtype=torch.float32)
    handle = isf.attach(model, method, examples=10, seeds=seeds)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    train(model, compiled, handle, x, y, 4)
    assert not torch.equal(compiled(x), compiled(x))
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
    assert torch.equal(compiled(x), compiled(x))
    with isf.sampled(model):
        assert not torch.equal(compiled(x), compiled(x))
    assert not torch.equal(*isf.predict(compiled, x, samples=2).samples)


def compare_with_eager(tiny, batch, backend):
    """Without noise, compiled and eager training take in the same curvature and arrive at the same q and weights."""
    results = []
    x, y = batch(dtype=torch.float32)
    for compiled in (False, True):
        model = tiny(torch.float32, depth=1)
        quiet = isf.Ising(delta=0.3, warmup=4, refresh=2, weight_noise=0.0, sampling="mask")
        handle = isf.attach(model, quiet, examples=10)
        forward = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
        train(model, forward, handle, x, y, 4)
        results.append({**handle.drop_probability(), **handle.curvature(), **dict(model.named_parameters())})
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_curvature_and_q_are_those_of_eager_training(tiny, batch):
    compare_with_eager(tiny, batch, "aot_eager")


@pytest.mark.slow
def test_the_real_compiler_agrees_too(tiny, batch):
    compare_with_eager(tiny, batch, "inductor")


def test_attach_and_save_see_through_a_compiled_model(tiny, batch, tmp_path):
    model, (x, _) = tiny(torch.float32, depth=1), batch(dtype=torch.float32)
    compiled = torch.compile(model, backend="aot_eager")
    isf.attach(compiled, isf.DropConnect(), examples=10)
    isf.save(compiled, tmp_path)
    torch.testing.assert_close(isf.load(tmp_path).eval()(x), compiled.eval()(x))
