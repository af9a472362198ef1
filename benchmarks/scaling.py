"""Time per weight of a sweep and of a draw, from 1 million to 100 million weights: linear scaling means it stays flat.

    python benchmarks/scaling.py --out results/scaling-cpu.json
    python benchmarks/scaling.py --device cuda --out results/scaling-h200.json

Each network is a ViT; the sweep runs through all its layers with evidence and coupling, a draw gives every layer its
masked, noisy weight. The growth of a row is its time per weight over that of the smallest network in the same run.
"""

import argparse
import statistics
import time

import torch
from common import report

import isingformer as isf

SIZES = {
    "1M": {"width": 128, "depth": 7, "heads": 4, "mlp": 256},
    "3M": {"width": 192, "depth": 7, "heads": 6, "mlp": 768},
    "10M": {"width": 384, "depth": 6, "heads": 6, "mlp": 1536},
    "30M": {"width": 512, "depth": 10, "heads": 8, "mlp": 2048},
    "100M": {"width": 768, "depth": 14, "heads": 12, "mlp": 3072},
}


def seconds(work, device, repeats):
    """Median time of a call, the device's own work included."""
    times = []
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    for size, shape in SIZES.items():
        model = isf.ViT(image_size=32, channels=3, patch=4, classes=10, **shape).to(args.device)
        method = isf.attach(model, isf.Ising(warmup=0), examples=50_000)
        parts = method.parts
        method.rule.average.average.copy_(torch.rand_like(method.rule.average.average))
        method.rule.average.weight.fill_(1.0)
        weights = sum(part.drop.numel() for part in parts.posteriors.values())

        def draw(parts=parts):
            for name, part in parts.posteriors.items():
                part.draw(parts.mean(name))

        rows.append(
            {
                "network": size,
                "weights": weights,
                "sweep ns/weight": 1e9 * seconds(method.rule.sweep, args.device, args.repeats) / weights,
                "draw ns/weight": 1e9 * seconds(draw, args.device, args.repeats) / weights,
            }
        )
        rows[-1]["sweep growth"] = rows[-1]["sweep ns/weight"] / rows[0]["sweep ns/weight"]
        rows[-1]["draw growth"] = rows[-1]["draw ns/weight"] / rows[0]["draw ns/weight"]
        del model, method, parts, draw
    report("Time per weight", rows, args.out)


if __name__ == "__main__":
    main()
