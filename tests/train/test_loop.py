import dataclasses

import pytest
import torch

import isingformer as isf
from isingformer.data import split, standardise
from isingformer.train.batches import Batches, derived_seed
from isingformer.train.loop import Loop, adamw, decay_groups
from isingformer.train.recipe import schedule
from isingformer.train.training import build
from pictures import corners

RECIPE = isf.Recipe(epochs=4, batch=16, width=16, depth=2, heads=2, mlp=16, patch=4, validation=16)


def train(tmp_path, recipe=RECIPE, method=None, data=None, **more):
    return isf.train(data or corners(), method, recipe, out=tmp_path / "run", progress=False, tensorboard=False, **more)


def test_it_learns(tmp_path):
    run = train(tmp_path, dataclasses.replace(RECIPE, epochs=40, lr=1e-2))
    last = run.about["finished"]["figures"]
    assert last["validation_accuracy"] == 1.0 and last["validation_nll"] < 0.7
    assert run.evaluate(samples=10).scores.accuracy == 1.0


@pytest.mark.parametrize("method", [isf.DropConnect(p=0.1), isf.Dropout(p=0.1), isf.Plain(), isf.Ising.paper_obd(0.1)])
def test_every_method_trains_and_comes_back(tmp_path, method):
    run = train(tmp_path, method=method)
    again = isf.Run(tmp_path / "run")
    assert again.about["method"]["name"] == method.name
    x = corners().test.x
    assert torch.equal(run.predict(x, samples=3).samples, again.predict(x, samples=3).samples)


def test_every_curvature_trains(tmp_path):
    for curvature in ("fisher", "expand", "lm", "mc-fisher", "hutchinson"):
        method = isf.Ising(curvature=curvature, refresh=2, warmup=0)
        run = isf.train(
            corners(), method, dataclasses.replace(RECIPE, epochs=1), out=tmp_path / curvature, progress=False,
            tensorboard=False,
        )  # fmt: skip
        assert run.finished


def test_the_binary_likelihood_is_one_logit(tmp_path):
    data = corners(classes=2)
    run = train(tmp_path, dataclasses.replace(RECIPE, likelihood="binary", epochs=12, lr=1e-2), data=data)
    assert run.model.head.weight.shape[0] == 1
    found = run.predict(data.test.x, samples=5)
    assert found.probs.shape == (40, 2)
    assert run.evaluate(samples=5).scores.accuracy > 0.9


