"""A study on a local Ray with two workers, one of which is killed: the records are those of an undisturbed run."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from isingformer.study import Plan, Store, StudyData, run_study

PLAN = Plan(
    name="small", datasets=(StudyData(source="digits", sizes=(20,), test_images=30),), methods=("plain", "ising"),
    rates=(0.1, 0.5), replicas=2, samples=3,
    recipe={"epochs": 3, "batch": 4, "width": 8, "depth": 1, "heads": 2, "mlp": 8, "lr": 1e-2},
)  # fmt: skip
LONGEST = 240
"""Seconds that are waited for anything; on a quiet machine it all takes some 20."""
DRIVER = """
import json, sys, warnings
warnings.simplefilter("error")
from isingformer.integrations.ray import run_on_ray
from isingformer.study import Plan
plan = Plan.from_json(json.loads(sys.argv[2]))
outcome = run_on_ray(plan, sys.argv[1], address="local", jobs=2, device="cpu", progress=False, command="a test")
print(json.dumps([outcome.done, outcome.total, outcome.failed, outcome.said]))
again = run_on_ray(plan, sys.argv[1], address="nowhere:1", progress=False)  # nothing is left, so nobody is asked
print(json.dumps([again.done, again.total]))
"""


def at_work(driver):
    """The workers of the driver's cluster that are at a task: Ray shows its name."""
    found = []
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::study:"):
                found.append(process)
        except psutil.Error:  # gone in the meantime
            pass
    return found


def contents(folder):
    """The records but for how long they took and when."""
    records = Store(folder).records()
    return {(r.cell.name, r.replica): {**r.to_json(), "seconds": None, "made": None} for r in records}


@pytest.mark.slow
@pytest.mark.timeout(2 * LONGEST)
def test_a_study_outlives_a_killed_worker_with_the_records_of_an_undisturbed_run(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "ray"), json.dumps(PLAN.to_json())]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as driver:
        try:
            last = time.monotonic() + LONGEST
            while not (workers := at_work(driver)) and driver.poll() is None and time.monotonic() < last:
                time.sleep(0.02)
            for worker in workers[:1]:
                worker.kill()
            out, err = driver.communicate(timeout=LONGEST)
        finally:
            driver.kill()
    assert driver.returncode == 0 and workers, err
    (done, total, failed, said), again = (json.loads(line) for line in out.splitlines())
    assert (done, total, failed, again) == (6, 6, [], [6, 6])
    assert len(said) == 1 and "its worker died (WorkerCrashedError), and it was trained again" in said[0]
    run_study(PLAN, tmp_path / "plain", jobs=1, device="cpu", progress=False)
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")
    assert all(record.made["command"] == "a test" for record in Store(tmp_path / "ray").records())
