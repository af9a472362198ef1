"""What an explanation costs: one image with T = 50 on the network for digits (width 64, depth 4).

    python benchmarks/explain_time.py --out results/explain-time.json

A row a model and number of threads: the median and the worst of some repeats of `explain` in seconds by the clock, and
the median of the seconds that the processor worked for it, which other programs on a busy machine do not lengthen much.
`load` is how many programs wanted a processor in the minute before. "ours" is `ViT`, "transformers" a
`ViTForImageClassification` of the same size. Where transformers is not installed its rows are missing.
"""

import argparse
import os
import statistics
import time

import torch
from common import report

import isingformer as isf

SIZES = {"width": 64, "depth": 4, "heads": 4, "mlp": 128}
LIMIT = 3.0
"""Seconds that one image may take on two cores."""


def ours():
    """The network for digits."""
    return isf.ViT(image_size=8, channels=1, patch=2, classes=10, **SIZES)


def transformers_vit():
    """The same size from transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        hidden_size=SIZES["width"], num_hidden_layers=SIZES["depth"], num_attention_heads=SIZES["heads"],
        intermediate_size=SIZES["mlp"], image_size=8, patch_size=2, num_channels=1, num_labels=10,
    ))  # fmt: skip


def seconds(build, repeats):
    """Of `explain` for one image, by repeat: by the clock, and of the processor."""
    torch.manual_seed(0)
    model, x = build(), torch.randn(1, 1, 8, 8)
    isf.attach(model, isf.Ising(delta=0.2), examples=1000)
    isf.explain(model, x, samples=2)
    taken = []
    for _ in range(repeats):
        began, worked = time.perf_counter(), time.process_time()
        isf.explain(model, x, samples=50)
        taken.append((time.perf_counter() - began, time.process_time() - worked))
    return zip(*taken, strict=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    builds = {"ours": ours}
    try:
        import transformers  # noqa: F401

        builds["transformers"] = transformers_vit
    except ImportError:
        pass
    rows = []
    for name, build in builds.items():
        for threads in args.threads:
            torch.set_num_threads(threads)
            taken, worked = seconds(build, args.repeats)
            row = {"model": name, "threads": threads, "median": statistics.median(taken), "worst": max(taken)}
            rows.append({**row, "processor": statistics.median(worked)})
    settings = {"repeats": args.repeats, "samples": 50, "limit": LIMIT}
    report("Seconds of explain for one image, T = 50", rows, args.out, settings=settings, network=SIZES,
           load=os.getloadavg()[0])  # fmt: skip


if __name__ == "__main__":
    main()
