"""The command line: arguments to calls, nothing else. One file a command, each with `add_arguments` and `run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .._version import __version__
from . import compress, data, evaluate, explain, explore, predict, report, study, train
from .common import Parser

COMMANDS = {
    "data": data,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "compress": compress,
    "explain": explain,
    "explore": explore,
    "study": study,
    "report": report,
}
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
        command.set_defaults(parser=command)
        module.add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Bad input is one line on stderr and code 2."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    name = "isingformer"
    try:
        try:
            args, unknown = build_parser().parse_known_args(given)
            name = f"isingformer {args.command}"
            if unknown:
                args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            args.given = given
            return COMMANDS[args.command].run(args)
        finally:
            flush_output()
    except BrokenPipeError:  # whoever read our output has enough of it
        return 0
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, ImportError, ArithmeticError, RuntimeError, MemoryError) as error:
        if os.environ.get(DEBUG):
            raise
        said = in_one_line(error).removeprefix(f"{name.rpartition(' ')[2]}: ")
        print(f"{name}: error: {said}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, ValueError | OSError | ImportError) else FAILED


def flush_output() -> None:
    """Send out what was printed, while an error of that can be told: at its exit Python would only complain."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still waiting
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(f"cannot write the output: {error.strerror}") from None


def in_one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
