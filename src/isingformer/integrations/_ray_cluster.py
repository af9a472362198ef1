"""A Ray cluster: finding it, what its machines have, and what of that a task gets."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import ray

KNOCK = 5.0
"""Seconds to wait for an address to answer; Ray itself waits for minutes."""
STORE = 1 << 27
"""Bytes for what tasks bring back, in a cluster that is started here: records are small, and Ray takes gigabytes."""
NONE_THERE = "start one with `ray start --head`, or use 'local'"


def check(address: str, device: str, gpus: float | None, jobs: int | None) -> None:
    """Raise in one line where arguments of `run_on_ray` do not go together."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"on Ray the device must be 'auto', 'cpu' or 'cuda', since Ray deals out GPUs, got {device!r}")
    if gpus is not None and not 0 <= gpus <= 1:
        raise ValueError(f"gpus_per_task must be a share from 0 to 1, since a training uses one GPU, got {gpus:g}")
    if gpus and device == "cpu":
        raise ValueError(f"gpus_per_task is {gpus:g} and the device 'cpu'; leave one of them out")
    if gpus == 0 and device == "cuda":
        raise ValueError("gpus_per_task is 0 and the device 'cuda'; leave one of them out")
    if jobs is not None and address != "local":
        raise ValueError(f"jobs are the cores of a cluster that is started here; with {address!r} Ray counts its own")
    if address not in ("auto", "local"):
        _host_and_port(address)
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be a number of cores from 1 on, got {jobs}")


@contextlib.contextmanager
def connected(address: str, jobs: int | None) -> Iterator[None]:
    """Inside, this process is the driver of a cluster; one that it is connected to already is used as it is."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is started here tells nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that this will be so
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        settings |= {"num_cpus": jobs, "include_dashboard": False, "object_store_memory": STORE}
    elif address != "auto":
        _knock(address)
    with contextlib.redirect_stdout(sys.stderr):  # where Ray tells of workers that died; stdout may be JSON
        try:
            ray.init(address=address, **settings)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OSError(f"no Ray cluster at {address!r} ({' '.join(str(error).split())}); {NONE_THERE}") from None
        try:
            yield
        finally:
            ray.shutdown()


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"a Ray address is 'auto', 'local', HOST:PORT or ray://HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def _knock(address: str) -> None:
    """Raise soon where nobody listens."""
    try:
        socket.create_connection(_host_and_port(address), timeout=KNOCK).close()
    except OSError as error:
        raise OSError(f"no Ray cluster at {address!r} ({error.strerror or error}); {NONE_THERE}") from None


def _most(kind: str) -> float:
    """How much of a resource the best machine of the cluster has."""
    return max((float(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]), default=0.0)


def gpus(device: str, share: float | None) -> float:
    """The share of a GPU that a task gets; 0: it trains on a CPU."""
    there = _most("GPU")
    wanted = share if share is not None else float(device == "cuda" or (device == "auto" and there > 0))
    if wanted > there:
        raise ValueError(
            f"a task needs {wanted:g} of a GPU, and no machine of this Ray cluster has one; use device 'cpu'"
        )
    return wanted


def sharers(gpus: float, groups: int) -> int:
    """How many tasks at most share the memory of a GPU, or of a machine."""
    return math.floor(1 / gpus) if gpus else max(1, min(groups, int(_most("CPU"))))
