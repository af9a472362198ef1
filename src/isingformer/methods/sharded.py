"""A method on a model that `fully_shard` has cut up: q and h are kept in the same pieces as the weights.

    pass       q of a layer is gathered when the layer needs it, as FSDP2 gathers its weight
    backward   squared gradients of the whole layer are summed over processes, each keeping the sum of its piece
    kl()       each process sums over its pieces; values add up, gradients are those of the pieces
    sweep      each process sweeps its pieces; what layers tell each other, sums of columns ``[in]``, is added up

Whatever is asked for by name (`drop_probability`, `curvature`, `state_dict`) is whole, so that all processes must ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..curvature.average import COUNTS, CurvatureAverage
from ..ising import Sweep, backward_order, prior_field
from ..ising.sweep import neighbours, outgoing, unread_share
from ..nn.layers import Masked, MaskedIdentity
from ..nn.multihead import DenseTransformerEncoder, MaskedMultiheadAttention
from ..nn.noise import KeyedNoise
from .distributed import add_up, is_sharded, processes, rank
from .method import Parts
from .pieces import Piece, piece_of

if TYPE_CHECKING:
    from .attached import Attached

FLAT = ("curvature.sums", "curvature.average")
"""Entries of a state in which all layers lie end to end."""


def shard(method: Attached) -> None:
    """Cut q and h up like the weights. See `Attached.shard`."""
    parts = method.parts
    if parts.pieces:
        raise RuntimeError("shard: this method is sharded already")
    if processes() == 1 or not method.rule.together:
        raise ValueError("shard: there is one process, or attach was told together=False; leave shard() out")
    reshard(parts)
    for name in wrapped_themselves(parts.model):
        raise ValueError(
            f"shard: fully_shard was called on {name!r} itself, which is masked; call it on what is around"
        )
    pieces = {name: piece_of(layer, name) for name, layer in parts.layers.items()}
    for name, part in parts.posteriors.items():
        if part.drop.device != (there := parts.layers[name].get_parameter("weight").device):
            raise ValueError(f"shard: q of {name!r} is on {part.drop.device}, its weight on {there}; offload nothing")
    method.rule.shard(pieces)
    for name, part in parts.posteriors.items():
        part.cut(pieces[name].cut, pieces[name].gather)
    if isinstance(method.noise, KeyedNoise):  # fully_shard moves parameters and buffers, and knows of no others
        place = next(iter(parts.posteriors.values())).drop.device
        method.noise.to(lambda keys: keys.to(place))
    parts.pieces.update(pieces)


def reshard(parts: Parts) -> None:
    """Bring all parameters back to their pieces, where a pass has left them whole."""
    from torch.distributed.fsdp import FSDPModule

    for module in parts.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def wrapped_themselves(model: nn.Module) -> list[str]:
    """Modules whose class both `attach` and `fully_shard` have changed, in this order, so that `detach` could not."""
    from torch.distributed.fsdp import FSDPModule

    ours = Masked, MaskedIdentity, MaskedMultiheadAttention, DenseTransformerEncoder
    return [name for name, own in model.named_modules() if isinstance(own, FSDPModule) and isinstance(own, ours)]


@torch.no_grad()
def sweep_pieces(
    parts: Parts, pull: Mapping[str, Tensor], *, delta: float | Tensor, coupling: float, centred: bool
) -> Sweep:
    """`ising.sweep` with m, q and pull in pieces; the prior field is whole, as it is small."""
    wiring = parts.topology.wiring
    unread = unread_share(delta, centred=centred)
    columns: dict[str, tuple[Tensor, Tensor]] = {}
    drop: dict[str, Tensor] = {}
    prior: dict[str, Tensor] = {}
    for name in backward_order(wiring):
        part, piece = parts.posteriors[name], parts.pieces[name]
        share = neighbours(wiring[name], columns, part.prior, unread)
        prior[name] = prior_field(share, delta=delta, coupling=coupling, centred=centred)
        drop[name] = torch.sigmoid(piece.cut(prior[name]) + pull[name])
        columns[name] = piece.columns(outgoing(parts.own_mean(name).to(part.drop.dtype), drop[name]))
    return Sweep(drop, prior)


def cut_average(average: CurvatureAverage, pieces: Mapping[str, Piece]) -> CurvatureAverage:
    """A running mean of whole layers, as one of this process's pieces."""
    like = {name: pieces[name].cut(average.layer(average.sums, name)) for name in average.shapes}
    own = CurvatureAverage(like, average.decay, average.flat)
    for here, there in ((own.sums, average.sums), (own.average, average.average)):
        here.copy_(cut_flat(there, pieces))
    own.counts.copy_(average.counts)
    own.weight.copy_(average.weight)
    return own


