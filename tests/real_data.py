"""Where the four published data sets are, for the tests that read them."""

import os
from pathlib import Path

import pytest

FOLDERS = ("mnist", "fashion-mnist", "cifar-10-batches-bin", "cifar-100-binary")


def real_data_folder():
    """The folder that ISINGFORMER_DATA names; without it the test is skipped."""
    folder = os.environ.get("ISINGFORMER_DATA")
    if not folder:
        pytest.skip(f"set ISINGFORMER_DATA to a folder with {', '.join(FOLDERS)}")
    missing = [name for name in FOLDERS if not (Path(folder) / name).is_dir()]
    assert not missing, f"ISINGFORMER_DATA={folder} lacks {', '.join(missing)}"
    return Path(folder)
