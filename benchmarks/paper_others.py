"""Beyond the paper's two rates: every method at its best one, others at the mean q of `ising`, an ensemble and IVON.

Parts of docs/results.md, as in `paper_tables.py`, but the cells are those of all folders, at whatever rate.
"""

import dataclasses
import json
from pathlib import Path

from paper_goals import (
    NEARLY,
    RIVALS,
    SHOWN,
    at_paper_rates,
    common,
    comparable,
    counts,
    named,
    over,
    paired,
    same_rate,
)
from paper_tables import mean, paragraphs, table

from isingformer.study.record import Cell
from isingformer.study.summary import cell_order

RESULTS = Path(__file__).resolve().parents[1] / "results"
TRIALS, PEERS = RESULTS / "trials-rates.json", RESULTS / "peers.json"
SCORES = ("accuracy", "nll", "ece")
CONTROL = "ising without evidence"
"""What the cells of benchmarks/control.toml are called."""


def by_fresh_noise(cell):
    """What the same cell of benchmarks/local.toml is called: other trainings of it, scored in both ways."""
    return dataclasses.replace(cell, method=f"{cell.method} by fresh noise")


def rows_of(file, name="rows"):
    """Of a benchmark's JSON, or its records by that name; none where it has not been run."""
    if not file.is_file():
        return []
    try:
        return json.loads(file.read_text(encoding="utf-8"))[name]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} has no {name}; give the file that a benchmark wrote with --out") from None


def best_rates(rows):
    """{(dataset, size, method): the rate with the lowest NLL on validation images}."""
    found = {}
    for row in rows:
        if row["tried"] not in SHOWN:
            raise ValueError(f"a trial of {row['tried']!r} among those of rates; they are of {', '.join(SHOWN)}")
        place = (row["data"], row["size"], row["tried"])
        if place not in found or row["nll"] < found[place]["nll"]:
            found[place] = row
    return {place: row["rate"] for place, row in found.items()}


def at_edge(rows):
    """{(dataset, size, method): words}: where the best rate is the lowest or highest tried, and a better one may lie
    beyond."""
    tried, found = {}, {}
    for row in rows:
        tried.setdefault((row["data"], row["size"], row["tried"]), []).append(row["rate"])
    for place, rate in best_rates(rows).items():
        ends = [word for word, end in (("lowest", min), ("highest", max)) if rate == end(tried[place])]
        if ends:
            what = "only one" if len(ends) == 2 else ends[0]
            found[place] = f"{place[2]} on {named(*place[:2])}: {rate:g} is the {what} tried"
    return found


def chosen(cells, rows):
    """{(dataset, size): {method: its cell at the best rate}} where all three have been tried, and can be compared."""
    rates, found = best_rates(rows), {}
    for cell in sorted(cells, key=cell_order):
        place = (cell.dataset, cell.size)
        if place not in found and all((*place, method) in rates for method in SHOWN):
            own = {method: Cell(*place, method, rates[*place, method]) for method in SHOWN}
            if comparable(cells, *own.values()):
                found[place] = own
    return found


def shown(cells, cell, by=""):
    """Accuracy / NLL / ECE; by ``local_``, of fresh noise."""
    return " / ".join(f"{mean(cells, cell, by + score):.3f}" for score in SCORES)


def best(abouts, cells):
    """Every method at the rate that validation images chose, on test images."""
    trials = rows_of(TRIALS)
    found = chosen(cells, trials)
    if not found:
        return "Not trained yet.\n"
    note = beyond(said for place, said in at_edge(trials).items() if place[:2] in found)
    every = [paired(cells, *(own[method] for method in SHOWN)) for own in found.values()]
    rows = [
        [named(*place), *(f"{cell.rate:g}: {shown(own, cell)}" for cell in own)]
        for place, own in zip(found, every, strict=True)
    ]
    return paragraphs(
        table(["data, images", *SHOWN], rows), over(every, counted=True), note, counted_at_best(cells, found)
    )


def beyond(edges):
    """A sentence of what `at_edge` says: a rate, and all whose best one it is."""
    by_rate = {}
    for said in edges:
        who, what = said.split(": ")
        by_rate.setdefault(what, []).append(who)
    listed = ". ".join(f"{what}, and the best of {'; '.join(every)}" for what, every in by_rate.items())
    return f"A better rate may lie beyond what was tried. {listed}.\n" if listed else ""


