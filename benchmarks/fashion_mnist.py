"""Fashion-MNIST with 6,000 training images: the methods side by side, settings chosen on validation images.

    python benchmarks/fashion_mnist.py --out results/fashion-mnist.json [--jobs 6] [--seeds 3]

Every setting is trained with every seed, as `isingformer train` does it, and scored on 5,000 validation images. Of each
method the setting with the lowest mean validation NLL is then scored on 5,000 test images; the others never see them.
Trainings run in several processes and are kept in --runs, so that a second call goes on. About nine minutes on an H200.
"""

import argparse
import multiprocessing
import statistics
from pathlib import Path

from common import report

import isingformer as isf

SETTINGS = {
    "plain": [isf.Plain()],
    "dropout": [isf.Dropout(p=0.1)],
    "dropconnect": [isf.DropConnect(p=0.1)],
    "ising": [isf.Ising(delta=d) for d in (0.1, 0.2, 0.3)]
    + [isf.Ising(delta=d, curvature="mc-fisher") for d in (0.2, 0.3)],
}
FIGURES = ("accuracy", "nll", "ece", "brier", "error_auroc")


def label(method):
    """The settings that differ from the method's defaults, and its rate."""
    default = type(method)().settings()
    changed = {k: v for k, v in method.settings().items() if v != default[k] or k in ("p", "delta")}
    return " ".join([method.name, *(f"{k}={v}" for k, v in changed.items())])


def opened(method, seed, args):
    """The run of a setting and a seed, trained where it is not yet."""
    recipe = isf.Recipe(
        epochs=args.epochs, train_size=args.train_size, validation=args.validation, seed=seed, batch=args.batch
    )
    out = Path(args.runs) / f"{label(method)} seed={seed}".replace(" ", "_")
    data = isf.load_data("fashion-mnist", data_dir=args.data_dir, download=False)
    return isf.train(data, method, recipe, out=out, progress=False, tensorboard=False)


def validate(job):
    method, seed, args = job
    run = opened(method, seed, args)
    found = run.evaluate(on="validation", samples=args.samples).scores.as_dict()
    last = run.about["finished"]["last"]
    row = {name: found[name] for name in FIGURES}
    row |= {"mean_q": last["mean_q"], "dropped": last["dropped"], "seconds": run.about["finished"]["seconds"]}
    print(f"{label(method)} seed {seed}: validation {row}", flush=True)
    return row


def test(job):
    method, seed, args = job
    found = opened(method, seed, args).evaluate(samples=args.samples, test_size=args.test_size)
    return {name: found.scores.as_dict()[name] for name in FIGURES}


def summary(name, rows):
    """Mean and sd over seeds."""
    out = {"setting": name, "seeds": len(rows)}
    for figure in rows[0]:
        values = [row[figure] for row in rows if row[figure] is not None]
        out[figure] = statistics.mean(values) if values else None
        if figure in FIGURES:
            out[f"{figure}_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--runs", default="runs/fashion-mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--train-size", type=int, default=6000)
    parser.add_argument("--validation", type=int, default=5000)
    parser.add_argument("--test-size", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=50)
    args = parser.parse_args()
    methods = [method for group in SETTINGS.values() for method in group]
    jobs = [(method, seed, args) for method in methods for seed in range(args.seeds)]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        rows = pool.map(validate, jobs, chunksize=1)
        by_setting = {label(m): rows[i * args.seeds : (i + 1) * args.seeds] for i, m in enumerate(methods)}
        validation = [summary(name, found) for name, found in by_setting.items()]
        nll = {row["setting"]: row["nll"] for row in validation}
        chosen = [min(group, key=lambda method: nll[label(method)]) for group in SETTINGS.values()]
        tested = pool.map(test, [(m, seed, args) for m in chosen for seed in range(args.seeds)], chunksize=1)
    by_method = [tested[i * args.seeds : (i + 1) * args.seeds] for i in range(len(chosen))]
    rows = [summary(label(m), found) for m, found in zip(chosen, by_method, strict=True)]
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "runs", "data_dir", "jobs")}
    report("chosen on validation images", validation, None)
    report(
        f"Fashion-MNIST, {args.test_size} test images, mean over {args.seeds} seeds", rows, args.out,
        settings=settings, validation=validation, seeds=list(range(args.seeds)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
