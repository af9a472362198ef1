"""Other ways to be unsure, on cells of a study: an ensemble of five plain networks, and IVON.

    pip install ivon-opt
    python benchmarks/peers.py --device cuda --datasets fashion-mnist --sizes 6000 --out results/peers.json
    python benchmarks/peers.py --on validation --peers ivon --ivon-lr 0.1 0.3 --out runs/peers.json

The training samples, test images, network, steps, batches and schedule are those of the plan; the members of an
ensemble differ in initial weights and order. IVON (Shen and others, 2024; the authors' package) replaces AdamW, has N
for its effective sample size and draws T networks to predict. What it takes besides, learning rate and first curvature,
is to be tried with `--on validation`, on images held out of the training file; give one of each for test images.
What the file named by --out holds of a cell, with as many replicas and epochs and the same settings, is not trained
again.
"""

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path

import torch
from common import report

import isingformer as isf
from isingformer.data import Dataset, load_data, split_rows, subset
from isingformer.metrics import scores
from isingformer.study import read_plan
from isingformer.study.stack import Stack
from isingformer.train.batches import derived_seed
from isingformer.train.recipe import schedule

SHOWN = ("accuracy", "nll", "ece", "brier")
KEY = ("data", "size", "peer", "on", "epochs", "replicas", "settings")
"""What tells one training from another: of each, the replicas are trained together."""
HELD_OUT = 2000


