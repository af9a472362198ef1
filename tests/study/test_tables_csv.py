"""The tables as CSV: every digit comes back."""

import csv
import random

from isingformer.study.compare import compare
from isingformer.study.record import Cell
from isingformer.study.summary import LOCAL, measured, summarise, value_of
from isingformer.study.tables import cells_csv, differences_csv, replicas_csv
from records import NASTY, study


def test_cells_round_trip_through_csv():
    records = study(datasets=("mnist", NASTY, "cifar100"), sizes=(300, 15000), replicas=2)
    records = [r for r in records if r.replica == 0 or r.cell.method != "dropout"]  # cells of one replica among them
    summaries = summarise(records)
    rows = list(csv.DictReader(cells_csv(summaries, measured(records)).splitlines()))
    assert len(rows) == len(summaries)
    for row, (cell, summary) in zip(rows, summaries.items(), strict=True):
        rate = float(row["rate"]) if row["rate"] else None
        assert Cell(row["dataset"], int(row["size"]), row["method"], rate) == cell
        assert int(row["replicas"]) == summary.replicas
        for metric in measured(records):
            assert (float(row[metric]) if row[metric] else None) == summary.means[metric]  # every digit
            assert (float(row[f"{metric}_sd"]) if row[f"{metric}_sd"] else None) == summary.sds[metric]
            assert int(row[f"{metric}_n"]) == summary.counts[metric]
    (row,) = (
        r for r in rows if (r["dataset"], r["size"], r["method"], r["rate"]) == ("cifar100", "15000", "ising", "0.5")
    )
    found = (row["paper_accuracy"], row["paper_false_positive_rate_sd"], row["paper_comparable"])
    assert found == ("0.478", "0.0", "False")


def test_replicas_round_trip_through_csv():
    """Enough to pair methods anew: the differences of the study follow from it, digit by digit."""
    records = study(datasets=("mnist", NASTY), sizes=(300, 600), replicas=3)
    rows = list(csv.DictReader(replicas_csv(random.Random(2).sample(records, len(records))).splitlines()))
    assert len(rows) == len(records)
    found = {(r["dataset"], r["size"], r["method"], r["rate"], r["replica"]): r for r in rows}
    for record in records:
        cell = record.cell
        rate = "" if cell.rate is None else str(cell.rate)
        row = found[cell.dataset, str(cell.size), cell.method, rate, str(record.replica)]
        assert int(row["seed"]) == record.seed
        for metric in measured(records):
            assert (float(row[metric]) if row[metric] else None) == value_of(record, metric)


def test_differences_round_trip_through_csv():
    records = study(datasets=(NASTY,), sizes=(300,), replicas=3)
    differences = compare(records, "ising", "plain", "nll")
    rows = list(csv.DictReader(differences_csv(differences).splitlines()))
    for row, d in zip(rows, differences, strict=True):
        assert (row["dataset"], row["a"], row["rate_a"], row["b"], row["rate_b"]) == (
            NASTY,
            "ising",
            str(d.a.rate),
            "plain",
            "",
        )
        assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (d.mean, d.low, d.high)
        assert (row["better"], row["clear"], int(row["pairs"])) == (str(d.better), str(d.clear), 3)


def test_scores_by_fresh_noise_have_columns_where_any_record_has_them():
    records = study(datasets=("mnist",), sizes=(300,), replicas=2)
    assert not {*LOCAL} & {*csv.DictReader(replicas_csv(records).splitlines()).fieldnames}
    records[0].scores.update(dict.fromkeys(LOCAL, 0.25))
    table = csv.DictReader(replicas_csv(records).splitlines())
    assert {*LOCAL} <= {*table.fieldnames} and [row["local_ece"] for row in table].count("0.25") == 1
