"""Train a small Ising ViT on handwritten digits and ask it how sure it is.

    python examples/digits.py [--epochs 40] [--delta 0.1] [--seed 0]

Needs no network and no GPU: the 1,797 digits of 8 x 8 pixels come with scikit-learn. About a minute on two cores.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import isingformer as isf

SHADES = " .:-=+*#%@"


def digits(seed):
    """1,437 training and 360 test images, scaled by what the training images show."""
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1), torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1437], order[1437:]
    mean, sd = x[train].mean(), x[train].std()
    x = (x - mean) / sd
    return (x[train], y[train]), (x[test], y[test])


def train(model, method, x, y, epochs, batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    started = time.perf_counter()
    for epoch in range(epochs):
        for rows in torch.randperm(len(x))[: len(x) // batch * batch].split(batch):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            (loss + method.kl()).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            method.step()
        if (epoch + 1) % max(1, epochs // 8) == 0:
            about = method.summary()
            print(
                f"epoch {epoch + 1:3d}/{epochs}  loss {loss.item():.3f}  mean q {about['mean_q']:.3f}  "
                f"{time.perf_counter() - started:5.1f} s",
                flush=True,
            )


def show(image):
    """An image as characters, two a pixel."""
    levels = ((image - image.min()) / (image.max() - image.min()) * (len(SHADES) - 1)).round().int()
    return ["".join(SHADES[level] * 2 for level in row) for row in levels.tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--delta", type=float, default=0.1, help="base drop rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # threads would mostly wait for each other on tensors this small
    torch.manual_seed(args.seed)
    (x, y), (test_x, test_y) = digits(args.seed)
    batch = 64
    steps = args.epochs * (len(x) // batch)
    model = isf.ViT(image_size=8, channels=1, patch=2, width=64, depth=4, heads=4, mlp=128, classes=10)
    try:
        method = isf.attach(model, isf.Ising(delta=args.delta), examples=len(x), steps=steps)
    except ValueError as error:
        parser.error(str(error))
    train(model, method, x, y, args.epochs, batch)

    p = isf.predict(model, test_x, samples=50)
    right = p.classes == test_y
    nll = -p.probs.gather(1, test_y[:, None]).log().mean()
    print(f"\n{len(test_x)} test images: accuracy {right.float().mean():.3f}, NLL {nll:.3f}")
    for name, part in (("right", right), ("wrong", ~right)):
        if part.any():
            print(
                f"  {name}: {int(part.sum()):3d} images, mean entropy {p.entropy[part].mean():.3f} nats "
                f"= aleatoric {p.aleatoric[part].mean():.3f} + epistemic {p.epistemic[part].mean():.3f}"
            )
    low, high = p.interval(0.9)
    order = p.entropy.argsort()
    for title, chosen in (("surest", order[:3]), ("least sure", order[-3:])):
        print(f"\nThe three it is {title} of:")
        for i in chosen.tolist():
            c = int(p.classes[i])
            print("\n".join("    " + line for line in show(test_x[i, 0])))
            print(
                f"    says {c}, probability {p.probs[i, c]:.2f} (90% interval {low[i, c]:.2f} to {high[i, c]:.2f}), "
                f"entropy {p.entropy[i]:.2f}, of it epistemic {p.epistemic[i]:.2f}; it is a {int(test_y[i])}\n"
            )


if __name__ == "__main__":
    main()
