"""How far the paper's recursion (`lm`) is from the exact Gauss-Newton diagonal, layer by layer.

    python benchmarks/lm_error.py --out results/lm-error.json

A ViT (width 8, depth 2, 2 heads, MLP 16, 5 tokens, 3 classes) with class and with mean pooling, and an MLP 10-16-16-4
with GELU; random weights of unit gain, softmax, float64. For each seed the median of lm / exact over a layer's weights
and Spearman's rank correlation; printed are the median over seeds, with the smallest and the largest ratio.
"""

import argparse
import statistics

import torch
from common import report
from scipy.stats import spearmanr
from torch import nn

import isingformer as isf
from isingformer.curvature.lm import lm_diagonal
from isingformer.curvature.reference import gauss_newton_diagonal

SHAPE = {"image_size": 4, "channels": 1, "patch": 2, "width": 8, "depth": 2, "heads": 2, "mlp": 16, "classes": 3}
NETWORKS = {
    "ViT, class token": (lambda: isf.ViT(**SHAPE), (12, 1, 4, 4)),
    "ViT, mean pooling": (lambda: isf.ViT(**SHAPE, pool="mean"), (12, 1, 4, 4)),
    "MLP": (
        lambda: nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)),
        (20, 10),
    ),
}


def unit_gain(model, generator):
    """Matrices N(0, 1 / fan_in), norm scales around 1, everything else of size 1/2."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.5 * noise)
    return model


def compared(build, shape, seed):
    """By layer: (median of lm / exact, rank correlation)."""
    generator = torch.Generator().manual_seed(seed)
    model = unit_gain(build().double(), generator)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    leaves = {name: layer.weight for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    lm = lm_diagonal(lambda: model(x), leaves, "softmax")
    exact = gauss_newton_diagonal(lambda: model(x), leaves, "softmax")
    return {
        name: (
            float((lm[name] / exact[name]).median()),
            float(spearmanr(lm[name].flatten(), exact[name].flatten()).statistic),
        )
        for name in leaves
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for network, (build, shape) in NETWORKS.items():
        runs = [compared(build, shape, seed) for seed in range(args.seeds)]
        for name in runs[0]:
            ratios, ranks = zip(*(run[name] for run in runs), strict=True)
            rows.append(
                {
                    "network": network,
                    "layer": name,
                    "ratio": statistics.median(ratios),
                    "smallest": min(ratios),
                    "largest": max(ratios),
                    "rank": statistics.median(ranks),
                }
            )
    report("lm over the exact Gauss-Newton diagonal", rows, args.out, seeds=args.seeds)


if __name__ == "__main__":
    main()