def data_for(plan, label, args):
    """The data of a cell; on validation, its test images are some of the training file, which no sample then has."""
    about = plan.dataset(label)
    data = load_data(about.source, data_dir=args.data_dir, resize=about.resize)
    if args.on == "test":
        test = data.test
        if about.test_images is not None:
            test = subset(test, about.test_images, seed=plan.test_seed(label))
        return Dataset(data.name, data.train, test, data.classes)
    held_out = min(HELD_OUT, len(data.train) // 5)
    number = len(data.train) - held_out
    rest, held = split_rows(data.train.y, train=number, validation=held_out, stratified=True, seed=12345)
    return Dataset(data.name, data.train.take(rest), data.train.take(held), data.classes)


def ensembles(data, recipes, plan, device, *, members):
    """Probabilities ``[R, N, C]`` of the mean of every sample's members."""
    every = [
        dataclasses.replace(recipe, seed=derived_seed(recipe.seed, "member", member) if member else recipe.seed)
        for recipe in recipes
        for member in range(members)
    ]
    stack = Stack(data, isf.Plain(), every, device=device)
    stack.train()
    probs = stack.predict(data.test, 1).probs
    return probs.unflatten(0, (len(recipes), members)).mean(1)


def ivon(data, recipes, plan, device, *, lr, curvature, decay, beta, clip):
    """Probabilities ``[R, N, C]`` of the mean of T networks that IVON's posterior gives."""
    from ivon import IVON

    torch.manual_seed(0)  # IVON draws from the default generator
    stack = Stack(data, isf.Plain(), recipes, device=device)
    optimizer = IVON(
        list(stack.model.parameters()), lr=lr, ess=stack.rows.shape[1], hess_init=curvature, weight_decay=decay,
        beta2=beta, clip_radius=clip,
    )  # fmt: skip
    stack.model.train()
    with stack._programs(compiled=stack.compiled):  # a step that moves weights to other storage cannot be a CUDA graph
        for step in range(stack.steps):
            if step % stack.per_epoch == 0:
                order = stack._order(step // stack.per_epoch)
            place = step % stack.per_epoch * stack.batch
            stack._set(step, order[:, place : place + stack.batch])
            optimizer.param_groups[0]["lr"] = lr * schedule(step, steps=stack.steps, warmup=stack.recipe.lr_warmup)
            with optimizer.sampled_params(train=True):
                with stack.autocast():
                    outputs = stack.model(stack.batch_x)
                stack.likelihood.nll(outputs.to(stack.dtype), stack.batch_y).mean(1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    total = 0.0
    for _ in range(plan.samples):
        with optimizer.sampled_params():
            total = total + stack.predict(data.test, 1).probs
    return total / plan.samples


def peers_of(args):
    """{name: (function, its settings)} of everything to train."""
    found = {}
    if "ensemble" in args.peers:
        found[f"ensemble of {args.members}"] = (ensembles, {"members": args.members})
    if "ivon" in args.peers:
        others = {"decay": args.ivon_decay, "beta": args.ivon_beta, "clip": args.ivon_clip}
        for lr, curvature in itertools.product(args.ivon_lr, args.ivon_curvature):
            found[f"ivon, lr {lr:g}, curvature {curvature:g}"] = (ivon, {"lr": lr, "curvature": curvature, **others})
    return found


def key_of(one):
    """Of a record, or of what is to be trained."""
    return tuple(one.get(name) for name in KEY)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="paper", help="quick, paper, or a TOML file (default: paper)")
    parser.add_argument("--datasets", nargs="+", help="some of the plan's (default: all)")
    parser.add_argument("--sizes", nargs="+", type=int, help="some of the plan's (default: all)")
    parser.add_argument("--replicas", type=int, help="fewer than the plan's")
    parser.add_argument("--epochs", type=int, help="other than the plan's")
    parser.add_argument("--peers", nargs="+", choices=("ensemble", "ivon"), default=("ensemble", "ivon"))
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--ivon-lr", nargs="+", type=float, default=[0.1])
    parser.add_argument("--ivon-curvature", nargs="+", type=float, default=[0.1])
    parser.add_argument("--ivon-decay", type=float, default=1e-4)
    parser.add_argument("--ivon-beta", type=float, default=0.9999)
    parser.add_argument("--ivon-clip", type=float, default=float("inf"))
    parser.add_argument("--on", choices=("test", "validation"), default="test")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--out")
    return parser.parse_args()


def main():
    args = arguments()
    plan = read_plan(args.plan)
    plan = dataclasses.replace(plan, replicas=args.replicas or plan.replicas)
    if args.epochs:
        plan = dataclasses.replace(plan, recipe={**plan.recipe, "epochs": args.epochs})
    records = json.loads(Path(args.out).read_text())["records"] if args.out and Path(args.out).exists() else []
    done = set(map(key_of, records))
    for label in args.datasets or plan.labels:
        data = data_for(plan, label, args)
        for size in (size for size in plan.dataset(label).sizes if size in (args.sizes or [size])):
            cell = next(cell for cell in plan.cells() if (cell.dataset, cell.size) == (label, size))
            recipes = [plan.recipe_for(cell, replica) for replica in range(plan.replicas)]
            for peer, (call, settings) in peers_of(args).items():
                about = {
                    "data": label, "size": size, "peer": peer, "on": args.on, "epochs": recipes[0].epochs,
                    "replicas": plan.replicas,
                    "settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
                }  # fmt: skip
                if key_of(about) in done:
                    continue
                started = time.perf_counter()
                probs = call(data, recipes, plan, args.device, **settings).cpu()
                seconds = time.perf_counter() - started
                for replica, own in enumerate(probs):
                    found = scores(own, data.test.y).as_dict()
                    records.append({
                        **about, "replica": replica, "seed": recipes[replica].seed, "seconds": seconds / len(recipes),
                        **{name: found[name] for name in SHOWN},
                    })  # fmt: skip
                report("Other ways to be unsure", summary(records), args.out, samples=plan.samples, records=records)


def summary(records):
    """Mean and sd over the replicas of every cell and peer."""
    rows = []
    for key, group in itertools.groupby(records, key_of):
        own, row = list(group), dict(zip(KEY, key, strict=True))
        for name in SHOWN:
            values = torch.tensor([one[name] for one in own], dtype=torch.float64)
            row[name], row[f"{name}, sd"] = float(values.mean()), float(values.std()) if len(own) > 1 else None
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
