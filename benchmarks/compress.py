"""What removal costs: accuracy against multiply-adds and CPU latency, for several ways to choose what goes.

    python benchmarks/compress.py --data-dir DIR --out results/compress.json [--device cuda --jobs 8] [--run RUN]
    python benchmarks/compress.py --smoke --out /tmp/smoke.json

The reference ViT (patch 4, width 128, depth 6, 4 heads, MLP 256) learns 18,000 images of Fashion-MNIST with Ising, as
`isingformer train` does it, or is taken from --run. For every share of its multiply-adds, hidden units and channels of
attention are removed from it

    ising             by the evidence of their gates, as `compress` does by default
    magnitude         by their squared weights
    taylor            by Torch-Pruning: its Taylor importance, its dependency graph, its removal
    taylor, layer     the same with every layer cut alike, and
    taylor, width     with residual channels removed too
    taylor, ours      by the same quantity in our ranking
    random            by chance
    ising, fast       as ising, with whole attentions and MLPs, until a pass of one image takes that share of the time
                      on the CPU, instead of the multiply-adds; only where --by names it, and with --jobs 1

and all are fine-tuned alike: the same images, order, epochs, learning rate and teacher (the full posterior). A row is
one network on all test images, one pass. Row "none" is the network before, row "none, tuned" the same with the
fine-tuning and nothing removed. `--images validation` takes images that neither training nor fine-tuning saw instead of
test images, to choose settings on.

Every row is kept as soon as it is there, and its network in the folder beside the file: the same command goes on, also
with other budgets, ways and seeds. Latency is measured at the end, when all else is quiet: the median time of a pass on
the CPU, of the networks of seed 0, by torch and by onnxruntime; see `frontier.py`.
"""

import argparse
import json
import multiprocessing
import warnings
from pathlib import Path

import torch
from common import report, where
from frontier import FAST, KEYS, name_of, processor, summary, times, verdict, whole
from rivals import taylor_pruned

import isingformer as isf
from isingformer._files import read_tensors, write_json, write_tensors
from isingformer.compress import (
    class_probabilities,
    compress,
    count_macs,
    count_weights,
    latency_ms,
    open_run,
    recover,
    remove,
    save_compact,
)
from isingformer.compress.run import training_images
from isingformer.compress.selection import Selection
from isingformer.compress.shape import shape_of
from isingformer.data import subset
from isingformer.metrics import accuracy, ece, nll
from isingformer.train import find_device

