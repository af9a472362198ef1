"""A trained run, opened: questions about its test images, about other data, about image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from .._files import check_tensors
from ..data import Dataset, Images, load_data, read_image, resized, split, subset
from ..methods import Attached, History, attached_to, called, load
from ..metrics import Scores, ood_auroc, scores
from ..predict import Prediction, fit_temperature, predict
from .batches import standardised
from .device import find_device, threads, threads_for
from .evaluation import Evaluation, Outside, check_test_size
from .folder import TRAIN_AGAIN, RunFolder
from .own_data import check_same, read_own
from .recipe import Recipe

DEFAULT_SAMPLES = 50
File = str | os.PathLike[str]
CHUNK = 1 << 26
"""Pixels that are turned into numbers at once."""


class Run:
    """A run's folder, its model and its data.

    Args:
        folder: what `train` wrote.
        dataset: the data it was trained on, where they are at hand; else they are read again when needed.
        device: where the model is to run: ``cpu``, ``cuda``, ``cuda:1``; None or ``auto``: a GPU where there is one.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        dataset: Dataset | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.about = RunFolder(folder).read()
        self.device = find_device(str(device or "auto"))
        self._dataset = dataset

    def __repr__(self) -> str:
        state = "trained" if self.finished else "unfinished"
        return f"<run {self.folder}: {called(self.about['method'])} on {self.about['data']['name']}, {state}>"

    @property
    def finished(self) -> bool:
        """Whether its training came to its end."""
        return self.about["finished"] is not None

    @property
    def classes(self) -> tuple[str, ...]:
        """What the classes are called."""
        return tuple(self.about["data"]["classes"])

    @property
    def recipe(self) -> Recipe:
        """The settings of its training, besides data and method."""
        settings = self.about["recipe"]
        unknown = [name for name in settings if name not in Recipe.__dataclass_fields__]
        if unknown:
            raise ValueError(
                f"{self.folder} was trained with settings that this version does not know ({', '.join(unknown)}); use "
                f"isingformer {self.about['isingformer']}"
            )
        return Recipe(**settings)

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, its method attached, in eval mode."""
        if not self.finished:
            raise ValueError(
                f"{self.folder} is not finished; give its training command again, and it goes on (with --overwrite and "
                "gentler settings where it diverged)"
            )
        if "compressed" in self.about:
            raise ValueError(
                f"{self.folder} is a compressed network; open it with "
                f"isingformer.compress.open_run({str(self.folder)!r})"
            )
        RunFolder(self.folder).check_model()
        try:
            return load(self.folder).to(self.device).eval()
        except (KeyError, TypeError) as error:  # JSON, and not what `save` writes
            raise ValueError(f"{self.folder / 'isingformer.json'} is damaged ({error!r}); {TRAIN_AGAIN}") from error

    @property
    def method(self) -> Attached:
        """The method on the model: its drop probabilities, its weights' posterior."""
        handle = attached_to(self.model)
        assert handle is not None  # `load` attaches one
        return handle

    def q_history(self) -> History | None:
        """How q moved during the training; None where no pictures of it were kept."""
        file = RunFolder(self.folder).q_history
        if not file.exists():
            return None
        try:
            check_tensors(file, TRAIN_AGAIN)
            return History.load(file)
        except ValueError as error:
            raise ValueError(f"{error}; or remove it, and do without the pictures of the training") from None

    def data(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        download: bool = True,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> Dataset:
        """The data it was trained on, read again and compared with what they were.

        Args:
            data_dir: where they are now, if they are not where they were or have changed there: for a dataset with a
                name the data folder, else the folder of images or the .npz itself.
            download: bring what is missing from the publisher.
            progress: called as `load_data` does while data are brought or read.
        """
        about = self.about["data"]
        found = self._dataset
        if found is None:
            found = read_own(self.folder, about, data_dir, download=download, progress=progress)
        check_same(self.folder, about, found)
        self._dataset = found
        return found

    def validation(self, data_dir: str | os.PathLike[str] | None = None) -> Images:
        """The images that were held out of training."""
        recipe = self.recipe
        _, held_out = split(
            self.data(data_dir).train, train=recipe.train_size, validation=recipe.validation,
            stratified=recipe.stratified, seed=recipe.seed_of_sample,
        )  # fmt: skip
        return held_out

    def inputs(self, x: Tensor) -> Tensor:
        """Images ``[N, C, H, W]`` as the model reads them: standardised with the training sample's mean and sd."""
        about = self.about["data"]
        pixels = str(x.dtype).removeprefix("torch.")
        if list(x.shape[1:]) != [about["channels"], *about["size"]] or pixels != about["pixels"]:
            fix = "give pixels as the training data had them"
            if pixels != about["pixels"]:
                fix += " (--resize converts no units)"
            elif x.dim() == 4:
                fix = "--resize (resize=True) converts sizes and colours"
            raise ValueError(
                f"images are {pixels} {list(x.shape)}; {self.folder} reads {about['pixels']} "
                f"{['N', about['channels'], *about['size']]}; {fix}".replace("'N'", "N")
            )
        return standardised(x.to(self.device), torch.tensor(about["mean"]), torch.tensor(about["sd"]))

    def predict(
        self, images: Tensor | File | Sequence[File], *, samples: int = DEFAULT_SAMPLES, seed: int = 0,
        resize: bool = False,
    ) -> Prediction:  # fmt: skip
        """The predictive distribution for images.

        Args:
            images: pixels ``[N, C, H, W]`` as the training data had them, or image files (one, or several).
            samples: passes, each a network drawn anew.
            seed: of the drawn networks.
            resize: scale and crop them to the size that the model reads, and convert their colours. Done anyway with
                files where the training images were resized.
        """
        if isinstance(images, Tensor):
            images = self._resized(Images(images, torch.zeros(len(images)))).x if resize else images
        else:
            images = self.read_images([images] if isinstance(images, str | os.PathLike) else images, resize=resize)
        if not len(images):
            raise ValueError("predict: there are no images; give at least one")
        parts = []
        for chunk in images.split(max(1, CHUNK // images[0].numel())):
            # The seed of the networks comes from the generator, so that a fresh one draws the same for every chunk.
            generator = torch.Generator().manual_seed(seed)
            with threads(threads_for(self.about["network"], self.device)):
                parts.append(predict(self.model, self.inputs(chunk), samples=samples, generator=generator).samples)
        return Prediction(torch.cat(parts, dim=1))

    def read_images(self, files: Sequence[str | os.PathLike[str]], *, resize: bool = False) -> Tensor:
        """Image files as pixels ``[N, C, H, W]`` like those of the training data; `predict` says what `resize` does."""
        about = self.about["data"]
        if about["pixels"] != "uint8":
            raise ValueError(
                f"{self.folder} was trained on {about['pixels']} numbers, so it is unknown what an image file's pixels "
                "would be among them; from Python, give a tensor"
            )
        if about["channels"] not in (1, 3):
            raise ValueError(
                f"{self.folder} reads images of {about['channels']} channels, and image files have 1 (grey) or 3 "
                "(RGB); from Python, give a tensor"
            )
        trained_so = bool((about["origin"] or {}).get("resize"))
        height, width = about["size"]
        read = [
            read_image(_path(file), channels=about["channels"], size=(height, width), resize=resize or trained_so)
            for file in files
        ]
        return torch.stack(read) if read else torch.empty(0)

    def evaluate(
        self,
        data: Dataset | str | os.PathLike[str] | None = None,
        *,
        on: Literal["test", "validation"] = "test",
        samples: int = DEFAULT_SAMPLES,
        test_size: int | None = None,
        temperature: bool = False,
        outside: Dataset | str | os.PathLike[str] | None = None,
        resize: bool = False,
        seed: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> Evaluation:
        """Score the run on test images.

        Args:
            data: whose test images, a dataset or what `load_data` takes; None: those of the data it was trained on.
            on: ``validation`` scores the images held out of training instead: what settings are to be chosen by.
            samples: passes, each a network drawn anew, the same for all images.
            test_size: score a sample of so many test images, the same for every run (seed 0); None: all.
            temperature: fit a temperature on the validation images and score with it.
            outside: a dataset of other things: how well the uncertainty tells its test images from the run's own.
            resize: scale and crop `data` and `outside` to the size that the model reads, and convert their colours.
            seed: of the drawn networks.
            data_dir: where the training data are now, if not where they were.
        """
        if temperature and on == "validation":
            raise ValueError("evaluate: a temperature is fitted on the validation images; leave it or validation out")
        dataset = self.data(data_dir) if data is None else _loaded(data)
        strange = None if outside is None else _loaded(outside)
        self._check_classes(dataset)
        check_test_size(test_size, dataset, strange)
        ask = partial(self.predict, samples=samples, seed=seed)
        test = self._images(dataset, on, test_size, data_dir, resize=resize)
        found = ask(test.x)
        fitted, raw = None, None
        if temperature:
            held_out = self.validation(data_dir)
            if not len(held_out):
                raise ValueError(
                    f"{self.folder} held out no validation images to fit a temperature on; train with some"
                )
            fitted = fit_temperature(ask(held_out.x), held_out.y.to(self.device))
            raw, found = self._scores(found, test.y), found.tempered(fitted)
        elsewhere = None
        if strange is not None:
            other = ask(self._fitting(strange.test, test_size, resize=resize).x)
            other = other if fitted is None else other.tempered(fitted)
            elsewhere = Outside(
                strange.name, len(other.entropy), ood_auroc(found.entropy, other.entropy),
                ood_auroc(found.epistemic, other.epistemic), float(other.entropy.mean()),
            )  # fmt: skip
        return Evaluation(
            dataset.name, on, len(test), len(found.samples), self._scores(found, test.y), fitted, raw, elsewhere
        )

    def _check_classes(self, dataset: Dataset) -> None:
        """Refuse data with other classes; a dataset whose classes are mere numbers may have any names here."""
        numbers = tuple(map(str, range(len(self.classes))))
        unnamed = numbers in (dataset.classes, self.classes) and len(dataset.classes) == len(self.classes)
        if unnamed or dataset.classes == self.classes:
            return
        strange = [name for name in dataset.classes if name not in self.classes]
        what = f"such as {strange[0]!r}" if strange else "in another order or number"
        raise ValueError(
            f"{dataset.name} has other classes than {self.folder} ({len(dataset.classes)} here, {len(self.classes)} "
            f"there, {what}); evaluate on data with the same classes, or use it as --ood (outside=) data"
        )

    def _images(
        self, dataset: Dataset, on: str, size: int | None, data_dir: str | os.PathLike[str] | None, *, resize: bool
    ) -> Images:
        if on == "test":
            return self._fitting(dataset.test, size, resize=resize)
        if on != "validation":
            raise ValueError(f"evaluate: on must be 'test' or 'validation', got {on!r}")
        if dataset is not self.data(data_dir) or size is not None:
            raise ValueError("evaluate: the validation images are those of the run's own data, all of them")
        held_out = self.validation(data_dir)
        if not len(held_out):
            raise ValueError(f"{self.folder} held out no validation images; train with some")
        return held_out

    def _fitting(self, images: Images, size: int | None, *, resize: bool) -> Images:
        chosen = images if size is None else subset(images, size, seed=0)
        return self._resized(chosen) if resize else chosen

    def _resized(self, images: Images) -> Images:
        """Images of the size and with the colours that the model reads; the same ones where they are so already."""
        (height, width), channels = self.about["data"]["size"], self.about["data"]["channels"]
        fits = tuple(images.x.shape[1:]) == (channels, height, width)
        return images if fits else resized(images, (height, width), channels)

    @staticmethod
    def _scores(found: Prediction, targets: Tensor) -> Scores:
        return scores(found.probs, targets.to(found.probs.device), entropy=found.entropy, epistemic=found.epistemic)


def _path(file: object) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise ValueError(
            f"expected a tensor [N, C, H, W] or image files, got {type(file).__name__}; torch.from_numpy makes a "
            "tensor of an array"
        )
    return Path(file)


def _loaded(data: Dataset | str | os.PathLike[str]) -> Dataset:
    return data if isinstance(data, Dataset) else load_data(data)
