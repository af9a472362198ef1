"""What a training step costs with the method on, as a ratio to the plain step of the same ViT, in one run.

    python benchmarks/step.py --out results/step-cpu.json
    python benchmarks/step.py --device cuda --out results/step-h200.json

On a GPU: width 384, depth 12, patch 16, 224 px, bf16 autocast, compiled, batch 128. On a CPU: width 128, depth 6,
patch 4, 28 px, float32, eager, batch 64. Every row is averaged over whole refresh cycles (10 steps at the defaults);
rows are measured in turn, several times over, and the median round counts. Warm-up (compilation) is not timed.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from common import report

import isingformer as isf

BIG = {
    "image_size": 224,
    "channels": 3,
    "patch": 16,
    "width": 384,
    "depth": 12,
    "heads": 6,
    "mlp": 1536,
    "classes": 1000,
}
SMALL = {"image_size": 28, "channels": 1, "patch": 4, "width": 128, "depth": 6, "heads": 4, "mlp": 256, "classes": 10}
CYCLE = 10


def curvature_alone(model):
    """Squares ride on the backward pass, but nothing is drawn."""
    method = isf.attach(model, isf.Ising(warmup=0), examples=50_000)
    for part in method.parts.posteriors.values():
        part.sampling = "expected"
    return method


VARIANTS = {
    "plain": lambda model: None,
    "ising, mask": lambda model: isf.attach(model, isf.Ising(warmup=0, sampling="mask"), examples=50_000),
    "ising, local": lambda model: isf.attach(model, isf.Ising(warmup=0), examples=50_000),
    "curvature alone": curvature_alone,
    "ising, mask, measured every 10th step": lambda model: isf.attach(
        model, isf.Ising(warmup=0, sampling="mask", measure_every=10), examples=50_000
    ),
    "ising, local, measured every 10th step": lambda model: isf.attach(
        model, isf.Ising(warmup=0, measure_every=10), examples=50_000
    ),
    "dropconnect, mask": lambda model: isf.attach(model, isf.DropConnect(sampling="mask"), examples=50_000),
    "dropout": lambda model: isf.attach(model, isf.Dropout(), examples=50_000),
}


class Trainee:
    def __init__(self, put_on, shape, device, batch, mode):
        torch.manual_seed(0)
        self.device, self.graphed = device, mode == "reduce-overhead"
        model = isf.ViT(**shape).to(device)
        self.method = put_on(model)
        self.model = torch.compile(model, mode=mode) if device == "cuda" else model
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        size = shape["image_size"]
        self.x = torch.randn(batch, shape["channels"], size, size, device=device)
        self.y = torch.randint(shape["classes"], (batch,), device=device)

    def step(self):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = F.cross_entropy(self.model(self.x), self.y)
        if self.method is not None:
            loss = loss + self.method.kl()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.method is not None:
            self.method.step()

    def cycles(self, count):
        """(seconds a step, peak bytes) over whole refresh cycles."""
        gpu = self.device == "cuda"
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(count * CYCLE):
            self.step()
        if gpu:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / (count * CYCLE)
        # The allocator does not count what a captured graph keeps as allocated, only as reserved.
        peak = torch.cuda.max_memory_reserved if self.graphed else torch.cuda.max_memory_allocated
        return seconds, peak() if gpu else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--mode", default="default", help="of torch.compile, on a GPU: default or reduce-overhead")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out")
    args = parser.parse_args()
    gpu = args.device == "cuda"
    shape, batch, cycles = (BIG, args.batch or 128, 3) if gpu else (SMALL, args.batch or 64, 1)
    names = list(dict.fromkeys(["plain", *args.only]))
    times, memory = {name: [] for name in names}, {}
    for name in names:  # one model at a time on the device, so that its peak is its own
        trainee = Trainee(VARIANTS[name], shape, args.device, batch, args.mode)
        began = time.perf_counter()
        for _ in range(CYCLE if gpu else 2):
            trainee.step()
        print(f"{name}: ready after {time.perf_counter() - began:.0f} s", flush=True)
        for _ in range(args.rounds):
            seconds, memory[name] = trainee.cycles(cycles)
            times[name].append(seconds)
        del trainee
        if gpu:
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    base = statistics.median(times["plain"])
    rows = [
        {
            "step": name,
            "ms": 1000 * statistics.median(times[name]),
            "time / plain": statistics.median(times[name]) / base,
            "spread": (max(times[name]) - min(times[name])) / base,
            "peak GiB": memory[name] / 2**30,
            "memory / plain": memory[name] / memory["plain"] if memory["plain"] else float("nan"),
        }
        for name in names
    ]
    if not gpu:
        rows = [{key: value for key, value in row.items() if "peak" not in key and "memory" not in key} for row in rows]
    report(
        "Training step over the plain step",
        rows,
        args.out,
        shape=shape,
        batch=batch,
        rounds=args.rounds,
        **({"mode": args.mode} if gpu else {}),
    )


if __name__ == "__main__":
    main()
