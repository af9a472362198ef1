"""Train a vision transformer on images, into a folder; the same command after an interruption goes on.

Every flag of the recipe is left out of the call where it is not given, so that the defaults stand in one place.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..methods import METHODS, Method, called, named_method
from ..train import Recipe, Run, train
from ..train.folder import RunFolder
from ..train.processes import is_first
from ..train.q_history import FRAMES
from .common import DATA_HELP, add_data_arguments, count, folder_name, print_json, read_data

USAGE = "[--data NAME|PATH] [--method NAME] [--out FOLDER] [options]"
EXAMPLES = """examples:
  isingformer train --data digits --method ising --delta 0.1 --epochs 30 --out runs/a
  isingformer train --data fashion-mnist --train-size 6000 --seed 1 --out runs/fashion-1
  isingformer train --data photos/ --resize 64 --augment flip,crop --patience 5 --out runs/photos
  isingformer train --method ising --set coupling=2 --set curvature=mc-fisher
  torchrun --nproc-per-node 4 -m isingformer train --data cifar10 --out runs/four-gpus
"""


def number(text: str) -> int | float:
    """A whole number, or a share."""
    return float(text) if "." in text or "e" in text.lower() else int(text)


RECIPE: dict[str, tuple[Callable[[str], Any], str]] = {
    "epochs": (int, "passes over the training images (30)"),
    "batch": (int, "images a step (128; less where an epoch would have fewer than 20 steps)"),
    "lr": (float, "peak learning rate of AdamW (1e-3; 2e-3 for the small network)"),
    "weight-decay": (float, "of AdamW, on matrices (0.05)"),
    "lr-warmup": (float, "share of the steps over which the learning rate rises (0.05)"),
    "clip": (float, "largest norm of the gradient, 0 for none (1)"),
    "augment": (str, "flip, crop or flip,crop (none)"),
    "precision": (str, "auto, float32 or bfloat16 (auto: bfloat16 on a GPU that has it)"),
    "patience": (int, "stop after so many epochs without a better validation NLL and keep the best (off)"),
    "train-size": (int, "train on a sample of so many images (all)"),
    "validation": (number, "images held out, a number or a share of the training images (0.1)"),
    "likelihood": (str, "softmax, or binary: two classes by a single logit (softmax)"),
    "width": (int, "of the network (128; 64 for images under 16 pixels)"),
    "depth": (int, "blocks (6; 4 for images under 16 pixels)"),
    "heads": (int, "attention heads (4)"),
    "mlp": (int, "hidden width of the MLPs (256; 128 for images under 16 pixels)"),
    "patch": (int, "side of a patch (the smallest, from 2 on, that gives at most 8 x 8)"),
    "pool": (str, "what the head reads: class, the class token, or mean (class)"),
    "seed": (int, "of weights, order, noise and sample (0)"),
    "sample-seed": (int, "of the training and validation sample alone (the seed)"),
}
"""Flags that go to `Recipe` as they are."""
METAVARS = {int: "N", float: "X", str: "NAME", number: "N|X"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `train`."""
    parser.add_argument("--data", default="digits", metavar="NAME|PATH", help=f"{DATA_HELP} (digits)")
    add_data_arguments(parser)
    parser.add_argument("--resize", type=count, metavar="N", help="scale and crop all images to N x N")
    parser.add_argument("--out", type=folder_name, metavar="FOLDER", help="the run's folder (runs/DATA-METHOD-SEED)")
    how = parser.add_argument_group("method")
    how.add_argument("--method", default="ising", choices=METHODS, metavar="NAME", help=f"{', '.join(METHODS)} (ising)")
    how.add_argument("--delta", type=float, metavar="X", help="base drop rate of the ising methods (0.1)")
    how.add_argument("--p", type=float, metavar="X", help="drop rate of dropconnect and dropout (0.1)")
    how.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                     help="any other setting of the method, such as coupling=2; may be repeated")  # fmt: skip
    recipe = parser.add_argument_group("recipe")
    for name, (kind, about) in RECIPE.items():
        recipe.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS, metavar=METAVARS[kind], help=about)
    recipe.add_argument("--random-sample", dest="stratified", action="store_false", default=argparse.SUPPRESS,
                        help="draw the sample at random instead of with the classes in proportion")  # fmt: skip
    recipe.add_argument("--deterministic", action="store_true", default=argparse.SUPPRESS,
                        help="make a GPU repeat itself bit by bit")  # fmt: skip
    running = parser.add_argument_group("running")
    running.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    running.add_argument(
        "--checkpoint-every", type=count, metavar="STEPS", help="steps between checkpoints (once an epoch)"
    )
    running.add_argument("--q-frames", type=int, default=FRAMES, metavar="N",
                         help=f"pictures of q to keep from the training, 0 for none ({FRAMES})")  # fmt: skip
    running.add_argument("--overwrite", action="store_true", help="begin anew, whatever training the folder holds")
    running.add_argument("--no-tensorboard", action="store_true", help="write no TensorBoard events")
    running.add_argument("--quiet", action="store_true", help="no progress bar")
    running.add_argument("--json", action="store_true", help="print the run as JSON")


