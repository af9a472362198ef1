"""A trained run answers: evaluate, predict, temperature, data from elsewhere."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import isingformer as isf
from isingformer.data import split, standardise
from pictures import CORNERS, corners, pictures

RECIPE = isf.Recipe(
    epochs=36, batch=16, width=16, depth=2, heads=2, mlp=16, patch=4, validation=24, lr=1e-2, seed=3, sample_seed=5
)


def npz(file, data):
    np.savez(
        file, x_train=data.train.x.numpy(), y_train=data.train.y.numpy(), x_test=data.test.x.numpy(),
        y_test=data.test.y.numpy(), classes=np.array(data.classes),
    )  # fmt: skip
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on an .npz, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    npz(folder / "corners.npz", corners())
    isf.train(folder / "corners.npz", None, RECIPE, out=folder / "run", progress=False, tensorboard=False)
    return folder / "run"


def test_evaluation_is_the_scores_of_the_prediction(trained):
    run = isf.Run(trained)
    found = run.evaluate(samples=7, seed=2)
    p = run.predict(corners().test.x, samples=7, seed=2)
    right = p.classes == corners().test.y
    assert found.images == 40 and found.samples == 7 and found.on == "test"
    assert found.scores.accuracy == pytest.approx(float(right.float().mean()))
    nll = -p.probs.double().gather(1, corners().test.y[:, None]).log().mean()
    assert found.scores.nll == pytest.approx(float(nll), rel=1e-5)
    assert str(found).startswith("40 test images of corners, 7 passes\nexamples")


def test_inputs_are_standardised_by_the_training_sample_alone(trained):
    sample, _ = split(corners().train, validation=24, seed=5)
    mean, sd = standardise(sample)
    x = corners().test.x
    torch.testing.assert_close(isf.Run(trained).inputs(x), (x.float() - mean.view(1, 1, 1, 1)) / sd.view(1, 1, 1, 1))


def test_validation_images_are_those_held_out_in_training(trained):
    _, held_out = split(corners().train, validation=24, seed=5)
    run = isf.Run(trained)
    assert torch.equal(run.validation().x, held_out.x) and torch.equal(run.validation().y, held_out.y)
    assert run.evaluate(on="validation", samples=2).images == 24


def test_a_temperature_is_fitted_on_validation_images_and_lowers_their_nll(trained):
    run = isf.Run(trained)
    found = run.evaluate(samples=9, temperature=True)
    held_out = run.validation()
    p = run.predict(held_out.x, samples=9)
    assert found.temperature == pytest.approx(isf.fit_temperature(p, held_out.y))
    tempered = run.predict(corners().test.x, samples=9).tempered(found.temperature)
    nll = -tempered.probs.double().gather(1, corners().test.y[:, None]).log().mean()
    assert found.scores.nll == pytest.approx(float(nll), rel=1e-4)
    assert found.untempered == run.evaluate(samples=9).scores
    with pytest.raises(ValueError, match="fitted on the validation images; leave it or validation out"):
        run.evaluate(on="validation", temperature=True)


def test_the_networks_are_the_same_for_all_images_and_chunks(trained, monkeypatch):
    run = isf.Run(trained)
    x = corners().test.x
    whole = run.predict(x, samples=5)
    from isingformer.train import run as module

    monkeypatch.setattr(module, "CHUNK", 64 * 7)  # seven images at a time
    torch.testing.assert_close(run.predict(x, samples=5).samples, whole.samples)
    torch.testing.assert_close(run.predict(x[11:13], samples=5).samples, whole.samples[:, 11:13])
    assert not torch.equal(run.predict(x, samples=5, seed=1).samples, whole.samples)


def test_opening_and_asking_moves_no_ones_generator(trained):
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    isf.Run(trained).evaluate(samples=2)
    assert torch.equal(torch.rand(2), expected)


def test_images_that_look_unlike_the_training_images_are_told_apart(trained):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (60, 1, 8, 8), generator=generator).to(torch.uint8)
    strange = dataclasses.replace(corners(), name="noise", test=isf.Images(noise, torch.zeros(60, dtype=torch.int64)))
    found = isf.Run(trained).evaluate(samples=20, outside=strange).outside
    assert found.data == "noise" and found.images == 60
    assert found.auroc_entropy > 0.8


def test_image_files_are_read_as_the_training_images_were(trained, tmp_path):
    run, x = isf.Run(trained), corners().test.x[:3]
    files = []
    for i, image in enumerate(x):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(image[0].numpy()).save(files[-1])
    assert torch.equal(run.predict(files, samples=4).samples, run.predict(x, samples=4).samples)
    assert torch.equal(run.predict(files[1], samples=4).samples, run.predict(x[1:2], samples=4).samples)
    assert torch.equal(run.predict(str(files[1]), samples=4).samples, run.predict(x[1:2], samples=4).samples)
    Image.new("RGB", (20, 30)).save(tmp_path / "large.png")
    with pytest.raises(ValueError, match=r"large.png"):
        run.predict([tmp_path / "large.png"])
    assert run.predict([tmp_path / "large.png"], resize=True, samples=2).probs.shape == (1, 4)
    with pytest.raises(ValueError, match="there are no images"):
        run.predict([])


def test_wrong_pixels_are_named(trained):
    run = isf.Run(trained)
    with pytest.raises(ValueError, match=r"images are uint8 \[2, 1, 9, 9\]; .* reads uint8 \[N, 1, 8, 8\]; --resize"):
        run.predict(torch.zeros(2, 1, 9, 9, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"images are float32 .*; give pixels as the training data had them"):
        run.predict(torch.zeros(2, 1, 8, 8))


def test_tensors_are_resized_as_data_are(trained):
    run, large = isf.Run(trained), corners(side=16, channels=3)
    found = run.predict(large.test.x, samples=3, resize=True)
    assert found.probs.shape == (40, 4)
    torch.testing.assert_close(run.predict(corners().test.x, samples=3, resize=True).probs,
                               run.predict(corners().test.x, samples=3).probs)  # fmt: skip
    outside = run.evaluate(samples=3, outside=large, resize=True).outside
    assert outside.mean_entropy == pytest.approx(float(found.entropy.mean()), rel=1e-5)


def test_resizing_is_advised_where_it_helps_alone(tmp_path):
    """Between numbers of one's own and pixels of a file it cannot."""
    data = corners()
    own = isf.Dataset(
        "numbers", *(isf.Images(part.x.float() / 51 - 2.5, part.y) for part in (data.train, data.test)), data.classes
    )
    recipe = dataclasses.replace(RECIPE, epochs=1)
    run = isf.train(own, None, recipe, out=tmp_path / "a", progress=False, tensorboard=False)
    for resize in (False, True):
        for ask in (lambda r: run.predict(data.test.x, resize=r), lambda r: run.evaluate(outside=data, resize=r)):
            with pytest.raises(
                ValueError, match=r"images are uint8 .*; give pixels as .* had them \(--resize converts no units\)"
            ):
                ask(resize)
    small = own.test.x[:, :, ::2, ::2].contiguous()
    with pytest.raises(ValueError, match=r"images are float32 \[40, 1, 4, 4\]; .*; --resize \(resize=True\) converts"):
        run.predict(small)
    assert run.predict(small, samples=2, resize=True).probs.shape == (40, 4)


