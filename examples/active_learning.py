"""Which images are worth a label? An Ising ViT asks for those it is in doubt about, against images chosen at random.

    python examples/active_learning.py --data digits [--out runs/active-learning]
    python examples/active_learning.py --data fashion-mnist --device cuda --chunk 2000 --seeds 16

A few labelled images to begin with; then, round after round, a network is trained from scratch on what is labelled and
chooses, among candidates drawn from the rest, the images to label next. Every score starts from the same images and the
same weights as random choice does, so that differences are paired by seed. All seeds and scores train as one stacked
model. Writes active-learning.json and active-learning.png. Digits take some minutes on one core.

Settings are to be chosen with --on validation: images that no round trains on, and that are not the test images.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from scipy import stats

import isingformer as isf
from isingformer.data import standardise
from isingformer.study.scoring import commit

SCORES = ("bald", "entropy", "variation-ratio")
HOW = {  # what suits the data
    "digits": {"start": 40, "k": 20, "rounds": 5, "patch": 4, "held_out": 300, "steps": 200},
    "others": {"start": 200, "k": 100, "rounds": 8, "patch": 7, "held_out": 5000, "steps": 700},
}


class Bench:
    """The images, on the device: a pool to label, and others to measure on."""

    def __init__(self, args):
        data = isf.load_data(args.data, data_dir=args.data_dir)
        mean, sd = standardise(data.train)
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(2026))
        pool, held_out = data.train.take(order[args.held_out :]), data.train.take(order[: args.held_out])
        self.classes, self.channels, self.size = len(data.classes), data.channels, data.size[0]

        def ready(images):
            scaled = (images.x.float() - mean.view(-1, 1, 1)) / sd.view(-1, 1, 1)
            return scaled.to(args.device), images.y.to(args.device)

        self.x, self.y = ready(pool)
        self.test_x, self.test_y = ready(data.test if args.on == "test" else held_out)


def draws(seed, turn, what):
    """A generator for one use in one round of one seed, the same whatever the score."""
    return torch.Generator().manual_seed(1_000_000 * seed + 1000 * turn + what)


def network(bench, args):
    shape = {"patch": args.patch, "width": args.width, "depth": args.depth, "heads": 4, "mlp": 2 * args.width}
    return isf.ViT(image_size=bench.size, channels=bench.channels, classes=bench.classes, pool=args.pool, **shape)


def learn(bench, labelled, seeds, turn, args):
    """Networks trained on what each replica has labelled, ``[R, n]``: one stacked model."""
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        networks.append(network(bench, args))
    model, count = isf.stack(networks).to(args.device).train(), labelled.shape[1]
    method = isf.attach(
        model, isf.Ising(delta=args.delta, sampling="mask"), examples=count, steps=args.steps,
        seeds=[1000 * seed + turn for seed in seeds],
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps, pct_start=0.1)
    batch = min(args.batch, count)
    orders = [draws(seed, turn, 0) for seed in seeds]
    for step in range(args.steps):
        place = step % (count // batch)
        if place == 0:  # a new epoch, in an order of its own for every seed
            order = torch.stack([torch.randperm(count, generator=own) for own in orders]).to(args.device)
            rows = labelled.gather(1, order)
        some = rows[:, place * batch : (place + 1) * batch]
        nll = F.cross_entropy(model(bench.x[some]).flatten(0, 1), bench.y[some].flatten(), reduction="none")
        (nll.view_as(some).mean(1) + method.kl()).sum().backward()
        isf.clip_grad_norm_(model.parameters(), 1.0, replicas=len(seeds))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        method.step()
    return model


def accuracy(model, bench, seeds, args):
    """Of every replica, by the mean of the passes."""
    right = []
    for x, y in zip(bench.test_x.split(args.chunk), bench.test_y.split(args.chunk), strict=True):
        p = isf.predict(model, x, samples=args.samples, seeds=seeds, batch_size=args.chunk)
        right.append((p.classes == y).double().sum(1))
    return (torch.stack(right).sum(0) / len(bench.test_y)).tolist()


def choose(model, bench, labelled, seeds, scores, turn, args):
    """What to label next, ``[R, k]``, among candidates drawn from what is not labelled."""
    candidates = []
    for own, seed in zip(labelled.cpu(), seeds, strict=True):
        free = torch.ones(len(bench.y), dtype=torch.bool)
        free[own] = False
        order = torch.randperm(len(free), generator=draws(seed, turn, 1))
        candidates.append(order[free[order]][: args.candidates])
    rows = torch.stack(candidates).to(args.device)
    found = isf.acquire(
        model, bench.x[rows], args.k, ["bald" if score == "random" else score for score in scores], power=args.power,
        samples=args.samples, batch_size=args.chunk, seeds=[1000 * seed + turn for seed in seeds],
    )  # fmt: skip
    at_random = torch.tensor([[score == "random"] for score in scores], device=args.device)
    return torch.where(at_random, rows[:, : args.k], rows.gather(1, found))


def campaigns(bench, args):
    """The accuracies of every score, a row a round, a column a seed. All of them are one stacked model."""
    scores = [score for score in ("random", *args.scores) for _ in range(args.seeds)]
    seeds = list(range(args.seeds)) * (1 + len(args.scores))
    begin = [torch.randperm(len(bench.y), generator=draws(seed, 0, 2))[: args.start] for seed in seeds]
    labelled = torch.stack(begin).to(args.device)
    found = {score: [] for score in dict.fromkeys(scores)}
    for turn in range(args.rounds + 1):
        model = learn(bench, labelled, seeds, turn, args)
        right = accuracy(model, bench, seeds, args)
        for i, score in enumerate(found):
            found[score].append(right[i * args.seeds : (i + 1) * args.seeds])
        means = ", ".join(f"{score} {statistics.fmean(own[-1]):.4f}" for score, own in found.items())
        print(f"{labelled.shape[1]} labels: {means}", flush=True)
        if turn < args.rounds:
            labelled = torch.cat([labelled, choose(model, bench, labelled, seeds, scores, turn, args)], 1)
    return found


def interval(values):
    """Mean and half the width of its 95% interval, by Student's t."""
    n = len(values)
    return statistics.fmean(values), float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)


