"""The evidence -N h m^2 / 2 against what really happens to the log-likelihood when a weight is set to zero.

    python benchmarks/evidence.py --out results/evidence.json

An MLP 64-10-10 and a ViT (width 8, depth 1) learn 200 of the bundled digits; then every weight is removed by itself, a
forward pass each. h is the exact Gauss-Newton diagonal, the exact Hessian diagonal, or the mean of squared per-example
gradients (the empirical Fisher, what `fisher` measures). Two numbers a layer, both means over seeds: Spearman's rank
correlation of estimate and truth, and the median of estimate / truth. CPU, float64, one thread.
"""

import argparse
import statistics

import torch
import torch.nn.functional as F
from common import report
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import nn

import isingformer as isf
from isingformer.curvature.reference import gauss_newton_diagonal, hessian_diagonal, squared_gradients
from isingformer.ising import evidence

EXAMPLES = 200
STEPS = 100
KINDS = ("gauss-newton", "hessian", "squared gradients")


def mlp():
    return nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10))


def vit():
    shape = {"image_size": 8, "channels": 1, "patch": 4, "width": 8, "depth": 1, "heads": 2, "mlp": 16, "classes": 10}
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), isf.ViT(**shape))


NETWORKS = {"MLP": mlp, "ViT": vit}


def digits(seed):
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    pick = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:EXAMPLES]
    return x[pick] / 16 - 0.3, y[pick]


def trained(build, seed, steps):
    x, y = digits(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x, y


@torch.no_grad()
def removed_one_by_one(model, name, x, y):
    """log-likelihood without each weight of a layer minus with all of them."""
    weight = model.get_parameter(f"{name}.weight")
    change = torch.empty_like(weight)
    whole = F.cross_entropy(model(x), y, reduction="sum")
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            kept = weight[row, column].item()
            weight[row, column] = 0
            change[row, column] = whole - F.cross_entropy(model(x), y, reduction="sum")
            weight[row, column] = kept
    return change


def agreement(build, seed, steps):
    """By layer and kind of h: (rank correlation, median of estimate / truth); and how well the model fits."""
    model, x, y = trained(build, seed, steps)
    leaves = {name: layer.weight for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    curvature = {
        "gauss-newton": gauss_newton_diagonal(lambda: model(x), leaves, "softmax"),
        "hessian": hessian_diagonal(lambda: F.cross_entropy(model(x), y), leaves),
        "squared gradients": squared_gradients(
            lambda n: F.cross_entropy(model(x[n : n + 1]), y[n : n + 1]), leaves, len(x)
        ),
    }
    found = {}
    for name, weight in leaves.items():
        true = removed_one_by_one(model, name, x, y)
        for kind, h in curvature.items():
            estimate = evidence(weight.detach(), h[name], examples=len(x))
            rank = float(spearmanr(estimate.flatten(), true.flatten()).statistic)
            found[name, kind] = rank, float((estimate / true).median())
    with torch.no_grad():
        fit = {
            "loss": float(F.cross_entropy(model(x), y)),
            "accuracy": float((model(x).argmax(-1) == y).double().mean()),
        }
    return found, fit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, course = [], []
    for network, build in NETWORKS.items():
        for steps in (STEPS // 4, STEPS, 4 * STEPS):
            runs = [agreement(build, seed, steps) for seed in range(args.seeds)]
            names = list(dict.fromkeys(name for name, _ in runs[0][0]))

            def mean(name, kind, which, runs=runs):
                return statistics.fmean(found[name, kind][which] for found, _ in runs)

            fit = {key: statistics.fmean(fit[key] for _, fit in runs) for key in ("loss", "accuracy")}
            course.append(
                {"network": network, "steps": steps, **fit}
                | {f"{kind}, rank": statistics.fmean(mean(name, kind, 0) for name in names) for kind in KINDS}
                | {f"{kind}, ratio": statistics.fmean(mean(name, kind, 1) for name in names) for kind in KINDS}
            )
            if steps == STEPS:
                rows += [
                    {"network": network, "layer": name.removeprefix("1.") if network == "ViT" else name}
                    | {f"{kind}, rank": mean(name, kind, 0) for kind in KINDS}
                    | {f"{kind}, ratio": mean(name, kind, 1) for kind in KINDS}
                    for name in names
                ]
    report("Over training: mean over layers", course, None)
    settings = {"examples": EXAMPLES, "steps": STEPS, "seeds": args.seeds, "optimizer": "AdamW, lr 1e-2"}
    report("Evidence against removing weights one by one", rows, args.out, **settings, course=course)


if __name__ == "__main__":
    main()
