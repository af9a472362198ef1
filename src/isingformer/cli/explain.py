"""Show what a prediction hangs on: attention, relevance and the network, each with its uncertainty, on one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from .._files import ready_folder
from ..compress import CompactRun, open_run
from ..data import find_images
from ..data._reading import shown
from ..explain import Bottlenecks, Explanation, bottlenecks, explain
from ..methods import Ising
from ..train import Run, find_device
from .common import count, folder_name, image_name, print_json, seed, share

USAGE = "RUN IMAGE [IMAGE ...] --out FOLDER [options]"
EXAMPLES = """examples:
  isingformer explain runs/a image.png --out page/
  isingformer explain runs/a images/ --out page/ --target 7 --samples 100
"""
MOST_IMAGES = 32
"""On one page: for each, what every network does between all tokens is held."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `explain`."""
    parser.add_argument("run", type=folder_name, metavar="RUN", help="a folder that `isingformer train` wrote")
    parser.add_argument(
        "images", nargs="+", type=image_name, metavar="IMAGE", help="image files, or folders of them, at most 32 images"
    )
    parser.add_argument("--out", required=True, type=folder_name, metavar="FOLDER",
                        help="where index.html goes; one that is there is replaced")  # fmt: skip
    parser.add_argument("--target", metavar="CLASS", help="the class to trace back (the most probable of each image)")
    parser.add_argument("--samples", type=count, default=50, metavar="T", help="passes, each a network drawn anew (50)")
    parser.add_argument("--level", type=share, default=0.9, metavar="X", help="of the credible intervals (0.9)")
    parser.add_argument("--resize", action="store_true", help="fit images to the size and colours the run reads")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the drawn networks (0)")
    parser.add_argument("--json", action="store_true", help="print the numbers, and where the page is, as JSON")


def run(args: argparse.Namespace) -> int:
    """Explain."""
    opened = _opened(args.run, args.device)
    files = find_images([Path(name) for name in args.images])
    if len(files) > MOST_IMAGES:
        raise ValueError(f"{len(files)} images are too many for one page; expected at most {MOST_IMAGES}; name fewer")
    target = _class_number(opened, args.target)
    history = opened.q_history()
    images = opened.inputs(opened.read_images(files, resize=args.resize))
    with ready_folder(Path(args.out)) as out:
        found = explain(
            opened.model, images, samples=args.samples, target=target, level=args.level,
            generator=torch.Generator().manual_seed(args.seed),
        )  # fmt: skip
        page = found.write_page(
            out / "index.html", title=f"What {opened.folder.name} sees", classes=opened.classes,
            names=[shown(file.name) for file in files],
            bottlenecks=_bottlenecks(opened), history=history,
        )  # fmt: skip
    rows = [_row(opened, file, found, n) for n, file in enumerate(files)]
    if args.json:
        asked = {"samples": args.samples, "level": args.level, "seed": args.seed}
        print_json({"run": str(opened.folder), "page": str(page), **asked, "images": rows})
    else:
        for row in rows:
            print(in_words(row, sure=args.samples > 1))
        print(f"the page is {page}")
    return 0


def in_words(row: dict[str, Any], *, sure: bool) -> str:
    """One line an image; a single network is sure of nothing."""
    interval = f"{row['probability']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    surely = "surely " if sure else ""
    patches = f"{row['for']} of {len(row['relevance'])} patches {surely}for it, {row['against']} against"
    return f"{shown(row['file'])}: {row['class']} {interval}, {patches}"


def _opened(folder: str, device: str) -> Run:
    found = open_run(folder, device=find_device(device))
    if isinstance(found, CompactRun):
        raise ValueError(
            f"{folder} is compressed, and only a whole network can be traced back; give the run that it was made from, "
            f"or try it in `isingformer explore {folder}`"
        )
    return found


def _bottlenecks(opened: Run) -> Bottlenecks | None:
    """None where there are no neighbours, or where the other sweep does not settle, which is said."""
    if not isinstance(opened.method.method, Ising):
        return None
    try:
        return bottlenecks(opened.model)
    except ArithmeticError as error:
        print(f"the page has no table of bottlenecks: {error}", file=sys.stderr)
        return None


def _class_number(opened: Run, name: str | None) -> int | None:
    if name is None:
        return None
    if name not in opened.classes:
        some = ", ".join(opened.classes[:12]) + (", ..." if len(opened.classes) > 12 else "")
        raise ValueError(f"--target {name!r} is no class of {opened.folder}; expected one of {some}")
    return opened.classes.index(name)


def _row(opened: Run, file: Path, found: Explanation, n: int) -> dict[str, Any]:
    """What is told of an image: the traced class, and the relevance of its patches."""
    best = int(found.target[n])
    low, high = found.prediction.interval(found.level)
    regions = found.relevance.regions(found.level)[n]
    return {
        "file": str(file),
        "class": opened.classes[best],
        "probability": float(found.prediction.probs[n, best]),
        "low": float(low[n, best]),
        "high": float(high[n, best]),
        "for": int((regions > 0).sum()),
        "against": int((regions < 0).sum()),
        "relevance": found.relevance.patches.mean[n].flatten().tolist(),
    }