def counted_at_best(cells, found):
    """A row a rival: in how many of the places in `found` `ising` is better, every method at its best rate."""
    lines = []
    for rival in RIVALS:
        pairs = [(own["ising"], [own[rival]]) for own in found.values()]
        said = (counts(cells, score, pairs) for score in SCORES)
        lines.append([rival, *(f"{one['better']} ({one['clearly']}, {one['worse']})" for one in said)])
    head = [f"of {len(found)}: `ising` better (clearly better, clearly worse) than", "accuracy", "NLL", "ECE"]
    return table(head, lines)


def best_counts(abouts, cells):
    """How often `ising` is better than each of the two others, every method at its best rate."""
    found = chosen(cells, rows_of(TRIALS))
    if not found:
        return "No method has been trained at its best rate yet.\n"
    numbers = {len(common(cells, own["ising"], own[rival])) for own in found.values() for rival in RIVALS}
    samples = " to ".join(str(end) for end in sorted({min(numbers), max(numbers)}))
    return (
        f"The {len(found)} combinations of dataset and size, every method at the rate that is best for it on "
        f"validation images, each over {samples} training samples:\n\n{counted_at_best(cells, found)}"
    )


def nearest(cells, cell, rival, q):
    """The cell of a rival in the same place whose rate is nearest to q; None where none is within `NEARLY`."""
    there = [other for other in cells if (other.dataset, other.size, other.method) == (cell.dataset, cell.size, rival)]
    near = [other for other in there if abs(other.rate - q) <= NEARLY]
    return min(near, key=lambda other: abs(other.rate - q), default=None)


def at_mean_q(cells):
    """([(a cell of `ising` whose mean of q is delta, both others there)], [(another, both others at its mean of q)],
    how many more have no others there)."""
    same, others, left = [], [], 0
    for cell, at_delta in same_rate(at_paper_rates(cells)):
        q = mean(cells, cell, "mean_q")
        if abs(q - cell.rate) <= NEARLY:
            same.append((cell, at_delta))
        elif comparable(cells, cell, *(rivals := [nearest(cells, cell, rival, q) for rival in RIVALS])):
            others.append((cell, rivals))
        else:
            left += 1
    return same, others, left


def matched(abouts, cells):
    """`ising` at the paper's rates beside dropout and dropconnect at a rate that is the mean of its q.

    Where that is delta, to within `NEARLY`, it is the comparison at the same rate, and is only counted.
    """
    same, others, left = at_mean_q(cells)
    whole, rows, every = len(same) + len(others) + left, [], []
    for cell, rivals in others:
        own = paired(cells, cell, *rivals)
        numbers = [f"{rival.rate:g}: {mean(own, rival, 'nll'):.3f}" for rival in rivals]
        rows.append([named(cell.dataset, cell.size), str(cell.rate), f"{mean(own, cell, 'mean_q'):.3f}", *numbers,
                     f"{mean(own, cell, 'nll'):.3f}"])  # fmt: skip
        every.append(own)
    text = (
        f"In {len(same)} of the {whole} cells of `ising` the mean of `q` is within {NEARLY} of `delta`, so that the "
        f"comparison is the one above: {lower_nll(cells, same)}. Of the {whole - len(same)} other cells, "
        f"{len(rows) or 'none'} {'has' if len(rows) == 1 else 'have'} both others trained at the mean of `q`"
    )
    if not rows:
        return f"{text}.\n"
    head = ["data, images", "delta", "mean q", *(f"{rival}, rate: NLL" for rival in RIVALS), "`ising`, NLL"]
    return paragraphs(f"{text}: {lower_nll(cells, others)}.\n", table(head, rows), over(every, counted=True))


def lower_nll(cells, pairs):
    """How often the NLL of `ising` is lower, in words."""
    nll = counts(cells, "nll", pairs)
    return (
        f"its NLL is lower than that of both in {nll['better']} ({nll['clearly']} clearly), and clearly higher than "
        f"that of either in {nll['worse']}"
    )


def peer_cells():
    """What `benchmarks/peers.py` scored on test images, as cells whose method is the peer."""
    found = {}
    for record in rows_of(PEERS, "records"):
        if record["on"] == "test":
            cell = Cell(record["data"], record["size"], record["peer"], None)
            own = found.setdefault(cell, {name: [] for name in ("seed", *SCORES)})
            if record["seed"] in own["seed"]:  # which to show would be chosen by test images
                raise ValueError(
                    f"{PEERS} has {cell.method!r} on {named(cell.dataset, cell.size)} images twice, by other replicas, "
                    "epochs or settings; take out all but one"
                )
            for name, values in own.items():
                values.append(record[name])
    return found


