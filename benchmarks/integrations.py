"""What the method costs under other people's trainers: an attached ViT-B/16 against the plain one, in one run.

    python benchmarks/integrations.py --device cuda --out results/integrations-h200.json
    python benchmarks/integrations.py --smoke

The ViT-B/16 of transformers with random weights, 224 px, 1,000 classes, batch 128, bf16 autocast, AdamW without
clipping, eager, under the Trainer of transformers and under Lightning's. The images are noise and already on the
device, so that no loading of data hides what a step costs. Every round trains every row anew, in turn: 10 steps to warm
up, then 30 that are timed (whole refresh cycles of 10), all callbacks included; medians of the rounds count. Peak
memory is that of the timed steps, with weights, gradients and the optimiser's state.
"""

import argparse
import gc
import importlib.metadata
import statistics
import tempfile
import time
import warnings

import lightning.pytorch as pl
import torch
from common import report
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

import isingformer as isf
from isingformer.integrations import lightning as for_lightning
from isingformer.integrations import transformers as for_transformers

BASE = {"num_labels": 1000}  # the configuration's defaults are ViT-B/16 at 224 px
SMOKE = {
    "num_labels": 10, "image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
ROWS = {
    "plain": None,
    "ising, local (default)": isf.Ising(warmup=0),
    "ising, mask": isf.Ising(warmup=0, sampling="mask"),
}
CYCLE = 10
EXAMPLES = 50_000


class Clock:
    """Time and peak memory of the steps between two moments."""

    def __init__(self, device, warm, timed):
        self.gpu, self.warm, self.timed = device == "cuda", warm, timed
        self.found = None

    def begin(self, step):
        if step == self.warm:
            if self.gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            self.started = time.perf_counter()

    def end(self, done):
        if done == self.warm + self.timed:
            if self.gpu:
                torch.cuda.synchronize()
            self.found = {"seconds": (time.perf_counter() - self.started) / self.timed}
            if self.gpu:
                self.found |= {
                    "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()
                }  # fmt: skip


class TransformersClock(TrainerCallback):
    def __init__(self, clock):
        self.clock = clock

    def on_step_begin(self, args, state, control, **kwargs):
        self.clock.begin(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.clock.end(state.global_step)


class LightningClock(pl.Callback):
    def __init__(self, clock):
        self.clock = clock

    def on_train_batch_start(self, trainer, module, batch, index):
        self.clock.begin(index)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.clock.end(index + 1)


class Module(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4, fused=self.device.type == "cuda")


def under_transformers(model, attached, batch, clock, folder):
    gpu, size, steps = clock.gpu, len(batch["labels"]), clock.warm + clock.timed
    settings = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=size, bf16=gpu, use_cpu=not gpu,
        optim="adamw_torch_fused" if gpu else "adamw_torch", learning_rate=1e-4, max_grad_norm=0.0,
        logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    callbacks = ([for_transformers.IsingCallback()] if attached else []) + [TransformersClock(clock)]
    Trainer(
        model, settings, train_dataset=range(size * steps), data_collator=lambda items: dict(batch), callbacks=callbacks
    ).train()


def under_lightning(model, attached, batch, clock, folder):
    callbacks = ([for_lightning.IsingCallback()] if attached else []) + [LightningClock(clock)]
    steps = clock.warm + clock.timed
    trainer = pl.Trainer(
        accelerator="gpu" if clock.gpu else "cpu", devices=1, max_steps=steps, max_epochs=1,
        precision="bf16-mixed" if clock.gpu else "32-true",
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=folder, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(Module(model), torch.utils.data.DataLoader(range(steps), collate_fn=lambda items: dict(batch)))


TRAINERS = {"transformers": under_transformers, "lightning": under_lightning}


def measured(trainer, row, args):
    """One training from scratch, with nothing of the one before on the device."""
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    torch.manual_seed(0)
    config = ViTConfig(**(SMOKE if args.smoke else BASE))
    with torch.device(args.device):
        model = ViTForImageClassification(config).train()
        batch = {
            "pixel_values": torch.randn(args.batch, 3, config.image_size, config.image_size),
            "labels": torch.randint(config.num_labels, (args.batch,)),
        }
    if ROWS[row] is not None:
        isf.attach(model, ROWS[row], examples=EXAMPLES)
    clock = Clock(args.device, CYCLE, args.cycles * CYCLE)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trainers, about workers and loggers that are not wanted here
        TRAINERS[trainer](model, ROWS[row] is not None, batch, clock, folder)
    return clock.found


def summary(found):
    """A line a trainer and row: medians over the rounds, and ratios to the plain row of the same trainer."""
    lines = []
    for (trainer, row), rounds in found.items():

        def median(name, of=rounds):
            return statistics.median(one[name] for one in of)

        plain, times = found[trainer, "plain"], [one["seconds"] for one in rounds]
        base = median("seconds", plain)
        line = {
            "trainer": trainer, "row": row, "ms": 1000 * median("seconds"), "time / plain": median("seconds") / base,
            "spread": (max(times) - min(times)) / base,
        }  # fmt: skip
        for name in ("allocated", "reserved"):
            if name in rounds[0]:
                line |= {f"{name} GiB": median(name) / 2**30, f"{name} / plain": median(name) / median(name, plain)}
        lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--trainers", nargs="+", default=list(TRAINERS), choices=list(TRAINERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=3, help="timed refresh cycles a training, of 10 steps")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--smoke", action="store_true", help="a tiny ViT, one round, to try it out")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.cycles, args.batch = 1, 1, 4
    found = {(trainer, row): [] for trainer in args.trainers for row in ROWS}
    for number in range(args.rounds):
        for trainer, row in found:
            found[trainer, row].append(measured(trainer, row, args))
            print(f"round {number + 1}: {trainer}, {row}: {found[trainer, row][-1]}", flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "accelerate", "lightning")}
    report(
        "Training step of a ViT-B/16 under two trainers, attached over plain" if not args.smoke else "Smoke",
        summary(found), args.out, batch=args.batch, rounds=args.rounds, timed_steps=args.cycles * CYCLE,
        config=SMOKE if args.smoke else BASE, versions=versions,
    )  # fmt: skip


if __name__ == "__main__":
    main()
