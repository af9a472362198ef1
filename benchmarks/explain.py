"""Is the traceback true to the model? Deletion and insertion on Fashion-MNIST, and what an explanation costs.

    python benchmarks/explain.py --data-dir DIR --out results/explain.json

A small ViT (patch 4, width 64, depth 4) learns 3,000 images with every seed, as `isingformer train` does it. For test
images the class is the one predicted. Patches are deleted (replaced by the baseline) or inserted in the order of a map,
and the class's probability is followed; a row is the area under that curve, the mean over images and then over seeds,
once with the baseline 0 (the training mean) and once with black, the images' background. Maps: relevance (gradient
times input, the mean over T drawn networks), the same from the gradient at the image alone, attention rollout and raw
attention of the last block (means over the same networks), ink (how bright a patch is), and random order. Runs are
kept in --runs. "Worse" is the share of images whose deletion area (baseline 0) is larger than in that other order.
Then the time of `explain` for one image with T = 50 on the network for digits (width 64, depth 4).
"""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from common import report

import isingformer as isf
from isingformer.data import subset
from isingformer.explain import anatomy, curve, explain, order_of, random_order
from isingformer.explain.networks import Networks
from isingformer.explain.relevance import patch_relevance
from isingformer.explain.traces import trace
from isingformer.nn.vit import patches

NETWORK = {"width": 64, "depth": 4, "heads": 4, "mlp": 128, "patch": 4}
RANDOM_ORDERS = 3


def opened(seed, args):
    """The run of a seed, trained where it is not yet."""
    recipe = isf.Recipe(epochs=args.epochs, train_size=args.train_size, validation=500, seed=seed, **NETWORK)
    data = isf.load_data("fashion-mnist", data_dir=args.data_dir, download=False)
    out = Path(args.runs) / f"seed={seed}"
    return isf.train(data, isf.Ising(delta=args.delta), recipe, out=out, progress=False, tensorboard=False)


def orders(model, x, target, baseline, seed, args):
    """By map: orders of patches, ``[images, patches]`` each."""
    parts = anatomy(model)
    draw = partial(torch.Generator().manual_seed, seed)
    found = explain(model, x, samples=args.samples, target=target, baseline=baseline, paths=0, generator=draw())
    networks = Networks.draw(model, args.samples, draw())
    here = networks.each(lambda: trace(model, parts, x, target).pulls.here)
    at_image = torch.stack([patch_relevance(x, g, parts.patch, baseline) for g in here]).mean(0)
    maps = {
        "relevance": found.relevance.patches.mean, "gradient at the image": at_image,
        "rollout": found.attention.rollout.mean, "raw attention": found.attention.raw.mean,
        "ink": patches(x, parts.patch).sum(-1),
    }  # fmt: skip
    chance = draw()
    return {name: [order_of(values)] for name, values in maps.items()} | {
        "random": [random_order(len(x), parts.patches, chance) for _ in range(RANDOM_ORDERS)]
    }


def areas(seed, args):
    """By (map, baseline, kind): the area of every image, ``[images]``; and how good the run is."""
    run = opened(seed, args)
    images = subset(run.data(args.data_dir).test, args.images, seed=seed)
    x, model = run.inputs(images.x), run.model.eval()

    @torch.no_grad()
    def probabilities(z):
        return model(z).softmax(-1)  # of the expected network

    target = isf.predict(model, x, samples=args.samples, generator=torch.Generator().manual_seed(seed)).classes
    black = float(run.inputs(torch.zeros_like(images.x[:1])).min())
    found = {}
    for word, baseline in (("mean", 0.0), ("black", black)):
        for name, some in orders(model, x, target, baseline, seed, args).items():
            for kind in ("deletion", "insertion"):
                each = [
                    curve(probabilities, x, target, order, side=4, kind=kind, baseline=baseline, points=args.points)
                    for order in some
                ]
                found[name, word, kind] = torch.stack([one.area for one in each]).mean(0)
    score = run.evaluate(samples=args.samples, test_size=1000).scores.accuracy
    print(f"seed {seed}: accuracy {score:.3f}", flush=True)
    return found, score


def seconds_of_one_image(repeats=5):
    """Of `explain` with T = 50, the median and the worst, on all threads that torch may use."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = isf.ViT(image_size=8, channels=1, patch=2, width=64, depth=4, heads=4, mlp=128, classes=10)
        x = torch.randn(1, 1, 8, 8)
    isf.attach(model, isf.Ising(delta=0.2), examples=1000)
    explain(model, x, samples=2)
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        explain(model, x, samples=50)
        taken.append(time.perf_counter() - began)
    return {"seconds, median": statistics.median(taken), "seconds, worst": max(taken), "limit": 3.0}


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
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--points", type=int, default=25)
    args = parser.parse_args()
    found, accuracy = zip(*(areas(seed, args) for seed in range(args.seeds)), strict=True)
    timing = seconds_of_one_image()
    rows = []
    for name in dict.fromkeys(name for name, *_ in found[0]):
        row = {"order": name}
        for word in ("mean", "black"):
            for kind in ("deletion", "insertion"):
                values = [float(one[name, word, kind].mean()) for one in found]
                row |= {f"{kind}, {word}": statistics.fmean(values), f"sd, {kind}, {word}": statistics.stdev(values)}
        for other in ("random", "raw attention"):
            worse = [one[name, "mean", "deletion"] > one[other, "mean", "deletion"] for one in found]
            row[f"images worse than {other}"] = statistics.fmean(float(one.double().mean()) for one in worse)
        rows.append(row)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "runs", "data_dir")}
    report("explain, one image, T = 50, width 64, depth 4", [timing], None)
    report(
        f"Fashion-MNIST, area under the class's probability, {args.images} images, mean over {args.seeds} seeds", rows,
        args.out, settings=settings, network=NETWORK, accuracy=list(accuracy), explain_one_image=timing,
    )  # fmt: skip


if __name__ == "__main__":
    main()
