"""What the tests of the data room share."""

import pytest

from real_data import real_data_folder


@pytest.fixture(scope="session")
def real_data():
    """The folder that holds the four published data sets, where there is one."""
    return real_data_folder()


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A folder for files that a test overwrites many times."""
    return tmp_path_factory.mktemp("scratch")
