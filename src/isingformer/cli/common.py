"""What the commands share: a parser with one-line errors, data arguments, number types."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from ..data import Dataset, load_data

DATA_HELP = "digits, mnist, fashion-mnist, cifar10, cifar100, a folder with one sub-folder a class, or an .npz"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say it in one line and leave with code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the named datasets are, and whether they may be downloaded."""
    parser.add_argument("--data-dir", type=folder_name, metavar="DIR", help="where the datasets are or go "
                        "(default: $ISINGFORMER_DATA, else ~/.cache/isingformer)")  # fmt: skip
    parser.add_argument("--offline", action="store_true", help="never download")


def read_data(
    source: str, args: argparse.Namespace, *, resize: int | None = None, channels: int | None = None
) -> Dataset:
    """A dataset as the arguments say, with a bar for what takes long."""
    from .progress import transfers

    with transfers(shown=not getattr(args, "quiet", False)) as bar:
        return load_data(
            source, data_dir=args.data_dir, download=not args.offline, resize=resize, channels=channels, progress=bar
        )


def count(text: str) -> int:
    """A number of things, at least one."""
    return _whole(text, least=1)


def none_or_more(text: str) -> int:
    """A number of things, of which there may be none."""
    return _whole(text, least=0)


def seed(text: str) -> int:
    """A seed that torch takes."""
    return _whole(text, least=0)


def _whole(text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value < 2**62:
        most = ", below 2^62" if value >= 2**62 else ""
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on{most}, got {text!r}")
    return value


def folder_name(text: str) -> str:
    """A folder's name; an empty one, such as an unset variable gives, would be this folder or a default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the name of a folder, got an empty one")
    return text


def image_name(text: str) -> str:
    """The name of an image or of a folder of them; an empty one would be every image below this folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the name of an image or of a folder, got an empty one")
    return text


def share(text: str) -> float:
    """A number between 0 and 1, neither of them."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    text = json.dumps(value, indent=2, allow_nan=False)
    with printing():
        print(text)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Inside, what stdout cannot take, more than is held back until the end, is said to be the output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"cannot write the output: {error.strerror}") from None
