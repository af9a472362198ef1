"""The command before its package is there: Ctrl-C while Python still loads torch ends in one line too."""

import sys


def main() -> int:
    """`isingformer.cli.main`, and its exit code where it could not even be loaded for an interruption."""
    try:
        from isingformer.cli import main as run
    except KeyboardInterrupt:
        print("isingformer: interrupted", file=sys.stderr)
        return 130
    return run()
