"""The command line: arguments to calls, nothing else. One file a command, each with `add_arguments` and `run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .._version import __version__
from . import data, evaluate, predict, train
from .common import Parser

COMMANDS = {"data": data, "train": train, "evaluate": evaluate, "predict": predict}
BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130
DEBUG = "ISINGFORMER_DEBUG"


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="isingformer",
        description="Train small, calibrated vision transformers with an Ising posterior over their connections.",
        epilog=f"Each command has --help with an example. {DEBUG}=1 shows where an error came from.",
    )
    parser.add_argument("--version", action="version", version=f"isingformer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, module in COMMANDS.items():
        about = (module.__doc__ or "").split("\n", 1)
        command = commands.add_parser(name, help=about[0], description=about[0], epilog=module.EXAMPLES)
        command.usage = f"isingformer {name} {module.USAGE}"
        module.add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Bad input is one line on stderr and code 2."""
    args = build_parser().parse_args(arguments)
    command = COMMANDS[args.command]
    try:
        return command.run(args)
    except BrokenPipeError:  # whoever read our output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"isingformer {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if os.environ.get(DEBUG):
            raise
        print(f"isingformer {args.command}: error: {in_one_line(error)}", file=sys.stderr)
        return FAILED if isinstance(error, ArithmeticError) else BAD_INPUT


def in_one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