def cut_flat(flat: Tensor, pieces: Mapping[str, Piece]) -> Tensor:
    """Layers end to end, each followed by two counts, as those of this process's pieces."""
    own, at = [], 0
    for piece in pieces.values():
        size = piece.shape[0] * piece.shape[1]
        own += [piece.cut(flat[at : at + size].view(piece.shape)).flatten(), flat[at + size : at + size + COUNTS]]
        at += size + COUNTS
    return torch.cat(own)


def gathered_flat(flat: Tensor, average: CurvatureAverage, pieces: Mapping[str, Piece]) -> Tensor:
    """The other way round; all processes must call it."""
    whole = []
    for name, piece in pieces.items():
        whole += [piece.gather(average.layer(flat, name)).flatten(), flat[average.spans[name]][-COUNTS:]]
    return torch.cat(whole)


def own_squares(piece: Piece, filled: Tensor, terms: float | None) -> Tensor:
    """What a backward pass left for a layer: this process's piece, summed over processes, and the counts of its own.

    Args:
        piece: which.
        filled: gradient of the companion, ``[out * in + 2]``.
        terms: over how many terms this process's loss was a mean; None: one an example. See `CurvatureAverage.take_in`.
    """
    squares, counts = filled[:-COUNTS].view(piece.shape), filled[-COUNTS:]
    if terms is not None:
        ratio = terms * counts[1] / counts[0].clamp_min(1)
        squares, counts = squares * ratio.square(), torch.stack([counts[0] * ratio, counts[1]])
    return torch.cat([piece.add_up(squares).flatten(), counts])


def add_up_counts(filled: Mapping[str, Tensor]) -> None:
    """Give every layer of `own_squares` the counts of all processes, in place."""
    counts = add_up(torch.stack([each[-COUNTS:] for each in filled.values()]), "curvature")
    for each, of_all in zip(filled.values(), counts, strict=True):
        each[-COUNTS:] = of_all


def agreed(finite: Tensor) -> Tensor:
    """Whether it is so on all processes."""
    return add_up((~finite).to(torch.float32), "curvature") == 0


def model_tensors(model: nn.Module, method: Attached) -> dict[str, Tensor]:
    """The model's `state_dict`, whole on the first process; all must call it where the model is sharded."""
    if method.parts.pieces:
        reshard(method.parts)
    whole = {}
    for name, value in model.state_dict().items():
        gathered = value.full_tensor() if is_sharded(value) else value  # one at a time, and kept by one process alone
        if not method.parts.pieces or rank() == 0:
            whole[name] = gathered
    return whole


def plain_class(model: nn.Module, method: Attached) -> type[nn.Module]:
    """A model's class, without what `fully_shard` made of it."""
    if not method.parts.pieces:
        return type(model)
    from torch.distributed.fsdp import FSDPModule

    return next(
        kind for kind in type(model).__mro__ if issubclass(kind, nn.Module) and not issubclass(kind, FSDPModule)
    )


def _cut_up(layer: str) -> tuple[str, str]:
    """A layer's entries of a state that are as large as its weights."""
    return f"{layer}.drop", f"{layer}.variance"


def whole_state(method: Attached, live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a method in pieces as if it had never been cut; all processes must call it."""
    average: CurvatureAverage | None = getattr(method.rule, "average", None)
    pieces, whole = method.parts.pieces, dict(live)
    for name, piece in pieces.items():
        whole |= {own: piece.gather(live[own]) for own in _cut_up(name) if own in live}
    if average is not None:
        whole |= {name: gathered_flat(live[name], average, pieces) for name in FLAT}
    return whole


def own_state(method: Attached, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole state in this process's pieces; what does not fit stays as it is, for whoever compares shapes."""
    pieces, own = method.parts.pieces, dict(state)
    for name, piece in pieces.items():
        fitting = [each for each in _cut_up(name) if each in state and state[each].shape == piece.shape]
        own |= {each: piece.cut(state[each]) for each in fitting}
    length = sum(piece.shape[0] * piece.shape[1] + COUNTS for piece in pieces.values())
    for name in FLAT:
        if name in state and state[name].shape == (length,):
            own[name] = cut_flat(state[name], pieces)
    return own
