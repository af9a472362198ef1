"""What the tests of the data room share."""

from functools import partial

import pytest

from isingformer.data.download import download
from local_server import CONTENT, local_server, md5
from publisher import lay_out
from real_data import real_data_folder


@pytest.fixture(scope="session")
def real_data():
    """The folder that holds the four published data sets, where there is one."""
    return real_data_folder()


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A folder for files that a test overwrites many times."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with local_server(**{"a.bin": CONTENT}) as running:
        yield running


@pytest.fixture
def get(server, tmp_path):
    """A function that downloads a.bin to the file it returns."""

    def call(*urls, content=CONTENT, **settings):
        settings = {"timeout": 5, "pause": 0, **settings}
        file = tmp_path / "below" / "a.bin"
        download(urls or [server.url("/a.bin")], file, md5=md5(content), **settings)
        return file

    return call


@pytest.fixture
def unreachable(monkeypatch):
    """No connection at all: asking any address is an error that a test would see."""

    def refuse(url, start, timeout):
        raise AssertionError(f"asked {url}")

    monkeypatch.setattr("isingformer.data.download.ask", refuse)


@pytest.fixture
def lay(tmp_path):
    """A function that lays a data set's files out below the folder it returns."""
    return partial(lay_out, tmp_path)
