"""Two processes that train one model under FSDP2. Run as a program, this file is one of the two; see `ranks.py`."""

import os
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import isingformer as isf
from isingformer.methods import attached_to
from ranks import METHODS, attached, batches, main, own_part

NAMES = ("fisher", "contrast", "expand", "dropconnect")
TOKENS = 5


class Conv1D(nn.Module):
    """The linear layer of GPT-2, known by its name: the weight is transposed, so that its columns are cut up."""

    def __init__(self, width, out):
        super().__init__()
        self.nf = out
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) / width**0.5), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.weight + self.bias


Conv1D.__module__ = "transformers.pytorch_utils"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(7, 8), Conv1D(8, 7)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Uneven(nn.Module):
    """Layers of 7, 8 and 1 rows and a transposed one: on two ranks their pieces are 4 and 3, 4 and 4, 1 and none."""

    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(3, 7), Block()
        self.checkpointed = False
        self.narrow, self.wide, self.last = nn.Linear(7, 1), nn.Linear(1, 7), nn.Linear(7, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)
        return self.last((x + self.wide(torch.tanh(self.narrow(x)))).mean(1))


def network(seed=0):
    torch.manual_seed(seed)
    return Uneven().double()


def cut_up(model, method):
    """As a user would: the block as a unit of its own, whose weights are not whole after its pass, then the rest."""
    fully_shard(model.block)
    fully_shard(model)
    method.shard()


def trained(model, method, steps, part=slice(None), micro=1, terms=False):
    """Train on a part of every batch, in micro-batches; what kl() was at each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    said = []
    for x, y in steps:
        for own_x, own_y in zip(x[part].chunk(micro), y[part].chunk(micro), strict=True):
            loss = F.cross_entropy(model(own_x), own_y)
            kl = method.kl(terms=TOKENS * len(own_x) if terms else None)
            ((loss + kl) / micro).backward()
            said.append(kl.detach())
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        if getattr(method.method, "learn_delta", 0):
            method.learn_delta(x[part], targets=y[part])
    return torch.stack(said)


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def state(model, method):
    """Weights, q and curvature by name, whole; and the rest of what the method remembers."""
    found = {f"m {name}": whole(m) for name, m in model.state_dict().items()}
    found |= {f"q {name}": q for name, q in method.drop_probability().items()}
    found |= {f"h {name}": h for name, h in method.curvature().items()}
    return found | {f"saved {name}": value for name, value in method.state_dict().items()}


def settings(name):
    """How a method is trained: in micro-batches, or with a loss that counts tokens."""
    return {"micro": 2 if name == "expand" else 1, "terms": name == "fisher"}


def equal_masks(rank, name):
    model = network()
    method = attached(model, METHODS[name], seeds=5)
    cut_up(model, method)
    model.checkpointed = name == "expand"
    said = trained(model, method, batches(), own_part(rank), **settings(name))
    return {**state(model, method), "kl": said, "summary": torch.tensor(list(method.summary().values()))}


def kept(rank):
    """How many numbers this rank keeps of q and of curvature, and how many there are."""
    model = network()
    method = attached(model, METHODS["fisher"], seeds=5)
    there = sum(part.drop.numel() for part in method.parts.posteriors.values())
    cut_up(model, method)
    trained(model, method, batches()[:2], own_part(rank))
    q = sum(part.drop.untyped_storage().nbytes() for part in method.parts.posteriors.values()) // 8
    h = {name: tensor.numel() for name, tensor in method.rule.average.tensors().items()}
    counts = torch.tensor([there, q, h["curvature.sums"], h["curvature.average"]])
    return {"numbers": counts, **{f"piece {name}": part.drop for name, part in method.parts.posteriors.items()}}


def saved(rank, folder):
    """Saved between two refreshes by both, predicted, loaded by both and trained on."""
    model = network()
    method = attached(model, METHODS["expand"], seeds=5)
    cut_up(model, method)
    trained(model, method, batches()[:4], own_part(rank))
    method.load_state_dict(method.state_dict())
    isf.save(model, folder / "saved")
    x = batches()[0][0]
    found = {"saved output": model.eval()(x).detach()}
    found["probs"] = isf.predict(model, x, samples=4, generator=torch.Generator().manual_seed(3)).probs
    again = isf.load(folder / "saved", network(seed=7))
    method = attached_to(again)
    cut_up(again, method)
    trained(again.train(), method, batches()[4:], own_part(rank))
    found |= state(again, method)
    again.eval()
    before = again(x).detach()
    method.detach("expected")
    return found | {"expected": before, "detached": again(x).detach()}


def refused(rank):
    """1 where something that cannot be is refused in our words."""

    def sharded_first():
        model = network()
        fully_shard(model)
        attached(model, METHODS["fisher"])

    def not_told():
        model = network()
        method = attached(model, METHODS["fisher"])
        fully_shard(model)
        trained(model, method, batches(), own_part(rank))

    def not_sharded():
        attached(network(), METHODS["fisher"]).shard()

    def the_layer_itself():
        model = network()
        method = attached(model, METHODS["fisher"])
        fully_shard(model.last)
        cut_up(model, method)

    def needs_all():
        model = network()
        cut_up(model, attached(model, isf.Ising(curvature="mc-fisher", warmup=0)))

    def explained():
        model = isf.ViT(image_size=4, patch=2, channels=1, width=8, depth=1, heads=2, mlp=8, classes=3)
        method = isf.attach(model, METHODS["fisher"], examples=10)
        fully_shard(model)
        method.shard()
        isf.explain(model, torch.zeros(1, 1, 4, 4), samples=2)

    said = {
        sharded_first: "attach first, then fully_shard(model), then method.shard()",
        not_told: "attach first, then fully_shard(model), then method.shard()",
        not_sharded: "is not sharded; call fully_shard(model) first",
        the_layer_itself: "fully_shard was called on 'last' itself",
        needs_all: "curvature 'mc-fisher' needs all layers whole at once",
        explained: "the method is sharded over processes",
    }
    found = {}
    for what, line in said.items():
        try:
            what()
        except ValueError as error:
            found[what.__name__] = torch.tensor(line in str(error))
    return found


def all_that_live(rank, folder):
    seen = {name: equal_masks(rank, name) for name in NAMES}
    seen |= {"kept": kept(rank), "saved": saved(rank, folder), "refused": refused(rank)}
    return {f"{scenario}/{key}": value for scenario, found in seen.items() for key, value in found.items()}


def dies(rank, folder):
    """Rank 1 is killed by itself in the middle of its training."""
    model = network()
    method = attached(model, METHODS["fisher"])
    cut_up(model, method)
    for number, batch in enumerate(batches()):
        if rank == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        trained(model, method, [batch], own_part(rank))
    return {}


PROGRAMS = {"all": all_that_live, "dies sharded": dies}

if __name__ == "__main__":
    main(PROGRAMS, *sys.argv[1:])
