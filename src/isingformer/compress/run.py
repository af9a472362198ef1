"""A run made smaller: from a run's folder to a folder that opens like one.

| file | what |
| --- | --- |
| run.json | that of the run before, with the widths that are left and how it was made; written last |
| compact.json, compact-*.safetensors | the network, as `load_compact` reads it |
| compression.json | before and after: what both cost and score |
| network.onnx or network.pt2 | where asked for: pixels as the data had them to class probabilities |
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._files import check_utf8, write_json
from ..curvature.likelihood import Likelihood, likelihood
from ..data import Dataset, Images, split, subset
from ..methods import Plain, attached_to
from ..methods.storage import INDEX as SAVED
from ..nn.noise import TorchNoise
from ..train import Run
from ..train.device import threads, threads_for
from ..train.folder import RunFolder, versions
from .carry import put_method_on
from .choose import checked_structures
from .compact import CompactViT
from .compression import compress, default_structures
from .export import SUFFIX, Format, check_format, export
from .recover import recover
from .report import CompressionReport, compression_report
from .scores import Score
from .storage import INDEX, prepared, read_compact

REPORT = "compression.json"
IMAGES = 1024
"""Training images that nodes are judged on and replaced by the means of, at most."""


class CompactRun(Run):
    """A compressed run: everything a `Run` does, with the smaller network."""

    @cached_property
    def model(self) -> nn.Module:
        """The network in eval mode, with its method; a deterministic one carries `Plain`, whose passes all agree."""
        network = read_compact(self.folder, remedy="compress again with --overwrite").to(self.device).eval()
        if attached_to(network) is None:
            layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
            put_method_on(
                network, Plain(), examples=self.about["data"]["train"], steps=None, noise=TorchNoise(),
                likelihood=_likelihood(self), noise_sd=dict.fromkeys(layers, 0.0),
            )  # fmt: skip
        return network.eval()

    @property
    def bayesian(self) -> bool:
        """Whether it kept its posterior."""
        return bool(self.about["compressed"]["bayesian"])


def open_run(
    folder: str | os.PathLike[str], *, dataset: Dataset | None = None, device: torch.device | str | None = None
) -> Run:
    """A run's folder, compressed or not, opened; arguments as `Run` takes them."""
    kind = CompactRun if "compressed" in RunFolder(folder).read() else Run
    return kind(folder, dataset=dataset, device=device)


@dataclass(frozen=True)
class Compressed:
    """What `compress_run` made."""

    run: CompactRun
    report: CompressionReport
    exported: Path | None
    notes: tuple[str, ...]
    """What is worth knowing about the choice, such as a block of which nothing is left."""

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        made = {**self.run.about["compressed"], "network": self.run.about["network"]}
        exported = None if self.exported is None else str(self.exported)
        return {"run": str(self.run.folder), **made, **self.report.as_dict(), "exported": exported,
                "notes": list(self.notes)}  # fmt: skip


def compress_run(
    run: Run,
    out: str | os.PathLike[str],
    *,
    weights: float | None = None,
    macs: float | None = None,
    latency_ms: float | None = None,
    structures: Sequence[str] | None = None,
    score: Score | None = None,
    bayesian: bool = False,
    batch: int = 1,
    epochs: int = 0,
    distil: bool = False,
    export_as: Format | None = None,
    samples: int = 50,
    test_size: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    command: str | None = None,
) -> Compressed:
    """Compress a run on its own data into a folder, which is written when all else has succeeded.

    Args:
        run: a finished run, or a compressed one that kept its posterior; its data are read where they are not yet.
        out: the folder.
        weights: as `compress` takes it, as are the next five.
        macs: likewise.
        latency_ms: likewise.
        structures: likewise.
        score: likewise; None: ``gate``, on training images.
        bayesian: likewise.
        batch: images a timed pass, for `latency_ms` and for the report.
        epochs: of `recover` on the run's training images; 0: none.
        distil: learn what the full posterior predicts too.
        export_as: write ``network.onnx`` or ``network.pt2`` too; with the posterior, `samples` networks.
        samples: passes of a network with a posterior.
        test_size: score a sample of so many test images; None: all.
        seed: of the sample, the fine-tuning and the drawn networks.
        overwrite: replace a compressed run that is there.
        command: kept in run.json, to say how it was made.
    """
    folder = Path(out)
    _check_folder(run, folder, overwrite=overwrite)
    _check_run(run)
    if export_as is not None:
        check_format(export_as)
    if distil and not epochs:
        raise ValueError("compress: distilling happens while recovering; give epochs to recover over")
    structures = checked_structures(structures or default_structures(weights, macs, latency_ms))
    sample = training_images(run)
    some = subset(sample, min(IMAGES, len(sample)), seed=seed)
    test = run.data().test
    if test_size is not None and not 1 <= test_size <= len(test):
        raise ValueError(f"compress: test_size must be 1 to {len(test)}, which is all there are, got {test_size}")
    test = test if test_size is None else subset(test, test_size, seed=0)
    full, device = run.model, run.device
    with threads(threads_for(run.about["network"], device)):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UserWarning)
            network = compress(
                full, weights=weights, macs=macs, latency_ms=latency_ms, structures=structures, score=score,
                images=run.inputs(some.x), labels=some.y.to(device), bayesian=bayesian, batch=batch,
                generator=torch.Generator().manual_seed(seed),
            )  # fmt: skip
        if epochs:
            recover(
                network, run.inputs(sample.x), sample.y, epochs=epochs, seed=seed, teacher=full if distil else None,
                likelihood=_likelihood(run).name, batch=run.recipe.batch_for(len(sample)),
            )  # fmt: skip
        report = compression_report(
            full, network, run.inputs(test.x), test.y.to(device), samples=samples, seed=seed, latency_batch=batch
        )
    made = {
        "from": str(run.folder), "weights": weights, "macs": macs, "latency_ms": latency_ms,
        "structures": list(structures), "score": score or "gate", "bayesian": bayesian, "recovered_epochs": epochs,
        "distilled": distil, "seed": seed, **versions(),
    }  # fmt: skip
    # In the method's place too, so that no training takes the folder for its own.
    method = {**run.about["method"], "compressed": True}
    about = {**run.about, "command": command, "method": method, "network": network.config, "compressed": made}
    exported = _write(folder, network, report, about, export_as, samples if bayesian else None, seed)
    return Compressed(
        CompactRun(folder, dataset=run.data(), device=device), report, exported,
        tuple(str(one.message).removeprefix("compress: ") for one in heard),
    )  # fmt: skip


