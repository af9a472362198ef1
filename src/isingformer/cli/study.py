"""Run a study: a grid of trainings with its tables, figures and report; the same command again goes on."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import time
from collections.abc import Callable

from ..data import SOURCES, fetch
from ..study import Outcome, Shard, Store, parse_shard, read_plan, run_study, write_results
from .common import add_data_arguments, count, folder_name, print_json
from .progress import transfers

USAGE = "quick|paper|FILE.toml [--out FOLDER] [options]"
EXAMPLES = """examples:
  isingformer study quick --out studies/quick         digits, all methods, minutes on a CPU
  isingformer study paper --out studies/paper         the paper's 720 trainings, on a GPU
  isingformer study paper --out studies/paper --shard 2/4    the second quarter, on another machine
  isingformer study paper --out studies/paper --ray auto     on the machines of a Ray cluster
  isingformer study mine.toml                         your own data and grid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `study`."""
    parser.add_argument("plan", metavar="PLAN", help="quick, paper, or a .toml file that describes a grid")
    parser.add_argument("--out", type=folder_name, metavar="FOLDER", help="the study's folder (studies/NAME)")
    add_data_arguments(parser)
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts of the grid (1/1)")
    parser.add_argument(
        "--datasets", nargs="+", default=(), metavar="NAME", help="these of the plan alone; the others can follow"
    )
    parser.add_argument("--methods", nargs="+", default=(), metavar="NAME", help="likewise")
    parser.add_argument("--sizes", nargs="+", default=(), type=count, metavar="N", help="likewise")
    parser.add_argument("--rates", nargs="+", default=(), type=float, metavar="RATE", help="likewise")
    parser.add_argument("--replicas", type=count, metavar="N",
                        help="the first N of every cell; the others can follow")  # fmt: skip
    parser.add_argument("--jobs", type=count, metavar="N",
                        help="processes side by side (one on a GPU, one a core on a CPU)")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--ray", metavar="ADDRESS",
                        help="on a Ray cluster: auto, local (started here), HOST:PORT, ray://HOST:PORT")  # fmt: skip
    parser.add_argument("--gpus-per-task", type=float, metavar="SHARE",
                        help="with --ray, of a GPU, from 0 to 1 (1 where there are GPUs)")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(args: argparse.Namespace) -> int:
    """Run what is left of it, then write the report."""
    plan = read_plan(args.plan)
    i, n, *_ = parse_shard(args.shard)
    parts = (tuple(args.datasets), tuple(args.methods), tuple(args.sizes), tuple(args.rates))
    shard = Shard(i, n, *parts, replicas=args.replicas).checked(plan)
    runner = _runner(args)
    folder = args.out or f"studies/{plan.name}"
    command = shlex.join(["isingformer", *args.given])
    started = time.monotonic()
    if not args.quiet:
        number = len(plan.cells())
        cells = f"{number} cell{'s' if number > 1 else ''} of {plan.replicas}"
        print(f"{plan.name}: {plan.trainings} trainings in {cells}, into {folder}", file=sys.stderr)
    if not args.offline:
        with transfers(shown=not args.quiet) as bar:
            needed = {cell.dataset for cell in plan.cells() if shard.has(cell)}
            for data in plan.datasets:
                if data.source in SOURCES and data.label in needed:
                    fetch(data.source, args.data_dir, bar)
    outcome = runner(
        plan, folder, device=args.device, shard=shard, jobs=args.jobs, data_dir=args.data_dir,
        download=not args.offline, progress=not args.quiet, command=command,
    )  # fmt: skip
    for line in (*outcome.said, *outcome.failed):
        print(line, file=sys.stderr)
    report = write_results(Store(folder), data_dir=args.data_dir).report if Store(folder).records() else None
    if args.json:
        about = {"study": folder, "done": outcome.done, "total": outcome.total, "failed": outcome.failed}
        print_json({**about, "report": None if report is None else str(report)})
    else:
        said = "there is nothing to report yet" if report is None else f"the report is {report}"
        print(f"{outcome.done} of {outcome.total} trainings done, {time.monotonic() - started:.0f} s; {said}")
    return 1 if outcome.failed else 0


def _runner(args: argparse.Namespace) -> Callable[..., Outcome]:
    """What trains: this machine, or a Ray cluster."""
    if args.ray is None:
        if args.gpus_per_task is not None:
            raise ValueError("--gpus-per-task is a share that Ray deals out; give --ray ADDRESS too")
        return run_study
    from ..integrations.ray import check, run_on_ray

    check(args.ray, args.device, args.gpus_per_task, args.jobs)
    return functools.partial(run_on_ray, address=args.ray, gpus_per_task=args.gpus_per_task)
