"""Records as a study leaves them, made up: for tests of tables, figures and reports."""

import dataclasses
import functools
import itertools
import math

import torch

from isingformer import metrics
from isingformer.study.record import Cell, Entropies, Layer, Record

LAYERS = ("embed", "blocks.0.attn.qkv", "blocks.0.attn.proj", "blocks.0.mlp.fc1", "blocks.0.mlp.fc2", "head")

NASTY = r"my_data|50% & #1 {x $y^2 ~z\n <b>*c*`"
"""A data set's name that every format of table must quote."""


def made_up(cell, replica, *, skill=2.0, classes=10, n=200):
    """A record of a model whose logits favour the right class by about `skill`."""
    generator = torch.Generator().manual_seed(sum(map(ord, cell.name)) * 31 + replica)
    y = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), y] += skill
    probs = logits.softmax(-1)
    entropy = torch.special.entr(probs).sum(-1)
    right = probs.argmax(-1) == y
    found = metrics.scores(probs, y, epistemic=0.2 * entropy)
    edges = torch.linspace(0, math.log(classes), 21, dtype=torch.float64)
    counts = [torch.histc(entropy[part], 20, 0, math.log(classes)).int().tolist() for part in (right, ~right)]
    rate = cell.rate or 0.0
    spread = tuple(min(1.0, rate * share) for share in (0.5, 0.8, 1.0, 1.1, 1.2))
    return Record(
        cell=cell, replica=replica, seed=replica, scores={**found.as_dict(), "probable_accuracy": 0.9 * found.accuracy},
        entropies=Entropies(tuple(edges.tolist()), tuple(counts[0]), tuple(counts[1])),
        layers={name: Layer(rate, 0.0, spread) for name in LAYERS}, mean_q=rate, dropped=0.0, train_nll=0.3, samples=50,
        test_images=n, classes=classes, steps=100, seconds=1.5, settings={"delta": rate},
        recipe={"epochs": 3, "batch": 16}, network={"width": 64, "depth": 4},
        made={"isingformer": "0", "torch": "0", "python": "3", "hardware": "CPU", "commit": "abc", "command": "x"},
    )  # fmt: skip


def study(
    datasets=("mnist", "cifar10"), sizes=(300, 6000), methods=("plain", "dropout", "dropconnect", "ising"),
    rates=(0.1, 0.5), replicas=4,
):  # fmt: skip
    """The records of a whole grid; larger samples and Ising do better."""
    found = []
    for dataset, (k, size), method in itertools.product(datasets, enumerate(sizes), methods):
        for rate in (None,) if method == "plain" else rates:
            skill = 2.0 + k + (0.7 if method.startswith("ising") else 0.0) - (0.4 if rate == 0.5 else 0.0)
            cell = Cell(dataset, size, method, rate)
            found += [made_up(cell, replica, skill=skill) for replica in range(replicas)]
    return found


def scored(cell, replica, *, seed=None, **values):
    """A made-up record with given scores, or values of its own such as `mean_q`."""
    base = _base()
    own = {name: value for name, value in values.items() if hasattr(base, name)}
    scores = base.scores | {name: value for name, value in values.items() if name not in own}
    return dataclasses.replace(
        base, cell=cell, replica=replica, seed=replica if seed is None else seed, scores=scores, **own
    )


@functools.cache
def _base():
    return made_up(Cell("digits", 100, "plain", None), 0, n=40)