def _write(
    folder: Path, network: CompactViT, report: CompressionReport, about: dict[str, Any], export_as: Format | None,
    samples: int | None, seed: int,
) -> Path | None:  # fmt: skip
    """All files, run.json last: without it the rest is no run.

    What takes room comes first, under names of its own. Until it is there, a network of before stays as it was.
    """
    data, exported, fresh = about["data"], None, None
    if export_as is not None:
        exported = folder / f"network{SUFFIX[export_as]}"
        fresh = export(
            network, folder / f".new-{exported.name}", format=export_as, samples=samples, seed=seed,
            mean=torch.tensor(data["mean"]), sd=torch.tensor(data["sd"]), pixels=getattr(torch, data["pixels"]),
            likelihood=about["recipe"]["likelihood"],
        )  # fmt: skip
    try:
        put_in_place = prepared(network, folder)
        with _set_aside(folder / "run.json"):
            put_in_place()
    except BaseException:
        if fresh is not None:
            fresh.unlink(missing_ok=True)
        raise
    for suffix in SUFFIX.values():
        (folder / f"network{suffix}").unlink(missing_ok=True)
    if fresh is not None and exported is not None:
        os.replace(fresh, exported)
    write_json(folder / REPORT, report.as_dict())
    write_json(folder / "run.json", about)
    return exported


@contextlib.contextmanager
def _set_aside(file: Path) -> Iterator[None]:
    """Take a file away, and bring it back where what is inside fails: by its name, which needs no room."""
    aside = file.with_name(f".old-{file.name}")
    if file.exists():
        os.replace(file, aside)
    try:
        yield
    except BaseException:
        if aside.exists():
            os.replace(aside, file)
        raise
    aside.unlink(missing_ok=True)


def _check_folder(run: Run, folder: Path, *, overwrite: bool) -> None:
    check_utf8(folder)
    if folder.resolve() == run.folder.resolve():
        raise FileExistsError(f"compress: {folder} is the run itself, which would be lost; give another --out")
    there = [name for name in ("run.json", INDEX, SAVED) if (folder / name).is_file()]
    if not there:
        return
    trained = SAVED in there or ("run.json" in there and "compressed" not in RunFolder(folder).read())
    if trained:
        raise FileExistsError(f"compress: {folder} holds a training, which is not replaced; give another --out")
    if not overwrite:
        raise FileExistsError(
            f"compress: {folder} holds a compressed network already; give another --out, or --overwrite to replace it"
        )


def _check_run(run: Run) -> None:
    if isinstance(run, CompactRun) and not run.bayesian:
        raise ValueError(
            f"compress: {run.folder} is compressed and deterministic, so it has no posterior to go on with; compress "
            f"{run.about['compressed']['from']} instead, or keep the posterior with --bayesian"
        )


def training_images(run: Run) -> Images:
    """The sample that a run was trained on."""
    recipe = run.recipe
    return split(
        run.data().train, train=recipe.train_size, validation=recipe.validation, stratified=recipe.stratified,
        seed=recipe.seed_of_sample,
    )[0]  # fmt: skip


def _likelihood(run: Run) -> Likelihood:
    return likelihood(run.about["recipe"]["likelihood"])
