"""What `compress.py` makes of its rows: times on the CPU, means over seeds, and what the goal says of them.

A network is timed twice: as torch runs it, call by call, and as onnxruntime runs the file that `export` writes. The
network before removal is the `ViT` as it was, in both.

    python benchmarks/frontier.py results/compress.json docs/compress.svg     # draws it
"""

import io
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import onnxruntime
import torch

import isingformer as isf
from isingformer.compress import export, latency_ms, load_compact, open_run
from isingformer.compress.remove import expected_state
from isingformer.compress.shape import shape_of
from isingformer.compress.sparse import plain_copy
from isingformer.explain.look import new_figure, our_settings

KEYS = ("by", "share", "seed")
BATCHES = (1, 64)
RUNTIMES = ("torch", "onnxruntime")
FEWER, FASTER, POINTS = 3, 2.5, 0.5
FAST = "ising, fast"
LOOKS = {
    "ising": ("#0f2f80", "o", "-"), "magnitude": ("#c8500a", "s", "--"), "taylor": ("#12a37a", "^", "-."),
    "taylor, layer": ("#5b8c2a", "v", "-."), "taylor, width": ("#8a6d3b", "<", "-."),
    "taylor, ours": ("#157a8c", ">", "-."), "random": ("#777777", "x", ":"), FAST: ("#7a3fbf", "D", "-"),
}  # fmt: skip


def name_of(by, share, seed):
    """The file of a network."""
    return f"{by.replace(', ', '-')}-{share}-{seed}"


def processor():
    """What the times are of: a GPU has no part in them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def whole(run):
    """The network before removal: the expected one, without its method."""
    handle = isf.attached_to(run.model)
    return plain_copy(handle.model, expected_state(handle)).eval()


def onnx_file(network, file):
    """The network as ONNX: by `export`, or where nothing was removed as any user of torch would write it."""
    if not isinstance(network, isf.ViT):
        return export(network, file).read_bytes()
    shape, written = shape_of(network), io.BytesIO()
    images = torch.zeros(2, shape.channels, shape.image_size, shape.image_size)
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(network, (images,), dynamo=True, dynamic_shapes=batch, verbose=False)
    written.write(program.model_proto.SerializeToString())
    return written.getvalue()


def onnx_ms(graph, shape, *, batch, passes, threads):
    """Median time of a pass of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    images = torch.zeros(batch, shape.channels, shape.image_size, shape.image_size).numpy()
    given, times = {session.get_inputs()[0].name: images}, []
    for number in range(3 + passes):
        started = time.perf_counter()
        session.run(None, given)
        times.append(time.perf_counter() - started) if number >= 3 else None
    return 1e3 * statistics.median(times)


def times(trained, folder, rows, *, passes, threads, rounds=3):
    """Median milliseconds of a pass on the CPU by (by, share), for the networks of seed 0.

    All networks are timed `rounds` times in turn and the best median counts, so that what else a machine does for a
    while does not fall on one of them.
    """
    networks = {}
    for row in rows:
        if row["seed"] == 0:
            key = row["by"], row["share"]
            network = (
                whole(open_run(trained, device="cpu"))
                if row["by"] == "none"
                else load_compact(folder / name_of(*key, 0))
            )
            networks[key] = network.eval(), onnx_file(network.eval(), folder / f"{name_of(*key, 0)}.onnx")
    found = {key: {} for key in networks}
    for _ in range(rounds):
        for key, (network, graph) in networks.items():
            for n in BATCHES:
                ms = {
                    "torch": latency_ms(network, batch=n, passes=passes),
                    "onnxruntime": onnx_ms(graph, shape_of(network), batch=n, passes=passes, threads=threads),
                }
                for runtime, took in ms.items():
                    name = f"ms, {runtime}, batch {n}"
                    found[key][name] = min(took, found[key].get(name, took))
    return found


def summary(rows, measured):
    """Means over seeds, against the network before."""
    groups = {}
    for row in rows:
        groups.setdefault((row["by"], row["share"]), []).append(row)
    means = {
        key: {name: statistics.fmean(row[name] for row in some) for name in some[0] if name not in KEYS}
        for key, some in groups.items()
    }
    full, tuned, slow = means["none", 1.0], means["none, tuned", 1.0], measured["none", 1.0]
    return [
        {"by": by, "share": share, "untuned": mean["untuned accuracy"], "accuracy": mean["accuracy"],
         "drop, points": 100 * (full["accuracy"] - mean["accuracy"]),
         "drop from tuned": 100 * (tuned["accuracy"] - mean["accuracy"]), "nll": mean["nll"], "ece": mean["ece"],
         "fewer multiply-adds": full["macs"] / mean["macs"]}
        | {f"faster, {runtime}, batch {n}":
           slow[f"ms, {runtime}, batch {n}"] / measured[by, share][f"ms, {runtime}, batch {n}"]
           for runtime in RUNTIMES for n in BATCHES}
        for (by, share), mean in means.items()
    ]  # fmt: skip


def verdict(means):
    """What the goal asks: which networks of ising are inside it, and at which budgets another is more accurate."""
    behind, inside = {}, {runtime: [] for runtime in RUNTIMES}
    for row in means:
        if row["by"] not in ("ising", FAST):
            continue
        if row["by"] != FAST:  # whose shares are of something else
            alike = [o for o in means if o["share"] == row["share"] and o["by"] != FAST]
            better = [o["by"] for o in alike if o["accuracy"] > row["accuracy"]]
            behind |= {str(row["share"]): better} if better else {}
        for runtime in RUNTIMES:
            faster = min(row[f"faster, {runtime}, batch {n}"] for n in BATCHES)
            if row["drop, points"] <= POINTS and row["fewer multiply-adds"] >= FEWER and faster >= FASTER:
                inside[runtime].append({"by": row["by"], "share": row["share"]})
    goal = f"{FEWER} x fewer multiply-adds, {FASTER} x faster at both batches, {POINTS} points"
    return {"goal": goal, "inside": inside, "more accurate than ising": behind}


def picture(means):
    """Accuracy against what a pass costs, a line a way to choose."""
    full = next(row for row in means if row["by"] == "none")
    costs = {
        "multiply-adds": "fewer multiply-adds", "time of onnxruntime, one image": "faster, onnxruntime, batch 1",
        "time of torch, one image": "faster, torch, batch 1",
    }  # fmt: skip
    with our_settings():
        figure = new_figure(8.6, 3.1)
        panels = figure.subplots(1, len(costs), sharey=True)
        for axes, (name, key) in zip(panels, costs.items(), strict=True):
            for by, (colour, marker, dash) in LOOKS.items():
                line = sorted((1 / row[key], 100 * row["accuracy"]) for row in means if row["by"] == by)
                if line:
                    axes.plot(*zip(*line, strict=True), dash, marker=marker, color=colour, markersize=4, label=by)
            axes.axhline(100 * full["accuracy"], color="#999999", linewidth=0.8)
            axes.axhline(100 * full["accuracy"] - POINTS, color="#999999", linewidth=0.8, linestyle=":")
            axes.set_xlabel(f"share of the {name}")
            axes.set_xlim(left=0)
        panels[0].set_ylabel("accuracy on test images, %")
        panels[0].legend(loc="lower right")
    return figure


if __name__ == "__main__":
    source, target = sys.argv[1:]
    found = json.loads(Path(source).read_text(encoding="utf-8"))["means"]
    with our_settings():
        picture(found).savefig(target, metadata={"Date": None})
