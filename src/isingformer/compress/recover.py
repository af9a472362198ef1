"""Short fine-tuning after removal, on labels or on what the full posterior predicts.

    loss = (1 - a) mean NLL(labels) + a mean cross-entropy(teacher's predictive distribution, network)   + kl()

a = `distil` where there is a teacher, else 0; kl() where the network kept its method.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..curvature.likelihood import Likelihood
from ..curvature.likelihood import likelihood as find_likelihood
from ..data import Images
from ..methods import Attached, attached_to
from ..nn.vit import ViT
from ..predict import predict
from ..train.batches import Batches, derived_seed
from ..train.loop import Diverged, adamw
from ..train.recipe import schedule
from .compact import CompactViT
from .shape import shape_of

WARM_UP, CLIP = 0.1, 1.0
Network = TypeVar("Network", bound=nn.Module)


def recover(
    model: Network,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    teacher: nn.Module | Tensor | None = None,
    distil: float = 0.5,
    samples: int = 20,
    lr: float = 5e-4,
    weight_decay: float = 0.05,
    batch: int = 128,
    likelihood: str | Likelihood = "softmax",
    keep_zeros: bool = False,
    seed: int = 0,
) -> Network:
    """Fine-tune a smaller network in place, by AdamW with a rise and a cosine of the learning rate.

    A network that kept its method goes on being trained with it: passes are drawn, kl() is in the loss, q goes on being
    swept. torch's default generators are used and left as they were.

    Args:
        model: what `compress` or `sparsify` gave.
        images: ``[N, C, H, W]`` as the network reads them: standardised.
        labels: ``[N]``.
        epochs: passes over the images; give these or `steps`.
        steps: batches.
        teacher: a model with its method, whose predictive distribution is learnt too; usually the one before removal.
            Or the probabilities themselves, ``[N, classes]``: made once by `predict`, they serve many networks.
        distil: weight of the teacher against the labels, in [0, 1].
        samples: passes of the teacher over all images, made once, before the first step.
        lr: the peak learning rate.
        weight_decay: on the matrices of the linear layers alone.
        batch: images a step.
        likelihood: what the outputs mean, where the network has no method to say it.
        keep_zeros: weights of linear layers that are 0 stay 0, for what `sparsify` gave.
        seed: of the batches' order, of the drawn networks and of the teacher's.

    Returns:
        The network, in eval mode.

    Raises:
        Diverged: the loss turned NaN or infinite.
    """
    _check(model, images, labels, teacher, distil)
    handle = attached_to(model)
    kind = find_likelihood(likelihood) if handle is None else handle.parts.likelihood
    like = model.get_parameter("head.weight")
    images = images.to(like)
    soft = _predicted(teacher, kind, images, shape_of(model).classes, samples, seed)
    none, one = torch.zeros(images.shape[1]), torch.ones(images.shape[1])  # they are standardised already
    batches = Batches(
        Images(images.cpu(), labels.cpu()), batch=min(batch, len(labels)), mean=none, sd=one, augment=(), seed=seed,
        device=like.device,
    )  # fmt: skip
    total = _steps(epochs, steps, batches.per_epoch)
    on_gpu = like.device.type == "cuda"
    # A GPU is given its learning rate in a tensor, and is asked only at the end whether a loss was no number.
    optimizer = adamw(*_groups(model), torch.tensor(lr, device=like.device) if on_gpu else lr, weight_decay)
    kept = [(layer.weight, layer.weight.detach() != 0) for layer in _layers(model)] if keep_zeros else []
    first_bad = torch.full((), -1, device=like.device)
    with torch.random.fork_rng([like.device] if like.device.type == "cuda" else []):
        for step in range(total):
            torch.manual_seed(derived_seed(seed, "noise", step))
            _set_rate(optimizer, lr * schedule(step, steps=total, warmup=WARM_UP))
            model.train()
            x, y = batches(step)
            outputs = model(x.to(like.dtype))
            loss = kind.nll(outputs, y).mean()
            if soft is not None:
                rows = batches.rows(step).to(like.device)
                loss = (1 - distil) * loss + distil * _cross_entropy(kind, outputs, soft[rows])
            first_bad = torch.where((first_bad < 0) & ~loss.detach().isfinite(), step, first_bad)
            if not on_gpu or step + 1 == total:
                _check_finite(first_bad)
            _one_step(loss, optimizer, model, handle, y)
            with torch.no_grad():
                for weight, mask in kept:
                    weight.mul_(mask)
    return model.eval()


def _check_finite(first_bad: Tensor) -> None:
    step = int(first_bad)
    if step >= 0:
        raise Diverged(f"recover: the loss turned NaN or infinite at step {step + 1}; try a lower learning rate")


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _one_step(
    loss: Tensor, optimizer: torch.optim.Optimizer, model: nn.Module, handle: Attached | None, y: Tensor
) -> None:
    (loss if handle is None else loss + handle.kl()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    if handle is not None:
        handle.step(targets=y)


def _check(model: nn.Module, images: Tensor, labels: Tensor, teacher: nn.Module | Tensor | None, distil: float) -> None:
    if not isinstance(model, CompactViT) and (not isinstance(model, ViT) or attached_to(model) is not None):
        raise ValueError(f"recover: expected a network from compress or sparsify, got {type(model).__name__}")
    shape = shape_of(model)
    size = [shape.channels, shape.image_size, shape.image_size]
    if images.dim() != 4 or list(images.shape[1:]) != size or labels.shape != images.shape[:1] or not len(labels):
        wanted = f"[N, {', '.join(map(str, size))}] and [N]"
        raise ValueError(
            f"recover: images have shape {list(images.shape)} and labels {list(labels.shape)}; expected {wanted}"
        )
    if isinstance(teacher, nn.Module) and attached_to(teacher) is None:
        raise ValueError(
            f"recover: the teacher, a {type(teacher).__name__}, carries no method, so it has no posterior predictive; "
            "give the model that was compressed"
        )
    if not 0 <= distil <= 1:
        raise ValueError(f"recover: distil must be in [0, 1], got {distil}")


def _steps(epochs: int | None, steps: int | None, per_epoch: int) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError(f"recover: give epochs or steps, one of them, got epochs={epochs} and steps={steps}")
    asked = epochs if steps is None else steps
    if not isinstance(asked, int) or asked < 1:
        raise ValueError(f"recover: epochs and steps are whole numbers from 1 on, got {asked!r}")
    return asked * (per_epoch if steps is None else 1)


def _layers(model: nn.Module) -> list[nn.Linear]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def _groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices of the linear layers, and the other parameters."""
    matrices = {id(layer.weight) for layer in _layers(model)}
    parameters = list(model.parameters())
    return [p for p in parameters if id(p) in matrices], [p for p in parameters if id(p) not in matrices]


