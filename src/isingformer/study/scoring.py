"""From a trained stack to one record a replica."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Images
from ..metrics import scores
from ..train.device import threads
from ..train.folder import versions
from .plan import Plan
from .record import Cell, Entropies, Layer, Record
from .stack import Stack
from .summary import LOCAL

ENTROPY_BINS = 20
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def records_of(
    stack: Stack, plan: Plan, trainings: Sequence[tuple[Cell, int]], images: Images, *, made: dict[str, Any]
) -> list[Record]:
    """Score every replica of a trained stack on the same images; replicas that diverged have no record.

    Args:
        stack: trained.
        plan: the grid.
        trainings: the cell and the number of each replica of the stack, in their order.
        images: test images.
        made: how, from `circumstances`.
    """
    found = stack.predict(images, plan.samples)
    probs, entropy, epistemic = (part.cpu() for part in (found.probs, found.entropy, found.epistemic))
    probable = (stack.probable(images).argmax(-1).cpu() == images.y).double().mean(-1)  # [R]
    local = stack.predict(images, plan.samples, "local").probs.cpu() if plan.score_local else None
    drops = {name: q.cpu() for name, q in stack.method.drop_probability().items()}
    diverged = set(stack.diverged)
    # Thousands of operations on small tensors: beside other processes, threads would mostly wait for each other.
    with threads(1):
        return [
            _record(
                stack, plan, one, place, images, probs=probs[place], entropy=entropy[place], epistemic=epistemic[place],
                probable=float(probable[place]), drops={name: q[place] for name, q in drops.items()}, made=made,
                local=None if local is None else local[place],
            )
            for place, one in enumerate(trainings)
            if place not in diverged
        ]  # fmt: skip


def _record(
    stack: Stack, plan: Plan, training: tuple[Cell, int], place: int, images: Images, *, probs: Tensor, entropy: Tensor,
    epistemic: Tensor, probable: float, drops: Mapping[str, Tensor], made: dict[str, Any], local: Tensor | None,
) -> Record:  # fmt: skip
    """Of one replica, by its place in the stack."""
    cell, replica = training
    own = scores(probs, images.y, entropy=entropy, epistemic=epistemic)
    whole = torch.cat([q.flatten() for q in drops.values()])
    return Record(
        cell=cell,
        replica=replica,
        seed=stack.seeds[place],
        scores={**own.as_dict(), "probable_accuracy": probable, **local_scores(local, images.y)},
        entropies=entropies_of(entropy, probs.argmax(-1) == images.y, probs.shape[-1]),
        layers={name: layer_of(q) for name, q in drops.items()},
        mean_q=float(whole.mean()),
        dropped=float((whole > 0.5).double().mean()),
        train_nll=float(stack.nll[place]),
        samples=plan.samples,
        test_images=len(images),
        classes=probs.shape[-1],
        steps=stack.steps,
        seconds=stack.seconds / len(stack),
        settings=plan.method_for(cell).settled(cell.size).settings(),
        recipe=stack.recipes[place].settings(),
        network=stack.network,
        made=made,
    )


def local_scores(probs: Tensor | None, y: Tensor) -> dict[str, float]:
    """Those of `LOCAL`, of probabilities ``[N, C]`` by fresh noise; none where there are none."""
    if probs is None:
        return {}
    found = scores(probs, y)
    return {name: getattr(found, name.removeprefix("local_")) for name in LOCAL}


def entropies_of(entropy: Tensor, right: Tensor, classes: int) -> Entropies:
    """Histograms of the entropy of right and of wrong predictions, in 20 equal bins from 0 to log(classes)."""
    most = math.log(classes)
    edges = torch.linspace(0, most, ENTROPY_BINS + 1, dtype=torch.float64)
    place = (entropy.double() / most * ENTROPY_BINS).long().clamp(0, ENTROPY_BINS - 1)  # rounding may pass an end
    counts = [torch.bincount(place[part], minlength=ENTROPY_BINS).tolist() for part in (right, ~right)]
    return Entropies(tuple(edges.tolist()), tuple(counts[0]), tuple(counts[1]))


def layer_of(q: Tensor) -> Layer:
    """The drop probabilities ``[out, in]`` of a layer in a few numbers."""
    values = q.flatten().double()
    quantiles = torch.quantile(values, torch.tensor(QUANTILES, dtype=torch.float64))
    return Layer(float(values.mean()), float((values > 0.5).double().mean()), tuple(quantiles.tolist()))


def circumstances(command: str | None) -> dict[str, Any]:
    """Versions, hardware, commit, command and date."""
    return {**versions(), "commit": commit(), "command": command, "date": datetime.now(UTC).strftime("%Y-%m-%d")}


def commit() -> str | None:
    """The commit of the code: from ISINGFORMER_COMMIT, or from git where this is a checkout; else None."""
    if os.environ.get("ISINGFORMER_COMMIT"):
        return os.environ["ISINGFORMER_COMMIT"]
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, timeout=10
        )
        inside = subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name], cwd=here, capture_output=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if inside.returncode == 0 else None
