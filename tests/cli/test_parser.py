"""The parser: help, examples, and flags that all arrive."""

import argparse
import dataclasses
import re
import shlex

import pytest

import isingformer as isf
from isingformer.cli import COMMANDS, build_parser
from isingformer.cli.train import METHODS, RECIPE, make_method, make_recipe

EXAMPLES = [
    (name, line.split("   ")[0].strip())
    for name, module in COMMANDS.items()
    for line in module.EXAMPLES.splitlines()
    if line.strip().startswith("isingformer")
]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_shows_its_flags_and_an_example(command, name):
    found = command(name, "--help")
    assert found.code == 0 and found.err == ""
    assert found.out.startswith(f"usage: isingformer {name} ")
    assert f"\n  isingformer {name}" in found.out.partition("examples:")[2]
    (commands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    for action in commands.choices[name]._actions:
        assert action.help, f"{name} {action.dest} is not explained"
        for flag in action.option_strings:
            assert flag in found.out


def test_the_help_without_a_command_names_them_all(command):
    found = command("--help")
    assert found.code == 0
    for name in COMMANDS:
        assert re.search(rf"^    {name}\s+\S", found.out, re.MULTILINE)


def test_there_is_an_example_of_every_command():
    assert {name for name, _ in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_parses(name, line):
    _, *arguments = shlex.split(line.partition(" > ")[0])
    args = build_parser().parse_args(arguments)
    assert args.command == name
    if name == "train":
        make_method(args)
        make_recipe(args)


def test_the_version(command):
    found = command("--version")
    assert (found.code, found.out) == (0, f"isingformer {isf.__version__}\n")


def arguments(*given):
    return build_parser().parse_args(["train", *given])


def test_without_flags_the_recipe_and_the_method_are_the_defaults():
    assert make_recipe(arguments()) == isf.Recipe()
    assert make_method(arguments()) == isf.Ising()


CHANGED = {
    "epochs": 7, "batch": 9, "lr": 0.5, "weight_decay": 0.25, "lr_warmup": 0.5, "clip": 3.0, "augment": "flip",
    "precision": "float32", "patience": 4, "train_size": 11, "validation": 5, "likelihood": "binary", "width": 12,
    "depth": 3, "heads": 2, "mlp": 13, "patch": 7, "pool": "mean", "seed": 5, "sample_seed": 6,
}  # fmt: skip


@pytest.mark.parametrize("flag", RECIPE)
def test_every_flag_of_the_recipe_sets_its_own_setting_and_no_other(flag):
    name = flag.replace("-", "_")
    changed = dataclasses.replace(isf.Recipe(), **{name: CHANGED[name]})
    assert changed != isf.Recipe()
    assert make_recipe(arguments(f"--{flag}", str(CHANGED[name]))) == changed


def test_every_setting_of_the_recipe_has_a_flag():
    switches = {"stratified": "--random-sample", "deterministic": "--deterministic"}
    assert {field.name for field in dataclasses.fields(isf.Recipe)} == CHANGED.keys() | switches.keys()
    assert not make_recipe(arguments("--random-sample")).stratified
    assert make_recipe(arguments("--deterministic")).deterministic


def test_validation_is_a_number_of_images_or_a_share():
    assert make_recipe(arguments("--validation", "1")).validation == 1
    assert isinstance(make_recipe(arguments("--validation", "1")).validation, int)
    assert make_recipe(arguments("--validation", "0.25")).validation == 0.25
    assert make_recipe(arguments("--validation", "1e-1")).validation == 0.1


def test_clip_0_is_no_clipping():
    assert make_recipe(arguments("--clip", "0")).clip is None


@pytest.mark.parametrize(
    ("given", "method"),
    [
        (["--method", "ising", "--delta", "0.3"], isf.Ising(delta=0.3)),
        (["--method", "ising-paper", "--delta", "0.3"], isf.Ising.paper(0.3)),
        (["--method", "ising-paper-obd", "--delta", "0.3"], isf.Ising.paper_obd(0.3)),
        (["--method", "dropconnect", "--p", "0.3"], isf.DropConnect(p=0.3)),
        (["--method", "dropout", "--p", "0.3"], isf.Dropout(p=0.3)),
        (["--method", "plain"], isf.Plain()),
        (["--set", "coupling=2", "--set", "curvature=lm"], isf.Ising(coupling=2, curvature="lm")),
        (["--set", "two-way=True", "--set", "refresh=epoch"], isf.Ising(two_way=True, refresh="epoch")),
        (["--method", "ising-paper", "--set", "coupling=2"], dataclasses.replace(isf.Ising.paper(0.1), coupling=2)),
        (["--method", "plain", "--set", "weight_noise=0"], isf.Plain(weight_noise=0)),
        (["--set", "warmup=None"], isf.Ising()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_method_is_as_the_flags_say(given, method):
    assert make_method(arguments(*given)) == method


def test_every_method_can_be_made():
    for name in METHODS:
        make_method(arguments("--method", name))
