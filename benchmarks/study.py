"""How fast the trainings of a study run: stacked, one after the other, and one after the other in eager mode.

    python benchmarks/study.py --device cuda --out results/study-h200.json
    python benchmarks/study.py --plan quick --rounds 1 --out results/study-cpu.json

For every method of the plan, every shape of image and every size of batch (of the largest alone where not stacked), in
one run: trainings' steps a second (a step of twenty stacked replicas counts twenty), the seconds before the first fast
step (compiling, capturing), memory, and the seconds that T passes over the test images take. Stacked are the replicas
of a cell at all its rates, as the study stacks them. From these follows what the whole plan takes on this device: steps
times seconds a step, and every program compiled once. Images are random pixels of each dataset's shape, of which speed
does not depend. A run that was broken off goes on: rows that the file holds stay, but for those of the largest shape,
whose three ways are compared in one run.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import time
from pathlib import Path

import torch
from common import report, where

from isingformer.data import Dataset, Images
from isingformer.study import read_plan
from isingformer.study.stack import Stack

SHAPES = {
    "mnist": (1, 28, 10),
    "fashion-mnist": (1, 28, 10),
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "digits": (1, 8, 10),
}
WAYS = {"stacked": (None, True), "looped": (1, True), "eager": (1, False)}
"""Replicas (None: all of a cell, at all its rates) and whether compiled and captured."""
CYCLE = 20
"""Steps that hold whole refresh cycles, with and without measuring."""
WARM = 2 * CYCLE
"""Steps before the timed ones, in which all that is recorded once is recorded: sweeps take three refreshes."""


PASSES = 10
"""Over the test images, from which the time of T follows."""


class Enough(Exception):
    """Ends a training early."""


def images(number, channels, side, classes):
    x = torch.randint(0, 256, (number, channels, side, side), dtype=torch.uint8)
    return Images(x, torch.arange(number) % classes)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def at_all_rates(plan, cell):
    """The trainings that the study stacks with the cell: its replicas, and those of the cells of other rates."""
    same = (cell.dataset, cell.size, cell.method)
    cells = [other for other in plan.cells() if (other.dataset, other.size, other.method) == same]
    return [(other, replica) for other in cells for replica in range(plan.replicas)]


def measured(plan, cell, way, device, rounds):
    """One row: a training of the cell, stopped when it has been timed."""
    channels, side, classes = SHAPES[cell.dataset]
    replicas, fast = WAYS[way]
    trainings = at_all_rates(plan, cell)[:replicas]
    replicas = len(trainings)
    test = plan.dataset(cell.dataset).test_images or 500
    data = Dataset(cell.dataset, images(cell.size, *SHAPES[cell.dataset]), images(test, *SHAPES[cell.dataset]),
                   tuple(map(str, range(classes))))  # fmt: skip
    recipes = [plan.recipe_for(*training) for training in trainings]
    gc.collect()  # the training before
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    method = plan.method_for(*(other for other, _ in trainings))
    if hasattr(method, "warmup"):  # during which nothing is swept, so that it would look too fast
        method = dataclasses.replace(method, warmup=0)
    stack = Stack(data, method, recipes, device=device, fast=fast)
    marks = {}

    def told(step):
        if step in (WARM, WARM + rounds * CYCLE):
            wait(device)
            marks[step] = time.perf_counter()
        if step == WARM + rounds * CYCLE:
            raise Enough

    with contextlib.suppress(Enough):
        stack.train(told)
    ready, end = marks.values()
    row = {
        "method": cell.method,
        "way": way,
        "image": f"{channels}x{side}x{side}",
        "batch": stack.batch,
        "replicas": replicas,
        "steps_a_second": replicas * rounds * CYCLE / (end - ready),
        "ms": 1e3 * (end - ready) / (rounds * CYCLE),
        "ready_s": ready - started,
        "gib": torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None,
    }
    if way == "stacked":
        stack.predict(data.test, 2)
        wait(device)
        started = time.perf_counter()
        stack.predict(data.test, PASSES)
        wait(device)
        row["scoring_s"] = (time.perf_counter() - started) * plan.samples / PASSES
    return row


def whole_plan(plan, rows):
    """Minutes for all trainings of the plan, from the stacked rows: (training, compiling, scoring)."""
    found = {(row["method"], row["image"], row["batch"]): row for row in rows if row["way"] == "stacked"}
    training = scoring = 0.0
    used = {}
    stacks = {(cell.dataset, cell.size, cell.method): cell for cell in plan.cells()}
    for cell in stacks.values():
        recipe = plan.recipe_for(cell, 0)
        channels, side, _ = SHAPES[cell.dataset]
        batch = recipe.batch_for(cell.size)
        row = found[cell.method, f"{channels}x{side}x{side}", batch]
        training += recipe.epochs * (cell.size // batch) * row["ms"] / 1e3
        scoring += row["scoring_s"]
        used[cell.method, row["image"], batch] = max(0.0, row["ready_s"] - WARM * row["ms"] / 1e3)
    return {
        "trainings": plan.trainings,
        "training_minutes": training / 60,
        "compiling_minutes": sum(used.values()) / 60,
        "scoring_minutes": scoring / 60,
    }


def measured_before(out, plan, largest):
    """The rows of a run that was broken off, but for those of the largest shape, and where it ran."""
    if not out or not Path(out).exists():
        return [], {}
    found = json.loads(Path(out).read_text())
    here = where()
    alike = all(found[key] == here[key] for key in ("device", "torch")) and found["plan"] == plan.name
    if not alike or "trainings" in found:  # of something else, or complete
        return [], {}
    rows = [row for row in found["rows"] if (row["image"], row["batch"]) != largest]
    last = {key: found[key] for key in ("commit", "date", "command")}
    return rows, {"before": [*found.get("before", []), last]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="paper", help="quick, paper, or a TOML file (default: paper)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help=f"cycles of {CYCLE} steps to time (default: 5)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--methods", nargs="+", help="instead of the plan's")
    parser.add_argument("--out")
    args = parser.parse_args()
    plan, device = read_plan(args.plan), torch.device(args.device)
    if args.methods:
        plan = dataclasses.replace(plan, methods=tuple(args.methods), settings={})
    if device.type == "cpu":
        torch.set_num_threads(1)
    cells = {}
    for cell in plan.cells():
        batch = plan.recipe_for(cell, 0).batch_for(cell.size)
        channels, side, _ = SHAPES[cell.dataset]
        cells[cell.method, f"{channels}x{side}x{side}", batch] = cell  # the largest of its kind stands for all
    largest = next(reversed(cells))[1:]
    rows, before = measured_before(args.out, plan, largest)
    done = {(row["method"], row["image"], row["batch"]) for row in rows}
    title = f"trainings of the plan {plan.name!r}"
    for way in args.ways:
        for kind, cell in cells.items():
            if kind[1:] == largest or (way == "stacked" and kind not in done):
                rows.append({"scoring_s": None, **measured(plan, cell, way, device, args.rounds)})
                report(title, rows, args.out, plan=plan.name, **before)
    if "stacked" in args.ways:
        more = whole_plan(plan, rows)
        report(title, rows, args.out, plan=plan.name, **before, **more)
        for name, value in more.items():
            print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
