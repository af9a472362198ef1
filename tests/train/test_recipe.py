import json
import math

import numpy as np
import pytest
import torch

import isingformer as isf
from isingformer.train.recipe import default_patch, schedule


def test_the_network_for_the_papers_images_is_the_reference():
    for side in (28, 32):
        network = isf.Recipe().network(size=(side, side), channels=3, classes=10)
        assert network == {
            "image_size": side, "channels": 3, "patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 256,
            "classes": 10, "pool": "class",
        }  # fmt: skip
        isf.ViT(**network)


def test_small_images_get_a_small_network_and_single_settings_can_be_given():
    network = isf.Recipe(depth=3, patch=1, pool="mean").network(size=(8, 8), channels=1, classes=10)
    assert (network["width"], network["depth"], network["mlp"], network["patch"]) == (64, 3, 128, 1)
    assert network["pool"] == "mean"


@pytest.mark.parametrize(("side", "patch"), [(1, 1), (2, 2), (8, 2), (16, 2), (25, 5), (28, 4), (32, 4), (224, 28)])
def test_the_default_patch(side, patch):
    assert default_patch(side) == patch
    assert side % patch == 0 and side // patch <= 8


@pytest.mark.parametrize(("examples", "batch"), [(5, 5), (100, 16), (300, 16), (1293, 64), (6000, 128), (54000, 128)])
def test_the_default_batch_leaves_twenty_steps_an_epoch_where_it_can(examples, batch):
    assert isf.Recipe().batch_for(examples) == batch
    assert isf.Recipe(batch=32).batch_for(examples) == min(32, examples)


def test_a_binary_likelihood_has_one_logit_and_two_classes():
    recipe = isf.Recipe(likelihood="binary")
    assert recipe.network(size=(8, 8), channels=1, classes=2)["classes"] == 1
    with pytest.raises(ValueError, match=r"for two classes, the data have 3"):
        recipe.network(size=(8, 8), channels=1, classes=3)


def test_images_must_be_square():
    with pytest.raises(ValueError, match=r"images are 10 x 8; expected square ones; --resize N"):
        isf.Recipe().network(size=(8, 10), channels=1, classes=2)


@pytest.mark.parametrize(("side", "better"), [(7, 8), (17, 24), (31, 32), (62, 64)])
def test_images_that_no_patch_divides_well_are_refused_with_advice(side, better):
    with pytest.raises(ValueError, match=rf"--resize {better} \(resize={better}\) gives 8 a side"):
        isf.Recipe().network(size=(side, side), channels=1, classes=2)
    assert isf.Recipe(patch=side).network(size=(side, side), channels=1, classes=2)["patch"] == side


def test_the_schedule_rises_linearly_and_falls_as_half_a_cosine_to_zero():
    rates = [schedule(step, steps=100, warmup=0.1) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * (k + 1) for k in range(10)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)  # half way down
    assert rates[32] == pytest.approx((1 + math.cos(math.pi * 22 / 90)) / 2)
    assert rates[100] == pytest.approx(0.0, abs=1e-12)
    assert schedule(0, steps=1, warmup=0.0) == 1.0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 0, "a whole number from 1 on"),
        ("epochs", None, "a whole number from 1 on"),
        ("epochs", 1.5, "a whole number from 1 on"),
        ("batch", True, "a whole number from 1 on"),
        ("lr", 0.0, "a finite number above 0"),
        ("lr", float("nan"), "a finite number above 0"),
        ("lr", math.inf, "a finite number above 0"),
        ("weight_decay", -1, "a finite number, zero or more"),
        ("lr_warmup", 1.0, "a share of the steps"),
        ("clip", 0, "a finite number above 0, or None"),
        ("augment", "rotate", "'flip', 'crop', 'flip,crop' or ''"),
        ("precision", "float16", "'auto', 'float32' or 'bfloat16'"),
        ("validation", 1.0, "a number of images, or a share below 1"),
        ("validation", -1, "a number of images, or a share below 1"),
        ("likelihood", "gaussian", "'softmax' or 'binary'"),
        ("pool", "max", "'class' or 'mean'"),
        ("lr", "1e-3", "a finite number above 0"),
        ("weight_decay", None, "a finite number, zero or more"),
        ("augment", None, "'flip', 'crop', 'flip,crop' or ''"),
        ("validation", "0.1", "a number of images, or a share below 1"),
        ("validation", True, "a number of images, or a share below 1"),
        ("stratified", "no", "True or False"),
        ("seed", -1, "a whole number from 0 on"),
        ("seed", None, "a whole number from 0 on"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(name, value, expected):
    with pytest.raises(ValueError) as error:
        isf.Recipe(**{name: value})
    assert f"{name} must be {expected}" in str(error.value) and repr(value) in str(error.value)


def test_numbers_of_numpy_and_torch_become_pythons_own():
    recipe = isf.Recipe(
        lr=np.float32(0.5), epochs=np.int64(2), seed=np.int32(7), validation=np.float64(0.25), clip=torch.tensor(2.0),
        stratified=np.bool_(False), width=np.array(32),
    )  # fmt: skip
    assert recipe == isf.Recipe(lr=0.5, epochs=2, seed=7, validation=0.25, clip=2.0, stratified=False, width=32)
    assert json.loads(json.dumps(recipe.settings())) == recipe.settings()
    with pytest.raises(ValueError, match=r"epochs must be a whole number from 1 on, got 2.0"):
        isf.Recipe(epochs=np.float32(2))


def test_patience_needs_validation_images():
    with pytest.raises(ValueError, match=r"validation must be above 0 where patience is given, got 0"):
        isf.Recipe(patience=3, validation=0)
