"""List the datasets, fetch one, or say what a folder or file of data holds."""

from __future__ import annotations

import argparse
from typing import Any

from ..data import SOURCES, data_folder, describe, is_here
from .common import DATA_HELP, add_data_arguments, count, print_json, read_data

USAGE = "[NAME|PATH] [options]"
EXAMPLES = """examples:
  isingformer data                       which datasets there are, and which are on disk
  isingformer data fashion-mnist         fetch it if need be, and say what it holds
  isingformer data photos/ --resize 64   look at a folder of images
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `data`."""
    parser.add_argument("source", nargs="?", metavar="NAME|PATH", help=DATA_HELP)
    add_data_arguments(parser)
    parser.add_argument("--resize", type=count, metavar="N", help="scale and crop all images to N x N")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """List, or describe."""
    if args.source is None:
        rows = listing(args.data_dir)
        if args.json:
            print_json(rows)
        else:
            print("\n".join(f"{row['name']:<14} {row['classes']:3d} classes  {row['where']}" for row in rows))
        return 0
    about = describe(read_data(args.source, args, resize=args.resize))
    if args.json:
        print_json(about)
    else:
        print(in_words(about))
        if about["name"] in SOURCES:
            print(SOURCES[about["name"]].terms)
    return 0


def listing(data_dir: str | None) -> list[dict[str, Any]]:
    """Every dataset by name, and where it is or how it comes."""
    rows: list[dict[str, Any]] = [
        {"name": "digits", "classes": 10, "here": True, "where": "comes with scikit-learn", "terms": "BSD, UCI"}
    ]
    folder = data_folder(data_dir)
    for source in SOURCES.values():
        here = is_here(source, folder)
        where = f"in {folder}" if here else f"not here yet; `isingformer data {source.name}` fetches it"
        about = {"name": source.name, "classes": source.class_count, "here": here, "where": where}
        rows.append({**about, "terms": source.terms})
    return rows


def in_words(about: dict[str, Any]) -> str:
    """What a dataset holds, in a few lines."""
    lines = [
        f"{about['name']}: {about['train']} training and {about['test']} test images, {about['width']} x "
        f"{about['height']}, {about['channels']} channel{'s' if about['channels'] > 1 else ''}, {about['pixels']}",
        "mean " + ", ".join(f"{value:.2f}" for value in about["mean"])
        + "; sd " + ", ".join(f"{value:.2f}" for value in about["sd"]) + " (training images, by channel)",
    ]  # fmt: skip
    wide = max(map(len, about["classes"]))
    lines += [
        f"  {name:<{wide}}  {train:6d} training, {test:6d} test"
        for name, train, test in zip(about["classes"], about["train_counts"], about["test_counts"], strict=True)
    ]
    return "\n".join(lines)
