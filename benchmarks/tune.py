"""Settings compared on validation images, which no training sample has: what is chosen here never saw a test image.

    python benchmarks/tune.py benchmarks/trials/small.toml --out results/trials-small.json
    python benchmarks/tune.py benchmarks/trials/small.toml --device cuda --out results/trials-small.json

The file names cells (data, size, epochs, and where they differ from the others seeds, validation images and settings
of the recipe) and what is tried on each of them (a method, its rates and settings). The rates and seeds of a method
train as one stack. A row is one method at one rate in one cell: mean over the seeds. Passes are drawn by ``mask``, one
network a pass, or as `predicted` says: ``predicted = ["mask", "local"]`` makes a row of each, of the same trainings.
Rows that the file named by --out holds, with the same settings throughout, are not made again.
"""

import argparse
import itertools
import json
import statistics
import time
import tomllib
from pathlib import Path

import torch
from common import report, where

import isingformer as isf
from isingformer.data import Dataset, load_data, split_rows
from isingformer.methods.named import named_method
from isingformer.metrics import scores
from isingformer.predict import predict
from isingformer.study.stack import Stack
from isingformer.train.batches import derived_seed

SPLIT = 12345
"""The seed of the split into validation images and those that samples are drawn from."""
AT_ONCE = {"cuda": 20480, "cpu": 1000}
"""Images in a pass of a prediction, over all replicas."""


def held_out(name, validation, data_dir):
    """The data with images of the training file in place of the test images."""
    data = load_data(name, data_dir=data_dir)
    rest = len(data.train) - validation
    own, other = split_rows(data.train.y, train=validation, validation=rest, stratified=True, seed=SPLIT)
    return Dataset(data.name, data.train.take(other), data.train.take(own), data.classes)


def probabilities(stack, images, samples, sampling):
    """``[R, N, C]``, in eager mode: to compile takes longer than a few passes do."""
    x = stack._images(images)
    chunk = max(1, AT_ONCE[stack.device.type] // len(stack))
    seeds = [derived_seed(seed, "predict") for seed in stack.seeds]
    with stack.autocast():
        found = predict(stack.model, x, samples=samples, batch_size=chunk, seeds=seeds, sampling=sampling)
    return found.probs.float().cpu()


def settings_of(how, cell, tried, rate):
    """All that decides a row, as text."""
    common = {name: value for name, value in how.items() if name not in ("cells", "tried")}
    return json.dumps([common, cell, {**tried, "rates": None}, rate], sort_keys=True)


def rows_of(data, cell, tried, how, device):
    """One row for each rate and each way to predict."""
    seeds = cell.get("seeds", how["seeds"])
    rates = [rate for rate in tried["rates"] for _ in seeds]
    method = named_method(tried["method"], tuple(rates) if len(set(rates)) > 1 else rates[0], tried.get("settings"))
    recipe = {**how.get("recipe", {}), **cell.get("recipe", {})}
    recipes = [
        isf.Recipe(epochs=cell["epochs"], train_size=cell["size"], validation=0, seed=seed, **recipe)
        for _ in tried["rates"]
        for seed in seeds
    ]
    started = time.perf_counter()
    stack = Stack(data, method, recipes, device=device)
    stack.train()
    ways = tried.get("predicted", ["mask"])
    every = {way: probabilities(stack, data.test, how["samples"], way) for way in ways}
    found = {way: [scores(own, data.test.y) for own in probs] for way, probs in every.items()}
    drops = [q.flatten(1) for q in stack.method.drop_probability().values()]
    q = torch.cat(drops, 1) if drops else torch.zeros(len(recipes), 1)
    seconds = time.perf_counter() - started
    for (number, rate), way in itertools.product(enumerate(tried["rates"]), ways):
        own = range(number * len(seeds), (number + 1) * len(seeds))

        def mean(of, own=own):
            return statistics.fmean(float(of(replica)) for replica in own)

        def score(name, found=found[way], mean=mean):
            return mean(lambda replica: getattr(found[replica], name))

        yield {
            "data": cell["data"], "size": cell["size"],
            "tried": tried["name"] if way == "mask" else f"{tried['name']}, predicted by {way}", "rate": rate,
            "nll": score("nll"), "accuracy": score("accuracy"), "ece": score("ece"),
            "confidence": mean(lambda r, of=every[way]: of[r].amax(-1).mean()),
            "mean q": mean(lambda r: q[r].mean()),
            "dropped": mean(lambda r: (q[r] > 0.5).float().mean()), "training nll": mean(lambda r: stack.nll[r]),
            "seconds": seconds,
        }, settings_of(how, cell, tried, rate)  # fmt: skip


def chosen(cells, datasets, sizes):
    """The cells on these datasets and of these sizes; None: on all, of all."""
    found = [
        cell
        for cell in cells
        if cell["data"] in (datasets or [cell["data"]]) and cell["size"] in (sizes or [cell["size"]])
    ]
    if not found:
        there = ", ".join(f"{cell['data']} {cell['size']}" for cell in cells)
        raise SystemExit(f"tune.py: no cell has these --datasets and --sizes; the file has {there}")
    return found


def check_still_tried(settings, how, out):
    """Rows of settings that the file of trials no longer has would be read as if it had."""
    there = {
        settings_of(how, cell, tried, rate)
        for cell in how["cells"]
        for tried in how["tried"]
        for rate in tried.get("rates", [None])
    }
    if gone := sum(one not in there for one in settings):
        raise SystemExit(
            f"tune.py: {gone} of {len(settings)} rows in {out} have settings that the file of trials no longer has; "
            "give another --out, or take those settings back in"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path, help="a TOML file")
    parser.add_argument("--datasets", nargs="+", help="cells on these alone; the others can follow")
    parser.add_argument("--sizes", nargs="+", type=int, help="likewise")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    how = tomllib.loads(args.trials.read_text(encoding="utf-8"))
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    out, rows, settings, made = Path(args.out), [], [], []
    if out.is_file():
        before = json.loads(out.read_text(encoding="utf-8"))
        rows, settings, made = before["rows"], before["settings"], before["made"]
        check_still_tried(settings, how, out)
    here = {key: value for key, value in where().items() if key in ("device", "torch", "commit", "date")}
    for cell in chosen(how["cells"], args.datasets, args.sizes):
        data = None
        for tried in how["tried"]:
            rates = tried.get("rates", [None])
            left = [rate for rate in rates if settings_of(how, cell, tried, rate) not in settings]
            if not left:
                continue
            data = data or held_out(cell["data"], cell.get("validation", how["validation"]), args.data_dir)
            for row, decided in rows_of(data, cell, {**tried, "rates": left}, how, device):
                rows, settings, made = [*rows, row], [*settings, decided], [*made, here]
            report(f"trials of {args.trials.name} on validation images", rows, out, settings=settings, made=made)


if __name__ == "__main__":
    main()
