"""Two processes that train one model, and what each of them saw. Run as a program, this file is one of the two.

The processes find each other by a file, so that no port has to be free, and talk over loopback.
"""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import isingformer as isf
from isingformer.train.processes import data_parallel

RANKS, BATCH, STEPS = 2, 12, 6
METHODS = {
    "fisher": isf.Ising(
        refresh=2,
        warmup=2,
        sampling="mask",
        measure_every=1,
        node_rate=0.1,
        floor=0.0,
        laplace_noise=0.1,
        evidence_weight=10.0,
    ),
    "contrast": isf.Ising(
        refresh=2, warmup=0, sampling="mask", measure_every=1, contrast=2.0, floor=0.05, learn_delta=0.2
    ),
    "expand": isf.Ising(
        refresh=3, warmup=0, sampling="mask", curvature="expand", spike_slab=True, evidence_weight=10.0, node_rate=0.0
    ),
    "lm by epoch": isf.Ising(
        refresh="epoch", warmup=0, sampling="mask", curvature="lm", two_way=True, evidence_weight=10.0
    ),
    "dropconnect": isf.DropConnect(p=0.3, sampling="mask"),
}


class Tokens(nn.Module):
    """Five tokens, a residual stream, a mean over tokens."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last((x + torch.tanh(self.inner(x))).mean(1))


def network(seed=0):
    torch.manual_seed(seed)
    return Tokens().double()


def batches(steps=STEPS):
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(steps, BATCH, 5, 3, generator=generator, dtype=torch.float64)
    return list(zip(draw, torch.randint(4, (steps, BATCH), generator=generator), strict=True))


def attached(model, method, **more):
    return isf.attach(model, method, examples=2 * BATCH, example=torch.zeros(2, 5, 3, dtype=torch.float64), **more)


def trained(model, wrapped, method, steps, part=slice(None), micro=1):
    """Train on a part of every batch, in micro-batches; the last of them sends gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for x, y in steps:
        chunks = list(zip(x[part].chunk(micro), y[part].chunk(micro), strict=True))
        for number, (own_x, own_y) in enumerate(chunks):
            if wrapped is not model:
                wrapped.require_backward_grad_sync = number == len(chunks) - 1
            ((F.cross_entropy(wrapped(own_x), own_y) + method.kl()) / micro).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step(targets=y[part])


def state(model, method):
    """Weights, q and curvature by name."""
    found = {f"m {name}": m.detach().clone() for name, m in model.named_parameters()}
    found |= {f"q {name}": q for name, q in method.drop_probability().items()}
    return found | {f"h {name}": h for name, h in method.curvature().items()}


def own_part(rank):
    return slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS)


def equal_masks(rank, name):
    """What one process with the whole batch must agree with; ranks begin with other weights, which DDP makes equal."""
    model = network(seed=rank)
    method = attached(model, METHODS[name], seeds=5)
    wrapped = data_parallel(model) if name == "expand" else DistributedDataParallel(model)
    trained(model, wrapped, method, batches(), own_part(rank), micro=2 if name == "expand" else 1)
    return state(model, method)


def own_masks(rank):
    """The default: all have seeded torch alike, and draw different masks."""
    model = network()
    method = attached(model, METHODS["fisher"])
    torch.manual_seed(3)
    trained(model, DistributedDataParallel(model), method, batches(), own_part(rank))
    found = state(model, method)
    x = batches()[0][0]
    for name in ("pass", "same pass"):
        torch.manual_seed(4)
        found[name] = model.train()(x).detach()
    return found | {"saved " + key: value for key, value in method.state_dict().items()}


def uneven(rank):
    """Curvature of a batch cut unevenly, 3 and 9, with the weights held; a refresh once 24 examples were seen."""
    model = network()
    method = attached(
        model, isf.Ising(refresh="epoch", warmup=0, sampling="mask", measure_every=1, node_rate=0.0), seeds=5
    )
    found, part = {}, slice(0, 3) if rank == 0 else slice(3, BATCH)
    for number, (x, y) in enumerate(batches(2)):
        found[f"q {number}"] = method.drop_probability()["last"]
        (F.cross_entropy(model(x[part]), y[part]) + method.kl()).backward()
        method.step()
    return found | {f"h {name}": h for name, h in method.curvature().items()}


def apart(rank):
    """Each process with a model of its own."""
    model = network()
    method = attached(model, METHODS["fisher"], together=False)
    trained(model, model, method, batches(), own_part(rank))
    return state(model, method)


def gone_on(rank):
    """Saved by one process between two refreshes, taken up by both."""
    model = network()
    method = attached(model, METHODS["expand"], seeds=5)
    wrapped = DistributedDataParallel(model)
    trained(model, wrapped, method, batches()[:4], own_part(rank))
    method.synchronise()
    kept = [{**model.state_dict(), "method": method.state_dict()} if rank == 0 else None]
    dist.broadcast_object_list(kept, src=0)
    again = network(seed=7)
    method = attached(again, METHODS["expand"], seeds=6)
    method.load_state_dict(kept[0].pop("method"))
    again.load_state_dict(kept[0])
    trained(again, DistributedDataParallel(again), method, batches()[4:], own_part(rank))
    return state(again, method)


def dies(rank, wrap):
    """Rank 1 is killed in the middle of its training, by itself: with DDP in a backward pass, without before step()."""
    model = network()
    method = attached(model, METHODS["fisher"])
    wrapped = DistributedDataParallel(model) if wrap else model
    for number, batch in enumerate(batches()):
        if rank == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        trained(model, wrapped, method, [batch], own_part(rank))
    return {}


def start(scenario, folder, program=__file__):
    """The two processes; each writes what it saw to FOLDER/RANK.safetensors."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(RANKS)}
    command = [sys.executable, str(program), scenario, str(folder)]
    return [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]


def seen(scenario, folder, program=__file__):
    """What each rank saw, by name."""
    for process in start(scenario, folder, program):
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints
    return [load_file(folder / f"{rank}.safetensors") for rank in range(RANKS)]


def all_that_live(rank):
    found = {f"{name}/{key}": value for name in METHODS for key, value in equal_masks(rank, name).items()}
    for scenario in (own_masks, uneven, apart, gone_on):
        found |= {f"{scenario.__name__}/{key}": value for key, value in scenario(rank).items()}
    return found


def main(programs, scenario, folder):
    rank, folder = int(os.environ["RANK"]), Path(folder)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    found = programs[scenario](rank, folder)
    save_file({name: tensor.contiguous().clone() for name, tensor in found.items()}, folder / f"{rank}.safetensors")
    dist.destroy_process_group()


PROGRAMS = {
    "all": lambda rank, folder: all_that_live(rank),
    "dies with ddp": lambda rank, folder: dies(rank, wrap=True),
    "dies without": lambda rank, folder: dies(rank, wrap=False),
}

if __name__ == "__main__":
    main(PROGRAMS, *sys.argv[1:])