def test_a_sample_larger_than_one_of_the_sets_names_it_before_the_work(trained, monkeypatch):
    run, few = isf.Run(trained), dataclasses.replace(corners(test=6), name="few")
    monkeypatch.setattr(isf.Run, "predict", lambda *args, **more: pytest.fail("worked in vain"))
    with pytest.raises(ValueError, match=r"test_size must be 1 to 6, .* test images of few, got 20"):
        run.evaluate(outside=few, test_size=20)
    with pytest.raises(ValueError, match=r"test_size must be 1 to 40, .* test images of corners, got 60"):
        run.evaluate(outside=few, test_size=60)


def test_an_array_is_refused_with_advice(trained):
    for images in (corners().test.x.numpy(), [corners().test.x[0]]):
        with pytest.raises(
            ValueError, match=r"expected a tensor \[N, C, H, W\] or image files, got .*torch.from_numpy"
        ):
            isf.Run(trained).predict(images)


@pytest.mark.parametrize(
    ("name", "value"), [("checkpoint_every", 2.5), ("checkpoint_every", 0), ("q_frames", 2.5), ("q_frames", 1)]
)
def test_numbers_of_steps_and_pictures_are_checked_before_the_folder_is_made(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"{name} must be .*, got {value}$"):
        isf.train(corners(), None, RECIPE, out=tmp_path / "a", progress=False, **{name: value})
    assert not (tmp_path / "a").exists()


def test_data_with_other_classes_are_refused(trained):
    run, data = isf.Run(trained), corners()
    with pytest.raises(ValueError, match=r"other classes .*such as 'cat'"):
        run.evaluate(dataclasses.replace(data, classes=("cat", "dog", "cow", "pig")))
    with pytest.raises(ValueError, match=r"other classes .*in another order or number"):
        run.evaluate(dataclasses.replace(data, classes=CORNERS[::-1]))
    assert run.evaluate(dataclasses.replace(data, classes=tuple("0123")), samples=2).images == 40  # unnamed


