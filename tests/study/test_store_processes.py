"""A study's folder with many processes, processes that are killed, and a full disk."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from isingformer.study.store import Store
from records import made_up
from small_study import CELL, grid, names, planned


@pytest.fixture
def plan():
    return planned()


@pytest.fixture
def store(tmp_path, plan):
    return Store.open(tmp_path / "study", plan)


# Real processes: one that has imported everything, and children forked from it.

PROGRAM = """
import dataclasses, json, os, random, resource, signal, sys, time
from pathlib import Path
from isingformer.study.plan import Plan
from isingformer.study.record import Record
from isingformer.study.store import Store

folder, about = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
plan = Plan.from_json(about["plan"])

def record(cell, replica, **made):
    return Record.from_json({**about["record"], "cell": dataclasses.asdict(cell), "replica": replica, "made": made})

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def fork(work, *given):
    child = os.fork()
    if child:
        return child
    try:
        work(*given)
    except BaseException as error:
        say("failed", repr(error))
    os._exit(0)

def train(seed):
    store = Store.open(folder, plan)
    jobs = store.jobs(plan)
    random.Random(seed).shuffle(jobs)
    for cell, replicas in jobs:
        with store.claim(cell.name) as mine:
            for replica in set(replicas) - store.done(cell) if mine else ():
                say("trained", cell.name, replica)
                time.sleep(0.001)
                if not store.add(record(cell, replica)):
                    say("twice", cell.name, replica)
"""


@pytest.fixture
def processes(tmp_path, plan):
    """A function that runs a scenario in a process of its own and gives the lines it said."""
    (tmp_path / "about.json").write_text(
        json.dumps({"plan": plan.to_json(), "record": made_up(CELL, 0, n=20_000).to_json()})
    )

    def run(scenario):
        command = [sys.executable, "-c", PROGRAM + scenario, str(tmp_path / "study"), str(tmp_path / "about.json")]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        assert [line for line in lines if line[0] in ("failed", "twice")] == []
        return lines

    return run


def test_many_processes_lose_and_duplicate_nothing(processes, tmp_path, plan):
    """Six processes add every record without asking: each is kept once, as the one wrote it who was told so."""
    said = processes("""
def add(number):
    store = Store.open(folder, plan)
    every = [(cell, replica) for cell in plan.cells() for replica in range(plan.replicas)]
    random.Random(number).shuffle(every)
    for cell, replica in every:
        if store.add(record(cell, replica, by=number)):
            say("added", cell.name, replica, number)

for child in [fork(add, number) for number in range(6)]:
    os.waitpid(child, 0)
""")
    kept = Store(tmp_path / "study").records()
    assert [(record.cell, record.replica) for record in kept] == sorted(grid(plan))
    told = {(name, int(replica)): int(by) for _, name, replica, by in said}
    assert len(said) == len(told) and len(set(told.values())) > 1
    assert {(record.cell.name, record.replica): record.made["by"] for record in kept} == told


def test_claims_keep_processes_from_the_same_work(processes, tmp_path, plan):
    said = processes("""
for child in [fork(train, number) for number in range(6)]:
    os.waitpid(child, 0)
""")
    trained = sorted((name, int(replica)) for _, name, replica in said)
    assert trained == sorted((cell.name, replica) for cell, replica in grid(plan))  # each once
    assert len(Store(tmp_path / "study").records()) == len(trained)


@pytest.mark.slow
def test_killed_at_any_moment_the_study_ends_as_if_undisturbed(processes, tmp_path, plan):
    """On a slow disk, so that most are killed in the middle of a record."""
    said = processes("""
def slowly(file, text, encoding):
    with open(file, "w", encoding=encoding) as out:
        for start in range(0, len(text), len(text) // 10):
            out.write(text[start : start + len(text) // 10])
            out.flush()
            time.sleep(0.001)

Path.write_text = slowly
chance, kills, parts, started = random.Random(), 0, 0, 0
while Store(folder).progress(plan)[0] < plan.trainings:
    children = [fork(train, started + k) for k in range(2)]
    started += 2
    for child in children:
        time.sleep(chance.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    parts += any(path.suffix == ".part" for path in folder.rglob("*"))
    done, records = Store(folder).progress(plan)[0], Store(folder).records()
    assert len(records) == done, (len(records), done)
say("kills", kills, parts)
""")
    assert int(said[-1][1]) > 3 and int(said[-1][2]) > 0
    store = Store.open(tmp_path / "study", plan)
    template = json.loads((tmp_path / "about.json").read_text())["record"]
    cells = {cell.name: dataclasses.asdict(cell) for cell in plan.cells()}
    assert names(store.path) == sorted(["plan.json", *(f"{cell.name}_r{r}.json" for cell, r in grid(plan))])
    for record in store.records():
        expected = {**template, "cell": cells[record.cell.name], "replica": record.replica, "made": {}}
        assert json.loads(json.dumps(record.to_json())) == expected


def test_a_killed_process_leaves_its_claim_also_where_its_children_live_on(processes):
    said = processes("""
def survive():
    os.write(write, str(os.getpid()).encode())  # the child is told of only once it has let go of what it inherited
    time.sleep(60)

def hold():
    with Store(folder).claim("a") as mine:
        say("held", mine)
        fork(survive)
        time.sleep(60)

Store.open(folder, plan)
read, write = os.pipe()
holder = fork(hold)
survivor = int(os.read(read, 100))
with Store(folder).claim("a") as mine:
    say("while", mine)
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
with Store(folder).claim("a") as mine:
    os.kill(survivor, 0)  # it is there
    say("then", mine)
os.kill(survivor, signal.SIGKILL)
""")
    assert [(words[0], words[1]) for words in said] == [("held", "True"), ("while", "False"), ("then", "True")]


def test_a_full_disk_leaves_no_part_of_a_record(processes, tmp_path, plan):
    said = processes("""
store = Store.open(folder, plan)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
cell = plan.cells()[0]
try:
    store.add(record(cell, 0))
except OSError as error:
    say("error", error)
say("files", *sorted(path.name for path in (folder / "records").iterdir()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say("added", store.add(record(cell, 0)))
""")
    file = tmp_path / "study" / "records" / f"{plan.cells()[0].name}_r0.json"
    assert " ".join(said[0]).startswith(f"error cannot write {file}: File too large;")
    assert said[1:] == [["files"], ["added", "True"]]
    assert len(Store(tmp_path / "study").records()) == 1


def test_what_the_dead_left_is_removed_and_what_the_living_write_is_not(processes, tmp_path):
    said = processes("""
def write():
    with store._writing():
        (folder / "records" / ".a.json.1.part").touch()
        os.write(ready, b"x")
        time.sleep(0.3)
        say("still", (folder / "records" / ".a.json.1.part").exists())

store = Store.open(folder, plan)
read, ready = os.pipe()
child = fork(write)
os.read(read, 1)
Store.open(folder, plan)
say("after", (folder / "records" / ".a.json.1.part").exists())
os.waitpid(child, 0)
""")
    assert said == [["still", "True"], ["after", "False"]]
