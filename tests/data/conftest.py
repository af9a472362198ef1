"""What the tests of the data room share."""

import os
from pathlib import Path

import pytest

FOLDERS = ("mnist", "fashion-mnist", "cifar-10-batches-bin", "cifar-100-binary")


@pytest.fixture(scope="session")
def real_data():
    """The folder that holds the four published data sets, where there is one."""
    folder = os.environ.get("ISINGFORMER_DATA")
    if not folder:
        pytest.skip(f"set ISINGFORMER_DATA to a folder with {', '.join(FOLDERS)}")
    missing = [name for name in FOLDERS if not (Path(folder) / name).is_dir()]
    assert not missing, f"ISINGFORMER_DATA={folder} lacks {', '.join(missing)}"
    return Path(folder)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A folder for files that a test overwrites many times."""
    return tmp_path_factory.mktemp("scratch")
