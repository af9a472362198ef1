"""Try images on a run in the browser: pick, draw or upload one, turn, blur or cover it, and watch the answer move."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from ..compress import open_run
from ..explore import Explorer, ExploreServer, pools_of
from ..train import find_device
from .common import DATA_HELP, add_data_arguments, count, folder_name, print_json, read_data, seed
from .progress import transfers

USAGE = "RUN [options]"
EXAMPLES = """examples:
  isingformer explore runs/a
  isingformer explore runs/a --port 8080 --samples 500 --open
  isingformer explore runs/mnist --data fashion-mnist
"""
MOST_PORT = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `explore`."""
    parser.add_argument(
        "run", type=folder_name, metavar="RUN", help="a folder that `isingformer train` or `compress` wrote"
    )
    parser.add_argument("--data", metavar="NAME|PATH", help=f"pick from these test images: {DATA_HELP} (the run's own "
                        "validation and test images)")  # fmt: skip
    add_data_arguments(parser)
    parser.add_argument("--samples", type=count, default=200, metavar="T", help="the most passes, each a network drawn "
                        "anew, that the page may ask for (200)")  # fmt: skip
    parser.add_argument("--level", type=float, default=0.9, metavar="X", help="of the credible intervals (0.9)")
    parser.add_argument("--port", type=port, default=0, metavar="N", help="of 127.0.0.1; 0 is any that is free (0)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the drawn networks (0)")
    parser.add_argument("--json", action="store_true", help="print where the page is as JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    opened = open_run(args.run, device=find_device(args.device))
    about = opened.about["data"]
    if args.data is not None:
        # Sizes are fitted anyway; a folder may hold images of all sizes, which only its reader can fit.
        fit = {"resize": about["size"][0], "channels": about["channels"]} if Path(args.data).is_dir() else {}
        pools = pools_of(opened, read_data(args.data, args, **fit))
    else:
        with transfers() as bar:
            if about["origin"] is not None:
                opened.data(args.data_dir, download=not args.offline, progress=bar)
        pools = pools_of(opened, data_dir=args.data_dir)
    explorer = Explorer(opened, pools, most=args.samples, level=args.level, seed=args.seed)
    with ExploreServer(explorer, args.port) as server:
        if args.json:
            print_json({"run": str(opened.folder), "url": server.url, "samples": args.samples, "level": args.level})
        else:
            print(f"{opened.folder} is at {server.url} (Ctrl-C ends it)")
        sys.stdout.flush()  # whoever started this may be waiting to read where the page is
        if args.open:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:  # the way to end it
            if not args.json:
                print("\nended")
    return 0


def port(text: str) -> int:
    """A port, or 0."""
    found = seed(text)
    if found > MOST_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to {MOST_PORT}, got {text!r}")
    return found
