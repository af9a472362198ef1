"""The command line: arguments to calls, nothing else. One file a command, each with `add_arguments` and `run`."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from .._version import __version__
from . import compress, data, evaluate, explain, explore, predict, report, study, train
from .common import Parser, printing

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
INTERRUPTED, TERMINATED = 130, 143
DEBUG = "ISINGFORMER_DEBUG"


class Terminated(BaseException):
    """SIGTERM has come: raised where the program is, so that what it began is cleaned up."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Inside, a first SIGTERM raises `Terminated`, unless this is no main thread or someone else handles it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def act(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up is not to be torn apart by the next one
        raise Terminated

    signal.signal(signal.SIGTERM, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _every_name_prints() -> Iterator[None]:
    """Inside, what stdout cannot encode, such as a file's name that is not UTF-8, is printed as an escape."""
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper) or out.errors != "strict":
        yield
        return
    out.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed: `flush_output` says so
            out.reconfigure(errors="strict")


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
            with _sigterm_raises(), _every_name_prints():
                return COMMANDS[args.command].run(args)
        finally:
            flush_output()
    except BrokenPipeError:  # whoever read our output has enough of it
        return 0
    except Terminated:
        print(f"{name}: terminated", file=sys.stderr)
        return TERMINATED
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
        with printing():
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still waiting
        raise


def in_one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
