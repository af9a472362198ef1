"""Make a trained run smaller and faster, on its own data, into a folder; say what that costs."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import get_args

from .._files import ready_folder
from ..compress import Score, compress_run, open_run
from ..compress.choose import STRUCTURES
from ..compress.export import Format
from ..train import find_device
from .common import add_data_arguments, count, folder_name, none_or_more, print_json, seed
from .progress import transfers

USAGE = "RUN [--weights X | --macs X | --latency-ms X] --out FOLDER [options]"
EXAMPLES = """examples:
  isingformer compress runs/a --weights 0.3 --export onnx --out runs/a-small
  isingformer compress runs/a --macs 0.3 --recover 5 --distil --out runs/a-third
  isingformer compress runs/a --latency-ms 2 --batch 64 --bayesian --out runs/a-fast
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `compress`."""
    parser.add_argument("run", type=folder_name, metavar="RUN", help="a folder that `isingformer train` wrote")
    add_data_arguments(parser)
    parser.add_argument(
        "--out", required=True, type=folder_name, metavar="FOLDER", help="where the smaller network goes"
    )
    aim = parser.add_argument_group("target (one; without any, what the posterior holds for dropped goes)")
    one = aim.add_mutually_exclusive_group()
    one.add_argument("--weights", type=float, metavar="X", help="share of the weights to keep, in (0, 1)")
    one.add_argument("--macs", type=float, metavar="X", help="share of the multiply-adds to keep, in (0, 1)")
    one.add_argument("--latency-ms", type=float, metavar="X", help="milliseconds a pass may take on this machine")
    aim.add_argument("--batch", type=count, default=1, metavar="N", help="images a timed pass (1)")
    what = parser.add_argument_group("what goes, and what stays")
    what.add_argument("--score", choices=get_args(Score), metavar="NAME",
                      help=f"what a node is worth: {', '.join(get_args(Score))} (gate)")  # fmt: skip
    what.add_argument("--kinds", type=kinds, metavar="NAME[,NAME]",
                      help=f"what may go: {', '.join(STRUCTURES)} "
                      "(units,slices,heads, for a latency layers too; without a target units,channels)")  # fmt: skip
    what.add_argument("--bayesian", action="store_true", help="keep the posterior of what remains (a plain network)")
    after = parser.add_argument_group("afterwards")
    after.add_argument("--recover", type=none_or_more, default=0, metavar="EPOCHS",
                       help="fine-tune on the run's training images, 0: not (0)")  # fmt: skip
    after.add_argument("--distil", action="store_true", help="learn what the full posterior predicts too")
    after.add_argument("--export", choices=get_args(Format), metavar="NAME",
                       help=f"write the network for other programs too: {' or '.join(get_args(Format))}")  # fmt: skip
    running = parser.add_argument_group("running")
    running.add_argument("--samples", type=count, default=50, metavar="T",
                         help="passes of a network with a posterior, and networks of its export (50)")  # fmt: skip
    running.add_argument("--test-size", type=count, metavar="N", help="score a sample of N test images (all)")
    running.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    running.add_argument("--seed", type=seed, default=0, metavar="N", help="of sample, order and drawn networks (0)")
    running.add_argument("--overwrite", action="store_true", help="replace the compressed network that --out holds")
    running.add_argument("--json", action="store_true", help="print everything as JSON")


def kinds(text: str) -> tuple[str, ...]:
    """What may go, between commas; at least one."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found or not set(found) <= set(STRUCTURES):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(STRUCTURES)}, with commas between, got {text!r}")
    return found


def run(args: argparse.Namespace) -> int:
    """Compress."""
    opened = open_run(args.run, device=find_device(args.device))
    with transfers() as bar:
        opened.data(args.data_dir, download=not args.offline, progress=bar)
    with ready_folder(Path(args.out)) as out:
        found = compress_run(
            opened, out, weights=args.weights, macs=args.macs, latency_ms=args.latency_ms, structures=args.kinds,
            score=args.score, bayesian=args.bayesian, batch=args.batch, epochs=args.recover, distil=args.distil,
            export_as=args.export, samples=args.samples, test_size=args.test_size, seed=args.seed,
            overwrite=args.overwrite, command=shlex.join(["isingformer", *args.given]),
        )  # fmt: skip
    for note in found.notes:
        print(f"isingformer compress: note: {note}", file=sys.stderr)
    if args.json:
        print_json(found.as_dict())
        return 0
    print(found.report)
    print(f"written to {found.run.folder}")
    if found.exported is not None:
        print(f"for other programs: {found.exported}")
    return 0