def peers(abouts, cells):
    """An ensemble and IVON beside `ising`: at the rate that validation images chose, else at 0.1."""
    theirs = peer_cells()
    if not theirs:
        return "Not trained yet.\n"
    rates, rows, every = best_rates(rows_of(TRIALS)), [], []
    names = list(dict.fromkeys(peer.method for peer in theirs))
    for place in dict.fromkeys((peer.dataset, peer.size) for peer in theirs):
        own = [peer for peer in theirs if (peer.dataset, peer.size) == place]
        ours = Cell(*place, "ising", rates.get((*place, "ising"), 0.1))
        if comparable(cells | theirs, ours, *own):
            own.append(ours)
        every.append(paired(cells | theirs, *own))
        entries = {cell.method: shown(every[-1], cell) for cell in own}
        beside = f"{ours.rate:g}: {entries['ising']}" if ours in own else "–"
        rows.append([named(*place), beside, *(entries.get(name, "–") for name in names)])
    return paragraphs(table(["data, images", "`ising`", *names], rows), over(every))


def fresh(abouts, cells):
    """Dropout and dropconnect by networks and by fresh noise, each pair of the same trainings, beside `ising`."""
    pairs, rows, every = {}, [], []
    for cell in at_paper_rates(cells):
        anew = {rival: by_fresh_noise(dataclasses.replace(cell, method=rival)) for rival in RIVALS}
        there = {rival: other for rival, other in anew.items() if comparable(cells, cell, other)}
        if cell.method != "ising" or not there:
            continue
        own = paired(cells, cell, *there.values())
        both = {rival: f"{shown(own, other)} → {shown(own, other, 'local_')}" for rival, other in there.items()}
        entries = [both.get(rival, "–") for rival in RIVALS]
        rows.append([named(cell.dataset, cell.size), f"{cell.rate:g}", *entries, shown(own, cell)])
        every.append(own)
        pairs.setdefault(" and ".join(there), []).append((cell, [*there.values()]))
    if not rows:
        return "Not trained yet.\n"
    local = {other: with_local(cells[other]) for group in pairs.values() for _, there in group for other in there}
    lines = []
    for rivals, group in pairs.items():
        said = (counts({**cells, **local}, score, group) for score in SCORES)
        numbers = [f"{one['better']} ({one['clearly']}, {one['worse']})" for one in said]
        lines.append([f"{rivals} by fresh noise", str(len(group)), *numbers])
    head = ["`ising` better than (clearly, clearly worse)", "cells", "accuracy", "NLL", "ECE"]
    whole = table(["data, images", "rate", *SHOWN], rows)
    return paragraphs(whole, over(every, counted=True), table(head, lines))


def with_local(values):
    """A cell's numbers with the scores by fresh noise in place of those by networks."""
    return {**values, **{score: values[f"local_{score}"] for score in SCORES}}


def control(abouts, cells):
    """`ising` beside its noise without any evidence, at its rate and at the one that is nearest to its mean of q."""
    rows, pairs, every = [], [], []
    for cell, _ in same_rate(at_paper_rates(cells)):
        q = mean(cells, cell, "mean_q")
        there = [other for other in cells if (other.dataset, other.size, other.method) == (
            cell.dataset, cell.size, CONTROL) and comparable(cells, cell, other)]  # fmt: skip
        if not there:
            continue
        nearest_to_q = min(there, key=lambda other: abs(mean(cells, other, "mean_q") - q))
        at_rate = dataclasses.replace(cell, method=CONTROL)
        beside = [at_rate if comparable(cells, cell, nearest_to_q, at_rate) else None, nearest_to_q]
        own = paired(cells, cell, *filter(None, beside))
        pairs.append((cell, [nearest_to_q]))
        entries = [
            "–" if one is None else f"{mean(own, one, 'mean_q'):.2f}: {shown(own, one)}" for one in (cell, *beside)
        ]
        rows.append([named(cell.dataset, cell.size), f"{cell.rate:g}", *entries])
        every.append(own)
    if not rows:
        return "Not trained yet.\n"
    said = (counts(cells, score, pairs) for score in SCORES)
    line = ["no evidence, the nearest mean q", *(f"{one['better']} ({one['clearly']}, {one['worse']})" for one in said)]
    head = [f"of {len(pairs)}: `ising` better (clearly better, clearly worse) than", "accuracy", "NLL", "ECE"]
    columns = ["data, images", "delta", "`ising`", "no evidence, the same rate", "no evidence, the nearest mean q"]
    return paragraphs(table(columns, rows), over(every, counted=True), table(head, [line]))
