"""Say what is on images, how probable that is, its credible interval, and what kind of doubt is left."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

from ..compress import open_run
from ..data import find_images
from ..data._reading import shown
from ..predict import Prediction
from ..train import find_device
from .common import count, folder_name, image_name, print_json, printing, seed, share

USAGE = "RUN IMAGE [IMAGE ...] [options]"
EXAMPLES = """examples:
  isingformer predict runs/a image.png more-images/
  isingformer predict runs/a photo.jpg --resize --json
  isingformer predict runs/a images/ --csv > predictions.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `predict`."""
    parser.add_argument("run", type=folder_name, metavar="RUN", help="a folder that `isingformer train` wrote")
    parser.add_argument("images", nargs="+", type=image_name, metavar="IMAGE", help="image files, or folders of them")
    parser.add_argument("--samples", type=count, default=50, metavar="T", help="passes, each a network drawn anew (50)")
    parser.add_argument("--level", type=share, default=0.9, metavar="X", help="of the credible intervals (0.9)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="as `evaluate --temperature` printed it (1)"
    )
    parser.add_argument("--resize", action="store_true", help="fit images to the size and colours the run reads")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the drawn networks (0)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything, all classes included, as JSON")
    form.add_argument("--csv", action="store_true", help="print a comma-separated table")


def run(args: argparse.Namespace) -> int:
    """Predict."""
    opened = open_run(args.run, device=find_device(args.device))
    files = find_images([Path(name) for name in args.images])
    found = (
        opened.predict(files, samples=args.samples, seed=args.seed, resize=args.resize)
        .to("cpu")
        .tempered(args.temperature)
    )
    rows = table(files, opened.classes, found, args.level)
    if args.json:
        names = opened.classes
        for row, probs in zip(rows, found.probs.tolist(), strict=True):
            row["probabilities"] = dict(zip(names, probs, strict=True))
        asked = {"samples": len(found.samples), "level": args.level, "temperature": args.temperature, "seed": args.seed}
        print_json({"run": str(opened.folder), **asked, "images": rows})
    elif args.csv:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        with printing():
            writer.writeheader()
            writer.writerows(rows)
    else:
        with printing():
            print(in_words(rows, args.level))
    return 0


def table(files: list[Path], names: tuple[str, ...], found: Prediction, level: float) -> list[dict[str, Any]]:
    """One row an image."""
    low, high = found.interval(level)
    probs, entropy, aleatoric, epistemic = found.probs, found.entropy, found.aleatoric, found.epistemic
    rows = []
    for i, best in enumerate(found.classes.tolist()):
        rows.append({
            "file": str(files[i]),
            "class": names[best],
            "probability": float(probs[i, best]),
            "low": float(low[i, best]),
            "high": float(high[i, best]),
            "entropy": float(entropy[i]),
            "aleatoric": float(aleatoric[i]),
            "epistemic": float(epistemic[i]),
        })  # fmt: skip
    return rows


def in_words(rows: list[dict[str, Any]], level: float) -> str:
    """The table for people: uncertainty in nats."""
    files = [shown(row["file"]) for row in rows]
    classes = [row["class"] for row in rows]
    wide, name = max(map(len, [*files, "image"])), max(map(len, [*classes, "class"]))
    interval = f"{level:.0%} interval"
    lines = [f"{'image':<{wide}}  {'class':<{name}}  probability  {interval:<14}  entropy = aleatoric + epistemic"]
    for file, row in zip(files, rows, strict=True):
        lines.append(
            f"{file:<{wide}}  {row['class']:<{name}}  {row['probability']:11.3f}  {row['low']:.3f} to "
            f"{row['high']:.3f}  {row['entropy']:7.3f} = {row['aleatoric']:9.3f} + {row['epistemic']:.3f}"
        )
    return "\n".join(lines)
