"""Does the uncertainty tell foreign images? AUROC of Fashion-MNIST's test images against MNIST's, by method.

    python benchmarks/out_of_distribution.py --device cuda --out results/out-of-distribution.json
    python benchmarks/out_of_distribution.py --data digits --ood noise.npz --train-size 400 --epochs 5

The reference ViT, 6,000 training images, 30 epochs, T = 50. The settings of the methods are those that
`results/fashion-mnist.json` chose on validation images, and the default Ising besides. The seeds of a method train as
one stack. No foreign image is seen before the end.
"""

import argparse
import statistics

import torch
from common import report

import isingformer as isf
from isingformer.data import subset
from isingformer.metrics import ood_auroc
from isingformer.predict import Prediction
from isingformer.study.stack import Stack

METHODS = {
    "plain": isf.Plain(),
    "dropout p=0.1": isf.Dropout(p=0.1),
    "dropconnect p=0.1": isf.DropConnect(p=0.1),
    "ising delta=0.1": isf.Ising(delta=0.1),
    "ising delta=0.3 curvature=mc-fisher": isf.Ising(delta=0.3, curvature="mc-fisher"),
}


def measured(name, data, foreign, args):
    """A row a seed: accuracy, and AUROC of both uncertainties."""
    recipes = [
        isf.Recipe(epochs=args.epochs, train_size=args.train_size, validation=0, seed=seed)
        for seed in range(args.seeds)
    ]
    stack = Stack(data, METHODS[name], recipes, device=torch.device(args.device))
    stack.train()
    if stack.diverged:
        raise SystemExit(f"{name}: seeds {stack.diverged} diverged")
    inside, outside = (subset(images, min(args.test_size, len(images)), seed=0) for images in (data.test, foreign.test))
    known, strange = (stack.predict(images, args.samples).to("cpu") for images in (inside, outside))
    rows = []
    for seed in range(args.seeds):
        ours, theirs = (Prediction(p.samples[:, seed].double()) for p in (known, strange))
        rows.append(
            {
                "method": name, "seed": seed, "accuracy": float((ours.classes == inside.y).double().mean()),
                "AUROC of entropy": ood_auroc(ours.entropy, theirs.entropy),
                "AUROC of mutual information": None if name == "plain" else ood_auroc(ours.epistemic, theirs.epistemic),
            }
        )  # fmt: skip
    print(f"{name}: {stack.seconds:.0f} s, {rows}", flush=True)
    return rows


def summary(rows):
    """Mean and sd over seeds, a line a method."""
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        own, line = [row for row in rows if row["method"] == name], {"method": name}
        for figure in ("accuracy", "AUROC of entropy", "AUROC of mutual information"):
            values = [row[figure] for row in own]
            defined = None not in values  # the passes of a plain network agree, so that it has none
            line[figure] = statistics.fmean(values) if defined else None
            line[f"{figure}, sd"] = statistics.stdev(values) if defined else None
        lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist", help="what the networks are trained on")
    parser.add_argument("--ood", default="mnist", help="foreign images, made to fit")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5, help="2 or more")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--train-size", type=int, default=6000)
    parser.add_argument("--test-size", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(f"--seeds must be 2 or more, for a spread, got {args.seeds}")
    data = isf.load_data(args.data, data_dir=args.data_dir)
    foreign = isf.load_data(args.ood, data_dir=args.data_dir)
    if foreign.train.x.shape[1:] != data.train.x.shape[1:]:
        foreign = isf.load_data(args.ood, data_dir=args.data_dir, resize=data.size[0], channels=data.channels)
    rows = [row for name in args.methods for row in measured(name, data, foreign, args)]
    settings = {name: value for name, value in vars(args).items() if name not in ("out", "data_dir")}
    report(
        f"{args.ood} against {args.data}, mean over {args.seeds} seeds", summary(rows), args.out,
        settings=settings, seeds=rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