def run(args: argparse.Namespace) -> int:
    """Train. Of the processes that torchrun has started only the first one shows and prints anything."""
    args.quiet = args.quiet or not is_first()
    method, recipe = make_method(args), make_recipe(args)
    dataset = read_data(args.data, args, resize=args.resize)
    out = args.out or f"runs/{dataset.name}-{args.method}-{recipe.seed}"
    already = was_finished(out) and not args.overwrite
    with until_signalled() as received:
        trained = train(
            dataset, method, recipe, out=out, device=args.device, checkpoint_every=args.checkpoint_every,
            overwrite=args.overwrite, q_frames=args.q_frames, progress=not args.quiet,
            tensorboard=False if args.no_tensorboard else None,
            command=shlex.join(["isingformer", *args.given]), stop=lambda: bool(received),
        )  # fmt: skip
    stopped_by = received[0] if received else signal.SIGTERM  # another process may have received it
    if not is_first():
        return 0 if trained.finished else 128 + stopped_by
    if not trained.finished:
        again = "the same command without --overwrite" if args.overwrite else "the same command again"
        print(f"stopped; {trained.folder} holds a checkpoint: give {again} to go on", file=sys.stderr)
        return 128 + stopped_by
    if args.json:
        print_json({"run": str(trained.folder), **trained.about})
    else:
        print(("already " if already else "") + summary(trained))
    return 0


def was_finished(out: str) -> bool:
    """Whether a folder holds a finished training."""
    try:
        return RunFolder(out).read()["finished"] is not None
    except (OSError, ValueError):
        return False


def make_method(args: argparse.Namespace) -> Method:
    """The method that the arguments describe."""
    _, rate = METHODS[args.method]
    for flag in ("delta", "p"):
        if getattr(args, flag) is not None and flag != rate:
            fitting = [name for name, (_, its) in METHODS.items() if its == flag]
            raise ValueError(f"--{flag} is for {', '.join(fitting)}; the method is {args.method}")
    settings = dict(parsed(setting) for setting in args.set)
    return named_method(args.method, getattr(args, rate) if rate else None, settings)


def parsed(setting: str) -> tuple[str, Any]:
    """NAME=VALUE as a name and a number, True, False, None or word."""
    name, found, value = setting.partition("=")
    if not found or not name:
        raise ValueError(f"--set needs NAME=VALUE, got {setting!r}")
    try:
        return name.replace("-", "_"), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name.replace("-", "_"), value


def make_recipe(args: argparse.Namespace) -> Recipe:
    """The recipe that the arguments describe; what is not given is left to its defaults."""
    names = {name.replace("-", "_") for name in RECIPE} | {"stratified", "deterministic"}
    given = {name: value for name, value in vars(args).items() if name in names}
    if given.get("clip") == 0:
        given["clip"] = None
    return Recipe(**given)


@contextlib.contextmanager
def until_signalled() -> Iterator[list[int]]:
    """Inside, the first Ctrl-C or SIGTERM is noted in the list, so that a checkpoint can be written; a second acts."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        if sys.stderr is not None:  # not print(): the signal may have come while something was being printed
            os.write(2, b"\nstopping after this step ...\n" if os.isatty(2) else b"stopping after this step ...\n")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary(run: Run) -> str:
    """A trained run in three lines."""
    done = run.about["finished"]
    last = done.get("figures", {})  # which the first runs called otherwise
    text = f"trained {called(run.about['method'])} on {run.about['data']['train']} images of "
    epochs = "1 epoch" if done["epochs"] == 1 else f"{done['epochs']} epochs"
    text += f"{run.about['data']['name']}: {epochs} in {done['seconds']:.0f} s"
    text += ", stopped early" if done["stopped_early"] else ""
    text += f", kept epoch {done['kept_epoch']}\n" if done["kept_epoch"] != done["epochs"] else "\n"
    if last:
        text += f"mean q {last['mean_q']:.3f}, {last['dropped']:.1%} of the weights more likely dropped than kept"
    if "validation_nll" in last:
        text += f"; validation accuracy {last['validation_accuracy']:.3f}, NLL {last['validation_nll']:.3f}"
    return f"{text.rstrip()}\nnext: isingformer evaluate {shlex.quote(str(run.folder))}"