def summary(found, args):
    """Accuracy by number of labels, what each score gains over random choice, and the gain over all rounds."""
    labels = [args.start + turn * args.k for turn in range(args.rounds + 1)]
    rows, overall = [], []
    for score, accuracies in found.items():
        gains = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(accuracies, found["random"], strict=True)]
        for n, own, gain in zip(labels, accuracies, gains, strict=True):
            (mean, half), (more, either_side) = interval(own), interval(gain)
            row = {"score": score, "labels": n, "accuracy": mean, "95%": half}
            rows.append(row | ({} if score == "random" else {"over random": more, "95% of that": either_side}))
        if score != "random":
            mean, half = interval([statistics.fmean(by_round) for by_round in zip(*gains[1:], strict=True)])
            overall.append({"score": score, "over random": mean, "95%": half, "clear": bool(mean - half > 0)})
    return rows, overall


def plot(rows, title, file):
    """Accuracy by number of labels, and beside it what the scores gain over random choice, paired by seed."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axes, value, half in zip(panels, ("accuracy", "over random"), ("95%", "95% of that"), strict=True):
        for number, (score, mark) in enumerate(zip(("random", *SCORES), "osD^", strict=True)):
            own = [row for row in rows if row["score"] == score and value in row]
            if own:
                x, y, error = ([row[name] for row in own] for name in ("labels", value, half))
                colour = f"C{number - 1}" if number else "0.35"
                axes.plot(x, y, marker=mark, markersize=4, label=score, color=colour)
                low, high = ([b + sign * h for b, h in zip(y, error, strict=True)] for sign in (-1, 1))
                axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel="labelled images", ylabel=value)
        axes.grid(alpha=0.3)
    panels[0].legend(title="chosen by", frameon=False)
    panels[1].axhline(0, color="0.35")
    panels[1].set_ylabel("accuracy over that of random choice")
    figure.suptitle(title)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def show(rows, overall):
    print(f"\n{'chosen by':<16} labels  accuracy            over random choice")
    for row in rows:
        gain = f"{row['over random']:+.4f} ± {row['95% of that']:.4f}" if "over random" in row else ""
        print(f"{row['score']:<16} {row['labels']:6d}  {row['accuracy']:.4f} ± {row['95%']:.4f}     {gain}".rstrip())
    print("\nOver random choice, mean of all rounds after the first, paired by seed, with 95% intervals:")
    for row in overall:
        print(f"  {row['score']:<16} {row['over random']:+.4f} ± {row['95%']:.4f}")


def circumstances(device):
    cuda = torch.device(device).type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else f"{os.cpu_count()}-core {platform.machine()} CPU",
        "python": platform.python_version(), "torch": torch.__version__, "isingformer": isf.__version__,
        "commit": commit() or "unknown", "command": " ".join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, fashion-mnist, ..., a folder or an .npz of images")
    parser.add_argument("--data-dir", help="where the files of named data are")
    parser.add_argument("--out", type=Path, default=Path("runs/active-learning"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--on", choices=["test", "validation"], default="test", help="where accuracy is measured")
    parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--start", type=int, help="labels to begin with")
    parser.add_argument("--k", type=int, help="labels a round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--candidates", type=int, default=2000, help="images a round to choose from, drawn at random")
    parser.add_argument("--power", type=float, help="draw by score^power instead of taking the highest scores")
    parser.add_argument("--held-out", type=int, help="images that are in no pool, for --on validation")
    parser.add_argument("--delta", type=float, default=0.3, help="base drop rate")
    parser.add_argument("--patch", type=int)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--pool", choices=["class", "mean"], default="class", help="what the head reads")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, help="of every training")
    parser.add_argument("--samples", type=int, default=20, help="passes of every prediction")
    parser.add_argument("--chunk", type=int, default=500, help="images a pass of a prediction")
    args = parser.parse_args()
    for name, value in HOW.get(args.data, HOW["others"]).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.seeds < 2:
        parser.error(f"--seeds must be 2 or more, for error bars, got {args.seeds}")
    if args.k > args.candidates:
        parser.error(f"--k {args.k} is more than the --candidates {args.candidates} to choose from")
    return args


def refuse(complaint):
    sys.stderr.write(f"active_learning.py: error: {complaint}\n")
    raise SystemExit(2)


def main():
    args = parse()
    try:
        bench = Bench(args)
        network(bench, args)
    except (ValueError, OSError) as error:
        refuse(error)
    wanted = args.start + args.rounds * args.k
    if wanted > len(bench.y):
        refuse(f"{wanted} labels are wanted in the end, but the pool has {len(bench.y)} images")
    torch.set_num_threads(args.threads)
    if torch.device(args.device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    found = campaigns(bench, args)
    rows, overall = summary(found, args)
    show(rows, overall)
    args.out.mkdir(parents=True, exist_ok=True)
    title = f"{args.data}, {args.on} images, mean and 95% interval of {args.seeds} seeds"
    plot(rows, title, args.out / "active-learning.png")
    settings = {
        name: value for name, value in vars(args).items() if name not in ("out", "data_dir", "threads", "chunk")
    }
    about = {"title": f"Active learning: {title}", **circumstances(args.device), "settings": settings}
    text = json.dumps({**about, "overall": overall, "rows": rows, "accuracies": found}, indent=2)
    part = args.out / ".active-learning.json.part"
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(args.out / "active-learning.json")
    print(f"\nwritten: {args.out / 'active-learning.json'} and {args.out / 'active-learning.png'}")


if __name__ == "__main__":
    main()