def test_what_it_minimises_is_the_mean_nll_plus_kl(tmp_path):
    """The loop's first step equals one written out by hand."""
    recipe = dataclasses.replace(RECIPE, epochs=1, clip=None, lr_warmup=0.0)
    handle, batches, validation = parts(recipe)
    loop = Loop(handle, batches, validation, recipe, lr=1e-2)
    x, y = batches(0)
    with torch.random.fork_rng():
        reference, _, _ = parts(recipe)
        optimizer = torch.optim.AdamW(
            [
                {"params": [p for n, p in reference.model.named_parameters() if is_matrix(n)], "weight_decay": 0.05},
                {"params": [p for n, p in reference.model.named_parameters() if not is_matrix(n)], "weight_decay": 0.0},
            ],
            lr=1e-2 * schedule(0, steps=loop.steps, warmup=0.0),
        )
        torch.manual_seed(derived_seed(recipe.seed, "noise", 0))
        reference.model.train()
        loss = torch.nn.functional.cross_entropy(reference.model(x), y) + reference.kl()
        loss.backward()
        optimizer.step()
    loop._step()
    for (name, one), other in zip(loop.model.named_parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def is_matrix(name):
    return name.endswith(".weight") and "norm" not in name


def parts(recipe):
    data = corners()
    sample, validation = split(data.train, validation=recipe.validation, seed=0)
    mean, sd = standardise(sample)
    device = torch.device("cpu")
    batches = Batches(sample, batch=16, mean=mean, sd=sd, augment=(), seed=recipe.seed, device=device)
    network = recipe.network(size=data.size, channels=1, classes=4)
    steps = recipe.epochs * batches.per_epoch
    return build(network, isf.Ising(), recipe, examples=len(sample), steps=steps, device=device), batches, validation


def test_decay_is_on_the_matrices_alone():
    handle, _, _ = parts(RECIPE)
    groups = adamw(*decay_groups(handle), 1e-3, 0.07).param_groups
    names = {id(p): name for name, p in handle.model.named_parameters()}
    decayed = {names[id(p)] for p in groups[0]["params"]}
    assert decayed == {name for name in names.values() if is_matrix(name)}
    assert groups[0]["weight_decay"] == 0.07 and groups[1]["weight_decay"] == 0
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(names)


def test_clipping_bounds_the_gradient(monkeypatch):
    recipe = dataclasses.replace(RECIPE, clip=1e-3)
    handle, batches, validation = parts(recipe)
    loop = Loop(handle, batches, validation, recipe, lr=1e-3)
    seen = []

    def norms(*args, **kwargs):
        seen.append(torch.stack([p.grad.norm() for p in loop.model.parameters()]).norm().item())

    loop.optimizer.register_step_pre_hook(norms)
    loop._step()
    assert seen[0] <= 1e-3 * 1.001


def test_the_callers_generators_are_left_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(tmp_path, dataclasses.replace(RECIPE, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_the_result_depends_on_the_seed_and_on_nothing_else(tmp_path):
    def weights(seed, name, before):
        torch.manual_seed(before)
        run = isf.train(
            corners(), None, dataclasses.replace(RECIPE, epochs=1, seed=seed), out=tmp_path / name, progress=False,
            tensorboard=False,
        )  # fmt: skip
        return run.model.head.weight

    one = weights(0, "a", before=1)
    assert torch.equal(one, weights(0, "b", before=2))
    assert not torch.equal(one, weights(1, "c", before=1))


def test_a_nan_stops_with_the_step_the_seed_and_advice(tmp_path):
    with pytest.raises(isf.Diverged) as error:
        train(tmp_path, dataclasses.replace(RECIPE, lr=1e30, clip=None, lr_warmup=0.0))
    said = str(error.value)
    assert "NaN or infinite at step" in said and "batch seed" in said and "Try a lower learning rate" in said
    assert "\n" not in said


def test_after_a_nan_the_last_checkpoint_is_whole_and_finite(tmp_path):
    """The loss turns NaN in the second epoch; what was written at the end of the first stays."""
    recipe = dataclasses.replace(RECIPE, epochs=3)
    handle, batches, validation = parts(recipe)
    loop = Loop(handle, batches, validation, recipe, lr=1e-3, checkpoint=tmp_path / "c.safetensors")
    whole = Loop._step

    def poisoned(self):
        if self.progress.step == batches.per_epoch + 1:
            with torch.no_grad():
                self.model.head.weight[0, 0] = float("nan")
        whole(self)

    loop.__class__ = type("Poisoned", (Loop,), {"_step": poisoned})
    with pytest.raises(isf.Diverged, match=rf"at step {batches.per_epoch + 2} of .*the last checkpoint is whole"):
        loop.run()
    again, _, _ = parts(recipe)
    resumed = Loop(again, batches, validation, recipe, lr=1e-3, checkpoint=tmp_path / "c.safetensors")
    assert resumed.progress.step == batches.per_epoch
    assert all(bool(p.isfinite().all()) for p in resumed.model.parameters())


def test_early_stopping_ends_and_keeps_the_best(tmp_path):
    """With labels at random nothing can be learned, so the validation NLL soon only grows."""
    data = corners(train=64)
    generator = torch.Generator().manual_seed(0)
    noise = dataclasses.replace(data.train, y=data.train.y[torch.randperm(64, generator=generator)])
    data = dataclasses.replace(data, train=noise)
    recipe = dataclasses.replace(RECIPE, epochs=60, patience=3, lr=5e-3, stratified=False)
    run = train(tmp_path, recipe, method=isf.Plain(), data=data)
    done = run.about["finished"]
    rows = (tmp_path / "run" / "history.csv").read_text().splitlines()
    column = rows[0].split(",").index("validation_nll")
    losses = [float(row.split(",")[column]) for row in rows[1:]]
    best = min(range(len(losses)), key=losses.__getitem__) + 1
    assert done["stopped_early"] and done["epochs"] == len(losses) < 60
    assert done["kept_epoch"] == best == done["epochs"] - 3
    held_out = run.validation()
    with torch.no_grad():
        found = torch.nn.functional.cross_entropy(run.model(run.inputs(held_out.x)), held_out.y)
    assert float(found) == pytest.approx(losses[best - 1], rel=1e-5)


def test_validation_images_are_never_trained_on(tmp_path):
    _, batches, validation = parts(RECIPE)
    seen = {tuple(image.flatten().tolist()) for image in batches.x}
    assert not seen & {tuple(image.flatten().tolist()) for image in validation.x}


def test_without_validation_images_it_trains_too(tmp_path):
    run = train(tmp_path, dataclasses.replace(RECIPE, validation=0, epochs=2))
    assert "validation_nll" not in run.about["finished"]["figures"]
    with pytest.raises(ValueError, match="held out no validation images"):
        run.evaluate(samples=2, temperature=True)


def test_weights_that_the_last_update_ruined_are_not_written(tmp_path):
    """The loss of a single enormous step is finite; what comes out of it is not."""
    recipe = dataclasses.replace(RECIPE, epochs=1, batch=80, lr=1e30, clip=None, lr_warmup=0.0)
    with pytest.raises(isf.Diverged, match="the weights turned NaN or infinite at step 1 of 1"):
        train(tmp_path, recipe, method=isf.Plain())
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "isingformer.json").exists()


def test_patience_without_an_image_to_look_at_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"patience=2 needs validation images, and validation=0.1 of 4 "):
        train(tmp_path, dataclasses.replace(RECIPE, train_size=4, validation=0.1, patience=2))
    assert not (tmp_path / "run").exists()


def test_with_patience_the_figures_are_those_of_the_model_that_was_kept(tmp_path):
    run = train(tmp_path, dataclasses.replace(RECIPE, epochs=6, patience=6, lr=3e-2), method=isf.Plain())
    done = run.about["finished"]
    assert not done["stopped_early"] and done["figures"]["epoch"] == done["kept_epoch"]
    held_out = run.validation()
    with torch.no_grad():
        found = torch.nn.functional.cross_entropy(run.model(run.inputs(held_out.x)), held_out.y)
    assert float(found) == pytest.approx(done["figures"]["validation_nll"], rel=1e-4)


def test_the_number_of_threads_is_kept_and_restored(tmp_path):
    before = torch.get_num_threads()
    run = train(tmp_path, dataclasses.replace(RECIPE, epochs=1))
    assert run.about["plan"]["threads"] == 1 and torch.get_num_threads() == before


def test_no_best_is_kept_before_all_of_q_is_in_use(tmp_path):
    """Patience of one, and a network that gets worse from the start: what is kept is from after the ramp."""
    recipe = dataclasses.replace(RECIPE, epochs=20, patience=1, lr=1e-9)
    run = train(tmp_path, recipe, isf.Ising(delta=0.3, ramp=0.5))
    rule = isf.attached_to(run.model).rule
    assert run.about["finished"]["figures"]["step"] >= rule.settling > 0 and run.about["finished"]["stopped_early"]
    assert float(isf.attached_to(run.model).summary()["mean_q"]) > 0.25
