"""`isingformer study` and `isingformer report`: a small grid of one's own, from TOML to a report."""

import json
import signal
import sys

import pytest

PLAN = """
methods = ["plain", "ising"]
rates = [0.1]
replicas = 2
samples = 3

[[datasets]]
source = "digits"
sizes = [20]
test_images = 30

[recipe]
epochs = 1
batch = 10
width = 8
depth = 1
heads = 2
mlp = 8
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "mine.toml").write_text(PLAN)
    return tmp_path / "mine.toml"


def test_a_study_of_ones_own_leaves_a_report_and_goes_on_where_it_was(done, command, plan, tmp_path):
    line = ["study", plan, "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu", "--quiet"]
    said = done(*line)
    assert "4 of 4 trainings done" in said and str(tmp_path / "study" / "report.html") in said
    page = (tmp_path / "study" / "report.html").read_text()
    assert "<html" in page and "http://" not in page.replace("http://www.w3.org", "")
    for name in ("tables.md", "tables.tex", "cells.csv", "replicas.csv", "differences.csv"):
        assert (tmp_path / "study" / "tables" / name).stat().st_size > 0
    assert list((tmp_path / "study" / "figures").glob("*.png")) and list((tmp_path / "study" / "figures").glob("*.svg"))
    records = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "study" / "records").iterdir()}
    again = json.loads(done(*line, "--json"))
    assert (again["done"], again["total"], again["failed"]) == (4, 4, [])
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "study" / "records").iterdir()} == records
    (tmp_path / "study" / "report.html").unlink()
    written = json.loads(done("report", tmp_path / "study", "--json"))
    assert (
        written["report"] == str(tmp_path / "study" / "report.html") and (tmp_path / "study" / "report.html").exists()
    )


def test_without_a_terminal_every_cell_is_a_line(command, plan, tmp_path):
    found = command("study", plan, "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu")
    assert found.code == 0
    assert "mine: 4 trainings in 2 cells of 2" in found.err
    assert "digits_20_plain: 2 of 4 trainings" in found.err and "digits_20_ising_0.1: 4 of 4 trainings" in found.err


def test_a_shard_is_a_part(done, plan, tmp_path):
    line = ["study", plan, "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu", "--quiet"]
    assert "2 of 2 trainings done" in done(*line, "--shard", "1/2")
    assert len(list((tmp_path / "study" / "records").iterdir())) == 2


def test_some_sizes_methods_and_rates_are_a_part(done, plan, tmp_path):
    plan.write_text(PLAN.replace("sizes = [20]", "sizes = [20, 30]").replace("[0.1]", "[0.1, 0.5]"))
    line = ["study", plan, "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu", "--quiet"]
    some = ["--sizes", "30", "--rates", "0.5", "--methods", "ising"]
    assert "2 of 2 trainings done" in done(*line, *some)
    names = {file.name for file in (tmp_path / "study" / "records").iterdir()}
    assert names == {f"digits_30_ising_0.5_r{replica}.json" for replica in (0, 1)}


def test_the_first_replicas_are_a_part_and_the_others_follow(done, plan, tmp_path):
    line = ["study", plan, "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu", "--quiet"]
    assert "2 of 2 trainings done" in done(*line, "--replicas", "1")
    names = {file.name for file in (tmp_path / "study" / "records").iterdir()}
    assert names == {"digits_20_plain_r0.json", "digits_20_ising_0.1_r0.json"}
    assert "4 of 4 trainings done" in done(*line)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["study", "quick", "--replicas", "50"],
            "from 1 to 3, which is what the plan 'quick' has, got 50",
        ),
        (["study", "paper", "--datasets", "mnist", "--sizes", "5000"], "name sizes that one of the datasets has"),
        (["study", "quick", "--rates", "0.2"], "the plan 'quick' has no rate 0.2; it has 0.1, 0.5"),
        (["study", "nothere.toml"], "cannot read the plan 'nothere.toml'"),
        (["study", "quick", "--datasets", "mnist"], "the plan 'quick' has no dataset 'mnist'; it has digits"),
        (["study", "quick", "--shard", "3/2"], "a shard is i/n with i from 1 to n"),
        (["study", "quick", "--jobs", "0"], "expected a whole number from 1 on"),
        (["study", "quick", "--gpus-per-task", "1"], "give --ray ADDRESS too"),
        (["study", "quick", "--ray", "nowhere"], "a Ray address is 'auto', 'local', HOST:PORT or ray://HOST:PORT"),
        (["study", "quick", "--ray", "auto", "--jobs", "2"], "jobs are the cores of a cluster that is started here"),
        (["study", "quick", "--ray", "auto", "--device", "cuda:1"], "since Ray deals out GPUs, got 'cuda:1'"),
        (["study", "quick", "--ray", "auto", "--gpus-per-task", "2"], "gpus_per_task must be a share from 0 to 1"),
        (["report", "nothere"], "nothere is no study (plan.json is missing)"),
        (["report", "foreign/plan.json"], "foreign/plan.json is no study (plan.json is missing)"),
        (["study", "quick", "--quiet", "--out", "foreign"], "foreign/plan.json is not a study's plan"),
    ],
)
def test_wrong_input_is_one_line(refused, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "plan.json").write_text('{"plan": "of a house"}')
    refused(*arguments, names=[said])


def test_when_all_trainings_fail_the_code_is_1_and_it_is_said(command, tmp_path):
    (tmp_path / "wild.toml").write_text(PLAN + "lr = 1e30\nlr_warmup = 0.0\n")
    found = command("study", tmp_path / "wild.toml", "--out", tmp_path / "study", "--jobs", "1", "--device", "cpu")
    assert found.code == 1 and "nothing to report yet" in found.out
    assert "digits_20_ising_0.1 replica 1: its loss turned NaN or infinite" in found.err


def test_without_ray_it_says_what_to_install(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "isingformer.integrations.ray", raising=False)
    refused("study", "quick", "--ray", "auto", names=["pip install 'isingformer[ray]'"])


def test_a_ray_cluster_that_does_not_answer_is_said_at_once(command, plan, tmp_path):
    found = command("study", plan, "--out", tmp_path / "study", "--ray", "127.0.0.1:1", "--quiet")
    said = "isingformer study: error: no Ray cluster at '127.0.0.1:1' (Connection refused); start one with"
    assert found.code == 2 and found.err.startswith(said)


def test_a_study_that_is_terminated_says_so_and_goes_on(start, done, tmp_path):
    """SIGTERM to the main process alone, as `kill` sends it, while two others work for it."""
    longer = PLAN.replace("epochs = 1\n", "epochs = 300\n").replace("sizes = [20]", "sizes = [20, 30]")
    (tmp_path / "long.toml").write_text(longer)
    line = ["study", tmp_path / "long.toml", "--out", tmp_path / "study", "--jobs", "2", "--device", "cpu"]
    process = start(*line)
    while "trainings" not in (said := process.stderr.readline()) or "into" in said:
        assert said, "it ended by itself"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, ""), err
    assert err.splitlines()[-1] == "isingformer study: terminated"
    assert not any(word in err for word in ("Traceback", "leaked", "main process is gone")), err
    assert 0 < len(list((tmp_path / "study" / "records").iterdir())) < 8
    assert "8 of 8 trainings done" in done(*line, "--quiet")
