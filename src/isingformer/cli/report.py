"""Write the tables, figures and report of a study anew."""

from __future__ import annotations

import argparse

from ..study import Store, write_results
from .common import folder_name, print_json

USAGE = "STUDY [options]"
EXAMPLES = """examples:
  isingformer report studies/quick
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `report`."""
    parser.add_argument(
        "study", type=folder_name, metavar="STUDY", help="a folder that `isingformer study` wrote, finished or not"
    )
    parser.add_argument("--data-dir", type=folder_name, metavar="DIR", help="where the datasets are, for sample images")
    parser.add_argument("--json", action="store_true", help="print the paths of all that was written as JSON")


def run(args: argparse.Namespace) -> int:
    """Write them."""
    written = write_results(Store(args.study), data_dir=args.data_dir)
    if args.json:
        print_json({
            "report": str(written.report), "tables": [str(file) for file in written.tables],
            "figures": [str(file) for file in written.figures],
        })  # fmt: skip
    else:
        print(written.report)
    return 0