def _predicted(
    teacher: nn.Module | Tensor | None, kind: Likelihood, images: Tensor, classes: int, samples: int, seed: int
) -> Tensor | None:
    """The teacher's predictive distribution for every image, ``[N, classes]``."""
    if teacher is None:
        return None
    if isinstance(teacher, Tensor):
        return _checked(teacher, kind, len(images), classes).to(images)
    own = attached_to(teacher)
    assert own is not None  # checked
    if {kind.name, own.parts.likelihood.name} - {"softmax"} and {kind.name, own.parts.likelihood.name} - {"binary"}:
        raise ValueError(
            f"recover: distilling needs classes on both sides, got likelihood {kind.name!r} and a teacher with "
            f"{own.parts.likelihood.name!r}; train on labels alone"
        )
    return predict(teacher, images, samples=samples, generator=torch.Generator().manual_seed(seed)).probs


def _checked(probs: Tensor, kind: Likelihood, images: int, classes: int) -> Tensor:
    """Probabilities a user gave."""
    shape = [images, 2 if kind.name == "binary" else classes]
    if list(probs.shape) != shape:
        raise ValueError(f"recover: the teacher's probabilities have shape {list(probs.shape)}; expected {shape}")
    if not bool((probs >= 0).all()) or not bool(((probs.sum(-1) - 1).abs() < 1e-3).all()):
        raise ValueError("recover: the teacher's probabilities must be 0 or more and sum to 1; give predict(...).probs")
    return probs


def _cross_entropy(kind: Likelihood, outputs: Tensor, probs: Tensor) -> Tensor:
    """- mean over images of sum over classes of p log p', p the teacher's and p' the network's."""
    if kind.name == "binary":
        outputs = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)  # log odds of class 1
    return -(probs.to(outputs.dtype) * F.log_softmax(outputs, -1)).sum(-1).mean()
