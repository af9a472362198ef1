"""What removal costs: accuracy against multiply-adds and CPU latency, for four ways to choose what goes.

    python benchmarks/compress.py --data-dir DIR --out results/compress.json [--run RUN] [--device cuda]
    python benchmarks/compress.py --smoke --out /tmp/smoke.json

The reference ViT (patch 4, width 128, depth 6, 4 heads, MLP 256) learns 18,000 images of Fashion-MNIST with Ising, as
`isingformer train` does it, or is taken from --run. For every share of its multiply-adds, nodes are removed by the
evidence of their gates (ising), by magnitude, by Taylor and at random, once with heads of any widths ("channels") and
once with heads of one width a block ("slices"). Then all are fine-tuned alike: the same images, order, epochs and
learning rate. A row is one network on all test images, one pass; its latency is the median of a pass on the CPU. Row
"none" is the network before, as it is, and row "none, tuned" with the fine-tuning and nothing removed; drops are in
points from the better of the two, mean over seeds. Every row is kept as soon as it is there: the same command goes on.
Timings want a quiet machine.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from common import report, where

import isingformer as isf
from isingformer._files import write_json
from isingformer.compress import (
    class_probabilities,
    compress,
    count_macs,
    count_weights,
    latency_ms,
    open_run,
    recover,
    remove,
)
from isingformer.compress.remove import expected_state
from isingformer.compress.run import training_images
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.compress.sparse import plain_copy
from isingformer.data import subset
from isingformer.metrics import accuracy, ece, nll
from isingformer.train import find_device

NETWORK = {"patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 256}
SCORES = {"ising": "gate", "magnitude": "magnitude", "taylor": "taylor", "random": "random"}
KINDS = ("channels", "slices")
BATCHES = (1, 64)
SMOKE = {
    "data": "digits", "train_size": 500, "validation": 100, "epochs": 4, "recover": 2, "seeds": 1,
    "budgets": [0.5, 0.3], "network": {"patch": 4, "width": 32, "depth": 2, "heads": 4, "mlp": 48},
}  # fmt: skip
KEYS = ("by", "heads", "share", "seed")
HOW = ("data", "train_size", "validation", "epochs", "delta", "recover", "lr", "seeds", "budgets", "network", "threads")


def opened(args):
    """The run to compress, trained where it is not yet."""
    if args.run:
        return open_run(args.run, device=find_device(args.device))
    recipe = isf.Recipe(
        epochs=args.epochs, train_size=args.train_size, validation=args.validation, seed=0, **args.network
    )
    data = isf.load_data(args.data, data_dir=args.data_dir, download=False)
    out = Path(args.runs) / f"{args.data}-{args.train_size}-{args.epochs}-{args.delta}"
    method = isf.Ising(delta=args.delta)
    return isf.train(data, method, recipe, out=out, device=args.device, progress=False, tensorboard=False)


class Bench:
    """The full network, its images, and how a smaller one is made and measured."""

    def __init__(self, run, args):
        self.args, self.full = args, run.model
        sample, test = training_images(run), run.data(args.data_dir).test
        some = subset(sample, min(1024, len(sample)), seed=0)
        self.x, self.y = run.inputs(sample.x), sample.y
        self.some = {"images": run.inputs(some.x), "labels": some.y.to(run.device)}
        self.test_x, self.test_y = run.inputs(test.x), test.y.to(run.device)

    def tuned(self, network, seed):
        return recover(network, self.x, self.y, epochs=self.args.recover, lr=self.args.lr, seed=seed)

    def network(self, by, heads, share, seed):
        """One network of the frontier, fine-tuned but for the first."""
        if by == "none":
            handle = isf.attached_to(self.full)
            return plain_copy(handle.model, expected_state(handle)).eval()
        if by == "none, tuned":
            return self.tuned(remove(self.full, Selection.everything(shape_of(self.full))), seed)
        chance = torch.Generator().manual_seed(seed)
        kinds = ("units", heads)
        found = compress(self.full, macs=share, structures=kinds, score=SCORES[by], generator=chance, **self.some)
        return self.tuned(found, seed)

    def row(self, by, heads, share, seed):
        network = self.network(by, heads, share, seed)
        probs = class_probabilities(network, self.test_x)
        costs = {"macs": count_macs(network), "weights": count_weights(network)}
        scored = {"accuracy": accuracy(probs, self.test_y), "nll": nll(probs, self.test_y)}
        network = network.cpu()
        times = {f"ms, batch {n}": latency_ms(network, batch=n, passes=self.args.passes) for n in BATCHES}
        return {"by": by, "heads": heads, "share": share, "seed": seed, **costs, **scored,
                "ece": ece(probs, self.test_y), **times}  # fmt: skip


def jobs(args):
    """Every (by, heads, share, seed)."""
    found = [("none", "-", 1.0, 0), *(("none, tuned", "-", 1.0, seed) for seed in range(args.seeds))]
    for share in args.budgets:
        for heads in KINDS:
            found += [(by, heads, share, seed) for by in SCORES for seed in range(args.seeds)]
    return found


def summary(rows):
    """Means over seeds, against the full network."""
    groups = {}
    for row in rows:
        groups.setdefault((row["by"], row["heads"], row["share"]), []).append(row)
    means = {
        key: {name: statistics.fmean(row[name] for row in some) for name in some[0] if name not in KEYS}
        for key, some in groups.items()
    }
    full = means["none", "-", 1.0]
    best = max(mean["accuracy"] for (by, *_), mean in means.items() if by.startswith("none"))
    return [
        {"by": by, "heads": heads, "share": share, "accuracy": mean["accuracy"],
         "drop, points": 100 * (best - mean["accuracy"]), "nll": mean["nll"], "ece": mean["ece"],
         "fewer multiply-adds": full["macs"] / mean["macs"]}
        | {f"faster, batch {n}": full[f"ms, batch {n}"] / mean[f"ms, batch {n}"] for n in BATCHES}
        for (by, heads, share), mean in means.items()
    ]  # fmt: skip


def verdict(means):
    """What the goal asks: how small ising gets for half a point, by kind of heads, and where it is not the first."""
    ising = [row for row in means if row["by"] == "ising"]
    behind, smallest = [], {}
    for row in ising:
        others = [o for o in means if (o["heads"], o["share"]) == (row["heads"], row["share"])]
        if row["accuracy"] < max(other["accuracy"] for other in others):
            behind.append(f"{row['share']} {row['heads']}")
    for row in sorted(ising, key=lambda row: row["fewer multiply-adds"]):
        if row["drop, points"] <= 0.5:
            smallest[row["heads"]] = row
    return {"smallest for 0.5 points": smallest, "ising not first at": behind}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--run", help="a trained run to begin with, instead of training one")
    parser.add_argument("--runs", default="runs/compress")
    parser.add_argument("--data-dir")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="of the timed passes, and of all else on a CPU")
    parser.add_argument("--train-size", type=int, default=18_000)
    parser.add_argument("--validation", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--delta", type=float, default=0.2)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 0.4, 0.33, 0.25, 0.2, 0.15, 0.1])
    parser.add_argument("--recover", type=int, default=10, help="epochs of fine-tuning")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=51)
    parser.add_argument("--smoke", action="store_true", help="digits, a small network and few epochs, to try it out")
    args = parser.parse_args(namespace=argparse.Namespace(network=NETWORK))
    if args.smoke:
        vars(args).update(SMOKE)
    torch.set_num_threads(args.threads)
    out, settings = Path(args.out), {name: getattr(args, name) for name in HOW} | {"run": args.run}
    rows = []
    if out.is_file():
        there = json.loads(out.read_text(encoding="utf-8"))
        if there["settings"] != settings:
            raise SystemExit(f"{out} holds rows of other settings, {there['settings']}; give another --out")
        rows = there["rows"]
    done = {tuple(row[name] for name in KEYS) for row in rows}
    left = [job for job in jobs(args) if job not in done]
    run = opened(args)
    bench = Bench(run, args) if left else None
    trained = {name: run.about[name] for name in ("method", "recipe", "network", "finished")}
    out.parent.mkdir(parents=True, exist_ok=True)
    for job in left:
        rows.append(bench.row(*job))
        write_json(out, {"title": "under way", **where(), "settings": settings, "trained": trained, "rows": rows})
        print(f"{len(rows)} of {len(jobs(args))}: {rows[-1]}", flush=True)
    means = summary(rows)
    report("Accuracy against cost, by what chooses, means over seeds", means, None)
    found = verdict(means)
    print(json.dumps(found))
    about = {"title": "Compression", **where(), "settings": settings, "trained": trained}
    write_json(out, {**about, "means": means, **found, "rows": rows})


if __name__ == "__main__":
    main()