NETWORK = {"patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 256}
OURS = {"ising": "gate", "magnitude": "magnitude", "taylor, ours": "taylor", "random": "random"}
THEIRS = {
    "taylor": {"ranking": "alike"}, "taylor, layer": {"ranking": "layer"},
    "taylor, width": {"ranking": "alike", "width": True},
}  # fmt: skip
EVERY = ("ising", "magnitude", "taylor", "taylor, layer", "taylor, width", "taylor, ours", "random")
SMOKE = {
    "data": "digits", "train_size": 500, "validation": 100, "epochs": 4, "recover": 2, "seeds": 1, "passes": 5,
    "budgets": [0.5, 0.3], "network": {"patch": 4, "width": 32, "depth": 2, "heads": 4, "mlp": 48},
}  # fmt: skip
HOW = (
    "data", "train_size", "validation", "epochs", "delta", "recover", "lr", "distil", "teacher_passes", "seeds",
    "budgets", "by", "images", "network", "threads", "run",
)  # fmt: skip

GROWS = ("seeds", "budgets", "by")
"""May differ from those of the rows that are there: others are added."""


def opened(args):
    """The run to compress, trained where it is not yet."""
    if args.run:
        return open_run(args.run, device=find_device(args.device))
    recipe = isf.Recipe(
        epochs=args.epochs, train_size=args.train_size, validation=args.validation, seed=0, **args.network
    )
    data = isf.load_data(args.data, data_dir=args.data_dir, download=False)
    out = folder(args) / f"{args.data}-{args.train_size}-{args.epochs}-{args.delta}"
    method = isf.Ising(delta=args.delta)
    return isf.train(data, method, recipe, out=out, device=args.device, progress=False, tensorboard=False)


def folder(args):
    """Where the run and the networks are."""
    return Path(args.out).with_suffix("")


class Bench:
    """The full network, its images, and how a smaller one is made and measured."""

    def __init__(self, run, args):
        self.args, self.full, self.folder = args, run.model, folder(args)
        self.plain = whole(run)
        data = run.data(args.data_dir, download=False)
        sample = training_images(run)
        judged = run.validation() if args.images == "validation" else data.test
        some = subset(sample, min(1024, len(sample)), seed=0)
        self.x, self.y = run.inputs(sample.x), sample.y
        self.some = {"images": run.inputs(some.x), "labels": some.y.to(run.device)}
        self.test_x, self.test_y = run.inputs(judged.x), judged.y.to(run.device)

    def network(self, by, share, seed):
        """One network of the frontier, before fine-tuning."""
        if by.startswith("none"):
            return remove(self.full, Selection.everything(shape_of(self.full)))
        if by == FAST:
            return self.fast(share)
        if by in THEIRS:
            return taylor_pruned(self.plain, **self.some, macs=share * count_macs(self.plain), **THEIRS[by])
        chance = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of blocks of which nothing is left
            return compress(self.full, macs=share, score=OURS[by], generator=chance, **self.some)

    def fast(self, share):
        """By the clock of the CPU, where latency is measured in the end."""
        run = open_run(self.args.trained, device="cpu")
        slow = latency_ms(whole(run), passes=self.args.passes)
        network = compress(run.model, latency_ms=share * slow, images=self.some["images"].cpu())
        return network.to(self.x.device)

    def row(self, by, share, seed):
        args, network = self.args, self.network(by, share, seed)
        before = accuracy(class_probabilities(network, self.test_x), self.test_y)
        if by != "none":
            how = {"teacher": taught(self.full, self.x, args), "distil": args.distil} if args.distil else {}
            recover(network, self.x, self.y, epochs=args.recover, lr=args.lr, seed=seed, **how)
        probs = class_probabilities(network, self.test_x)
        save_compact(network, self.folder / name_of(by, share, seed))
        full = by == "none"
        return {
            "by": by, "share": share, "seed": seed, "macs": count_macs(self.full if full else network),
            "weights": count_weights(network), "untuned accuracy": before, "accuracy": accuracy(probs, self.test_y),
            "nll": nll(probs, self.test_y), "ece": ece(probs, self.test_y),
        }  # fmt: skip


def taught(model, x, args):
    """What the full posterior says of every training image, made once for all networks."""
    file = folder(args) / "teacher.safetensors"
    if not file.is_file():
        chance = torch.Generator().manual_seed(0)
        write_tensors(file, {"probs": isf.predict(model, x, samples=args.teacher_passes, generator=chance).probs})
    return read_tensors(file, device=x.device)[0]["probs"]


def jobs(args):
    """Every (by, share, seed)."""
    found = [("none", 1.0, 0), *(("none, tuned", 1.0, seed) for seed in range(args.seeds))]
    return found + [(by, share, seed) for seed in range(args.seeds) for share in args.budgets for by in args.by]


WORKER = []


def begin(args):
    """In a process of its own: read the trained run once."""
    torch.set_num_threads(args.threads)
    WORKER.append(Bench(open_run(args.trained, device=find_device(args.device)), args))


def work(job):
    return WORKER[0].row(*job)


def rows_of(args, left):
    """The rows that are still to be made, as they come."""
    if args.jobs == 1:
        begin(args)
        yield from map(work, left)
        return
    context = multiprocessing.get_context("spawn")  # CUDA allows no fork
    with context.Pool(min(args.jobs, len(left)), begin, (args,)) as pool:
        yield from pool.imap_unordered(work, left)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the JSON file; the run and the networks go into a folder beside")
    parser.add_argument("--run", help="a trained run to begin with, instead of training one")
    parser.add_argument("--data-dir")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are fine-tuned at once")
    parser.add_argument("--threads", type=int, default=1, help="of the timed passes, and of all else on a CPU")
    parser.add_argument("--train-size", type=int, default=18_000)
    parser.add_argument("--validation", type=int, default=5000)
    parser.add_argument("--images", choices=("test", "validation"), default="test", help="what accuracy is taken on")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--delta", type=float, default=0.2)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.5, 0.33, 0.25, 0.2, 0.15])
    parser.add_argument("--by", nargs="+", choices=(*EVERY, FAST), default=list(EVERY), metavar="NAME")
    parser.add_argument("--recover", type=int, default=10, help="epochs of fine-tuning")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--distil", type=float, default=0.5, help="weight of the teacher; 0: labels alone")
    parser.add_argument("--teacher-passes", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=31)
    parser.add_argument("--smoke", action="store_true", help="digits, a small network and few epochs, to try it out")
    args = parser.parse_args(namespace=argparse.Namespace(network=NETWORK))
    if args.smoke:
        vars(args).update(SMOKE)
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    out, settings = Path(args.out), {name: getattr(args, name) for name in HOW}
    rows = []
    if out.is_file():
        there = json.loads(out.read_text(encoding="utf-8"))
        if {**there["settings"], **{name: settings[name] for name in GROWS}} != settings:
            raise SystemExit(f"{out} holds rows of other settings, {there['settings']}; give another --out")
        rows = there["rows"]
    done = {tuple(row[name] for name in KEYS) for row in rows}
    left = [job for job in jobs(args) if job not in done]
    out.parent.mkdir(parents=True, exist_ok=True)
    run = opened(args)
    args.trained = str(run.folder)
    about = {**where(), "settings": settings}
    about["trained"] = {name: run.about[name] for name in ("method", "recipe", "network", "finished")}
    if left and args.distil:
        taught(run.model, run.inputs(training_images(run).x), args)  # before there are several who would make it
    del run
    for row in rows_of(args, left) if left else ():
        rows.append(row)
        write_json(out, {"title": "under way", **about, "rows": rows})
        print(f"{len(rows)} of {len(jobs(args))}: {row}", flush=True)
    order = ["none", "none, tuned", *EVERY, FAST]
    rows.sort(key=lambda row: (-row["share"], order.index(row["by"]), row["seed"]))
    measured = times(args.trained, folder(args), rows, passes=args.passes, threads=args.threads)
    means = summary(rows, measured)
    report("Accuracy against cost, by what chooses, means over seeds", means, None)
    found = verdict(means)
    print(json.dumps(found, indent=2))
    latencies = [{"by": by, "share": share, **ms} for (by, share), ms in measured.items()]
    write_json(
        out,
        {
            "title": "Compression",
            **about,
            "means": means,
            **found,
            "processor": processor(),
            "latency": latencies,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