def test_data_that_moved_are_found_again_and_data_that_changed_are_refused(trained, tmp_path):
    shutil.copytree(trained.parent, tmp_path / "moved")
    (trained.parent / "corners.npz").rename(tmp_path / "elsewhere.npz")
    try:
        run = isf.Run(tmp_path / "moved" / "run")
        with pytest.raises(ValueError, match=r"corners.npz' does not exist"):
            run.evaluate(samples=2)
        assert run.evaluate(samples=2, data_dir=tmp_path / "elsewhere.npz").images == 40
        changed = npz(tmp_path / "changed.npz", dataclasses.replace(corners(), test=pictures(40, seed=9)))
        with pytest.raises(ValueError, match=r"have changed since"):
            isf.Run(tmp_path / "moved" / "run").evaluate(samples=2, data_dir=changed)
    finally:
        (tmp_path / "elsewhere.npz").rename(trained.parent / "corners.npz")


@pytest.fixture
def moved(tmp_path):
    """A run on an .npz of which there is a copy, both for the test to change."""
    npz(tmp_path / "a.npz", corners())
    recipe = dataclasses.replace(RECIPE, epochs=1)
    isf.train(tmp_path / "a.npz", None, recipe, out=tmp_path / "run", progress=False, tensorboard=False)
    shutil.copy(tmp_path / "a.npz", tmp_path / "b.npz")
    return tmp_path / "run", tmp_path / "a.npz", tmp_path / "b.npz"


@pytest.mark.parametrize("harm", ["changed", "cut short", "emptied"])
def test_the_place_that_is_given_counts_where_the_data_are_not_what_they_were(moved, harm):
    run, old, new = moved
    if harm == "changed":
        npz(old, dataclasses.replace(corners(), test=pictures(40, seed=9)))
    elif harm == "cut short":
        old.write_bytes(old.read_bytes()[:200])
    else:
        old.unlink()
        old.mkdir()
    opened = isf.Run(run)
    with pytest.raises(ValueError):
        opened.data()
    assert opened.data(new).fingerprint() == corners().fingerprint()
    assert opened.evaluate(samples=2).images == 40  # and it is kept


def test_data_that_moved_or_changed_say_that_data_dir_is_the_remedy(moved, tmp_path):
    run, old, new = moved
    changed = npz(old, dataclasses.replace(corners(), test=pictures(40, seed=9)))
    with pytest.raises(ValueError, match=rf"'a' in {changed} have changed since {run} .* with --data-dir"):
        isf.Run(run).data()
    shutil.copy(old, new)
    with pytest.raises(ValueError, match=rf"'a' in {new} have changed since {run}"):
        isf.Run(run).data(new)
    with pytest.raises(ValueError, match=rf"{run} was trained on are not in {old} as they were.*{tmp_path}/no"):
        isf.Run(run).data(tmp_path / "no")
    old.unlink()
    with pytest.raises(ValueError, match=rf"'{old}' does not exist, and {run} was trained on it; .* with --data-dir"):
        isf.Run(run).data()


def test_numbers_of_ones_own_train_and_files_of_pixels_are_then_refused(tmp_path):
    data = corners()
    x = [isf.Images(part.x.float() / 51 - 2.5, part.y) for part in (data.train, data.test)]
    own = isf.Dataset("numbers", *x, data.classes)
    run = isf.train(own, None, RECIPE, out=tmp_path / "a", progress=False, tensorboard=False)
    assert run.evaluate(samples=3).scores.accuracy > 0.9
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"was trained on float32 numbers, .*; from Python, give a tensor"):
        run.predict([tmp_path / "a.png"])
    with pytest.raises(ValueError, match=r"was trained on data made in Python, 'numbers'"):
        isf.Run(tmp_path / "a").evaluate()


@pytest.mark.parametrize("channels", [2, 4])
def test_a_run_with_channels_that_no_image_file_has_says_so_and_takes_tensors(tmp_path, channels):
    data = corners()
    parts = [isf.Images(part.x.expand(-1, channels, -1, -1), part.y) for part in (data.train, data.test)]
    own = isf.Dataset("layers", *parts, data.classes)
    run = isf.train(own, None, RECIPE, out=tmp_path / "a", progress=False, tensorboard=False)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    said = rf"{tmp_path / 'a'} reads images of {channels} channels, .* 1 \(grey\) or 3 \(RGB\); from Python, give a"
    for resize in (False, True):
        with pytest.raises(ValueError, match=said):
            run.predict([tmp_path / "a.png"], resize=resize)
    assert run.predict(parts[1].x[:3], samples=2).probs.shape == (3, len(data.classes))


def test_plain_passes_are_all_the_same(tmp_path):
    run = isf.train(corners(), isf.Plain(), RECIPE, out=tmp_path / "a", progress=False, tensorboard=False)
    p = run.predict(corners().test.x, samples=4)
    assert torch.equal(p.samples[0], p.samples[3]) and float(p.epistemic.max()) < 1e-6
    x = run.inputs(corners().test.x)
    torch.testing.assert_close(p.probs, run.model(x).softmax(-1).detach())
