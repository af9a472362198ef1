"""Score a run on test images: accuracy, likelihood, calibration, and whether its uncertainty knows its errors."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..compress import open_run
from ..data import Dataset
from ..metrics import Scores
from ..predict import LEAST_TEMPERATURE, MOST_TEMPERATURE
from ..train import Evaluation, Run, find_device
from .common import DATA_HELP, add_data_arguments, count, folder_name, print_json, read_data, seed
from .progress import transfers

USAGE = "RUN [options]"
EXAMPLES = """examples:
  isingformer evaluate runs/a
  isingformer evaluate runs/a --temperature --json
  isingformer evaluate runs/mnist --ood fashion-mnist --test-size 5000
"""
ROWS = (
    ("accuracy", "accuracy"),
    ("recall (one-vs-all, mean over classes)", "recall"),
    ("precision", "precision"),
    ("F1", "f1"),
    ("false-positive rate", "false_positive_rate"),
    ("NLL", "nll"),
    ("Brier", "brier"),
    ("ECE (top label, 15 bins)", "ece"),
    ("entropy of right predictions (nats)", "entropy_right"),
    ("entropy of wrong predictions", "entropy_wrong"),
    ("mutual information of right predictions", "epistemic_right"),
    ("mutual information of wrong predictions", "epistemic_wrong"),
    ("AUROC of entropy for errors", "error_auroc"),
    ("AUROC of mutual information for errors", "error_auroc_epistemic"),
    ("area under risk-coverage, by entropy", "aurc"),
    ("the same, by mutual information", "aurc_epistemic"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `evaluate`."""
    parser.add_argument("run", type=folder_name, metavar="RUN", help="a folder that `isingformer train` wrote")
    parser.add_argument("--data", metavar="NAME|PATH", help=f"whose test images: {DATA_HELP} (those of the run)")
    add_data_arguments(parser)
    parser.add_argument("--samples", type=count, default=50, metavar="T", help="passes, each a network drawn anew (50)")
    parser.add_argument(
        "--test-size", type=count, metavar="N", help="a sample of N test images, the same for every run"
    )
    parser.add_argument("--validation", action="store_true",
                        help="score the images held out of training instead: choose settings by these")  # fmt: skip
    parser.add_argument("--temperature", action="store_true",
                        help="fit a temperature on the run's validation images and score with it")  # fmt: skip
    parser.add_argument(
        "--ood", metavar="NAME|PATH", help="how well the uncertainty tells these data's test images apart"
    )
    parser.add_argument("--resize", action="store_true", help="fit other data to the size and colours the run reads")
    parser.add_argument("--reliability", action="store_true", help="print the reliability table too")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the drawn networks (0)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Evaluate."""
    opened = open_run(args.run, device=find_device(args.device))
    other, outside = (
        read_other(source, args, opened) if source is not None else None for source in (args.data, args.ood)
    )
    if other is None or args.validation or args.temperature:
        with transfers() as bar:
            opened.data(args.data_dir, download=not args.offline, progress=bar)
    found = opened.evaluate(
        other, on="validation" if args.validation else "test", samples=args.samples, test_size=args.test_size,
        temperature=args.temperature, outside=outside, resize=args.resize, seed=args.seed, data_dir=args.data_dir,
    )  # fmt: skip
    if args.json:
        print_json({"run": str(opened.folder), **found.as_dict()})
    else:
        print(table(found))
        if args.reliability:
            print(reliability_table(found.scores))
    return 0


def read_other(source: str, args: argparse.Namespace, run: Run) -> Dataset:
    """Data that are not the run's own. A folder may hold images of all sizes, so --resize is for its reader."""
    if not (args.resize and Path(source).is_dir()):
        return read_data(source, args)
    about = run.about["data"]
    return read_data(source, args, resize=about["size"][0], channels=about["channels"])


def table(found: Evaluation) -> str:
    """The scores, one a line; beside them those before tempering, where a temperature was fitted."""
    lines = [f"{found.images} {found.on} images of {found.data}, {found.samples} passes"]
    if found.temperature is not None:
        lines.append(f"temperature {found.temperature:.3f}, fitted on validation data; in brackets without it")
        if not 1.01 * LEAST_TEMPERATURE < found.temperature < 0.99 * MOST_TEMPERATURE:
            lines.append("  (an end of the range: the validation images are too few or too easy to set it)")
    before = found.untempered.as_dict() if found.untempered is not None else None
    now = found.scores.as_dict()
    for label, key in ROWS:
        line = f"  {label:<42} {number(now[key])}"
        lines.append(line if before is None else f"{line}  ({number(before[key])})")
    if found.outside is not None:
        other = found.outside
        lines.append(f"  against {other.images} images of {other.data}:")
        lines.append(f"  {'AUROC of entropy':<42} {number(other.auroc_entropy)}")
        lines.append(f"  {'AUROC of mutual information':<42} {number(other.auroc_epistemic)}")
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Four decimals; a dash where the score is not defined."""
    return "     -" if value is None else f"{value:.4f}"


def reliability_table(scores: Scores) -> str:
    """Confidence against accuracy, a line a bin that holds anything."""
    lines = ["", "  confidence      images  mean confidence  accuracy"]
    for row in scores.reliability:
        if row.count:
            lines.append(
                f"  {row.lower:.3f} to {row.upper:.3f} {row.count:7d}  {row.confidence:15.4f}  {row.accuracy:8.4f}"
            )
    return "\n".join(lines)
