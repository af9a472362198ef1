"""A small run on the digits, and a server of it."""

import pytest

import isingformer as isf
from explore_serving import serving
from isingformer.compress import compress_run
from isingformer.explore import Explorer, pools_of

RECIPE = isf.Recipe(epochs=3, width=16, depth=2, heads=2, mlp=16, patch=2, train_size=200, validation=64, lr=1e-2)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """For reading only."""
    out = tmp_path_factory.mktemp("explored") / "run"
    return isf.train("digits", isf.Ising(delta=0.3), RECIPE, out=out, progress=False, tensorboard=False, device="cpu")


@pytest.fixture(scope="session")
def compact(run, tmp_path_factory):
    """The same, made smaller, with its posterior."""
    out = tmp_path_factory.mktemp("explored") / "compact"
    return compress_run(run, out, macs=0.7, bayesian=True, samples=2, test_size=20).run


@pytest.fixture
def explorer(run):
    return Explorer(run, pools_of(run), most=40)


@pytest.fixture
def server(explorer):
    with serving(explorer) as found:
        yield found


@pytest.fixture(scope="module")
def shared_server(run):
    own = isf.Run(run.folder, device="cpu")  # a model of its own: the tests use the run's while the server is at work
    with serving(Explorer(own, pools_of(own), most=20)) as found:
        yield found
