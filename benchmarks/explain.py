"""Is the traceback true to the model? Deletion and insertion on Fashion-MNIST.

    python benchmarks/explain.py --data-dir DIR --out results/explain.json

A small ViT (patch 4, width 64, depth 4) learns 3,000 images with every seed, as `isingformer train` does it. The class
of an image is the one predicted. Patches are deleted (replaced by the baseline) or inserted in the order of a map, and
the class's probability is followed; a row is the area under that curve, the mean over images and then over seeds, once
with the baseline 0 (the training mean) and once with black, the images' background.

First the form of relevance is chosen, on validation images: the gradient at the image, or its mean over 1, 2, 4 or 8
points on the way from the baseline. The rule: a form's gap is insertion minus deletion, with the baseline 0; of the
forms whose gap is at most --close below the largest, the one that needs the fewest passes is chosen. Then, on test
images that took no part in it, other ones for every seed, it is compared with attention rollout and raw attention of
the last block (means over the same T drawn networks), with ink (how bright a patch is), and with random order. "Worse"
is the share of images whose deletion area (baseline 0) is larger than in that other order. Runs are kept in --runs.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import torch
from common import report

import isingformer as isf
from isingformer.data import split, subset
from isingformer.explain import anatomy, curve, explain, order_of, random_order
from isingformer.explain.networks import Networks
from isingformer.explain.relevance import patch_relevance
from isingformer.explain.traces import Way, trace
from isingformer.nn.vit import patches

NETWORK = {"width": 64, "depth": 4, "heads": 4, "mlp": 128, "patch": 4}
RANDOM_ORDERS = 3
FORMS = {"at the image": 0, "1 point": 1, "2 points": 2, "4 points": 4, "8 points": 8}
"""Forms of relevance, and on how many points of the way they take the gradient."""
PASSED_OVER = 64
"""Test images that earlier comparisons of forms looked at; they are drawn first, and left out."""
WORDS = ("mean", "black")
KINDS = ("deletion", "insertion")


def opened(seed, args):
    """The run of a seed, trained where it is not yet."""
    recipe = isf.Recipe(epochs=args.epochs, train_size=args.train_size, validation=500, seed=seed, **NETWORK)
    data = isf.load_data("fashion-mnist", data_dir=args.data_dir, download=False)
    out = Path(args.runs) / f"seed={seed}"
    return isf.train(data, isf.Ising(delta=args.delta), recipe, out=out, progress=False, tensorboard=False)


def forms(model, x, target, baseline, draw, args):
    """By form: orders of patches by relevance, the mean over networks, ``[images, patches]`` each."""
    parts = anatomy(model)
    networks, found = Networks.draw(model, args.samples, draw()), {}
    for name, points in FORMS.items():
        way = Way(baseline, max(points, 1))
        pulls = networks.each(lambda way=way: trace(model, parts, x, target, way).pulls)
        slopes = [one.pixels if points else one.here for one in pulls]
        found[name] = torch.stack([patch_relevance(x, g, parts.patch, baseline) for g in slopes]).mean(0)
    return {name: [order_of(values)] for name, values in found.items()}


def maps(model, x, target, baseline, draw, args, *, form):
    """By map: orders of patches, ``[images, patches]`` each."""
    parts, points = anatomy(model), FORMS[form]
    how = {"samples": args.samples, "target": target, "baseline": baseline, "paths": 0, "generator": draw()}
    found = explain(model, x, steps=max(points, 1), **how)
    own = [order_of(found.relevance.patches.mean)] if points else forms(model, x, target, baseline, draw, args)[form]
    others = {
        "rollout": found.attention.rollout.mean, "raw attention": found.attention.raw.mean,
        "ink": patches(x, parts.patch).sum(-1),
    }  # fmt: skip
    chance = draw()
    return (
        {"relevance": own}
        | {name: [order_of(values)] for name, values in others.items()}
        | {"random": [random_order(len(x), parts.patches, chance) for _ in range(RANDOM_ORDERS)]}
    )


def areas(run, images, seed, orders, args):
    """By (order, baseline, kind): the area of every image, ``[images]``."""
    x, model = run.inputs(images.x), run.model.eval()

    @torch.no_grad()
    def probabilities(z):
        return model(z).softmax(-1)  # of the expected network

    draw = partial(torch.Generator().manual_seed, seed)
    target = isf.predict(model, x, samples=args.samples, generator=draw()).classes
    black = float(run.inputs(torch.zeros_like(images.x[:1])).min())
    found = {}
    for word, baseline in zip(WORDS, (0.0, black), strict=True):
        for name, some in orders(model, x, target, baseline, draw, args).items():
            for kind in KINDS:
                each = [
                    curve(probabilities, x, target, order, side=4, kind=kind, baseline=baseline, points=args.points)
                    for order in some
                ]
                found[name, word, kind] = torch.stack([one.area for one in each]).mean(0)
    return found


def rows_of(found):
    """A row an order: means over images and seeds, with the standard deviation over seeds."""
    rows = []
    for name in dict.fromkeys(name for name, *_ in found[0]):
        row = {"order": name}
        for word in WORDS:
            for kind in KINDS:
                values = [float(one[name, word, kind].mean()) for one in found]
                row |= {f"{kind}, {word}": statistics.fmean(values), f"sd, {kind}, {word}": statistics.stdev(values)}
        rows.append(row)
    return rows


def chosen_form(rows, close):
    """The form that needs the fewest passes of those whose gap is close to the largest."""
    for row in rows:
        row["gap, mean"] = row["insertion, mean"] - row["deletion, mean"]
    largest = max(row["gap, mean"] for row in rows)
    fitting = [row["order"] for row in rows if row["gap, mean"] >= largest - close]
    return min(fitting, key=lambda name: FORMS[name])


def add_worse(rows, found):
    """How often an order is worse than another, on single images."""
    for row in rows:
        for other in ("random", "raw attention"):
            worse = [one[row["order"], "mean", "deletion"] > one[other, "mean", "deletion"] for one in found]
            row[f"images worse than {other}"] = statistics.fmean(float(one.double().mean()) for one in worse)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--runs", default="runs/explain")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--train-size", type=int, default=3000)
    parser.add_argument("--delta", type=float, default=0.2)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--close", type=float, default=0.01)
    args = parser.parse_args()
    tried, runs = [], [opened(seed, args) for seed in range(args.seeds)]
    for seed, run in enumerate(runs):
        held_out = subset(run.validation(args.data_dir), args.images, seed=seed)
        tried.append(areas(run, held_out, seed, forms, args))
        print(f"seed {seed}: forms compared on {len(held_out)} validation images", flush=True)
    choice = rows_of(tried)
    form = chosen_form(choice, args.close)
    report(f"Validation images: chosen {form}", choice, None)
    found, accuracy = [], []
    test = runs[0].data(args.data_dir).test
    _, fresh = split(test, train=PASSED_OVER, validation=args.seeds * args.images, seed=0)
    for seed, run in enumerate(runs):
        images = fresh.take(torch.arange(seed * args.images, (seed + 1) * args.images))
        found.append(areas(run, images, seed, partial(maps, form=form), args))
        accuracy.append(run.evaluate(samples=args.samples, test_size=1000).scores.accuracy)
        print(f"seed {seed}: accuracy {accuracy[-1]:.3f}", flush=True)
    rows = rows_of(found)
    add_worse(rows, found)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "runs", "data_dir")}
    report(
        f"Fashion-MNIST, area under the class's probability, {args.images} images, mean over {args.seeds} seeds", rows,
        args.out, settings=settings, network=NETWORK, accuracy=accuracy, chosen=form, choice=choice,
    )  # fmt: skip


if __name__ == "__main__":
    main()
