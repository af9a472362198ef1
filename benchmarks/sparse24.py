"""Two of every four weights zero: what it saves on a GPU, and what it costs in accuracy.

    python benchmarks/sparse24.py --run RUN --data-dir DIR --device cuda --out results/sparse24.json

The first table times the MLP block of a ViT-B, 768 to 3,072 to 768, on the tokens of 64 images (64 x 197) in bfloat16,
with dense weights and with 2:4 weights in torch's semi-structured form: median of passes between CUDA events, called
from Python and launched as a CUDA graph, which leaves out what Python takes to find the kernels. Without a CUDA device
it is left out. The second takes a trained run (`benchmarks/compress.py` leaves one beside its results),
keeps two of every four weights of all layers by several scores, and gives the accuracy on all test images as it is and
after fine-tuning in which zeros stay zeros; row "none" is the expected network with all weights.
"""

import argparse
import statistics

import torch
from common import report
from torch import nn

import isingformer as isf
from isingformer.compress import (
    class_probabilities,
    open_run,
    recover,
    sparsify,
    to_semi_structured,
    two_of_four_masks,
)
from isingformer.compress.remove import expected_state
from isingformer.compress.run import training_images
from isingformer.compress.sparse import is_two_of_four, plain_copy
from isingformer.data import subset
from isingformer.metrics import accuracy, nll
from isingformer.nn.vit import MLP
from isingformer.train import find_device

SCORES = ("keep", "magnitude", "wanda", "random")
"""Within a row `both` and `evidence` rank as `keep` does: q falls with the evidence there."""
WIDTH, HIDDEN, TOKENS = 768, 3072, 197


def block():
    """An MLP block with two of every four weights zero, in bfloat16 on the GPU."""
    torch.manual_seed(0)
    mlp = MLP(WIDTH, HIDDEN, None)
    for layer in (mlp.fc1, mlp.fc2):
        fours = layer.weight.data.unflatten(1, (-1, 4))
        fours.scatter_(-1, fours.abs().argsort(-1)[..., :2], 0.0)
        assert is_two_of_four(layer.weight)
    return nn.Sequential(mlp).to("cuda", torch.bfloat16).eval()


@torch.inference_mode()
def recorded(model, x):
    """The pass as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


@torch.inference_mode()
def milliseconds(work, passes):
    times = []
    for number in range(passes + 10):
        started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        started.record()
        work()
        ended.record()
        ended.synchronize()
        if number >= 10:
            times.append(started.elapsed_time(ended))
    return statistics.median(times)


def timing(images, passes):
    """Dense and sparse, one row for each number of images."""
    rows = []
    for n in images:
        x = torch.randn(n, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
        dense = block()
        before = milliseconds(lambda dense=dense, x=x: dense(x), passes)
        before_graph = milliseconds(recorded(dense, x), passes)
        with torch.inference_mode():
            wanted = dense(x)
        sparse = to_semi_structured(dense)
        after = milliseconds(lambda sparse=sparse, x=x: sparse(x), passes)
        after_graph = milliseconds(recorded(sparse, x), passes)
        with torch.inference_mode():
            off = float((sparse(x) - wanted).abs().max() / wanted.abs().max())
        rows.append(
            {"images": n, "tokens": n * TOKENS, "dense ms": before, "2:4 ms": after, "faster": before / after,
             "dense ms, graph": before_graph, "2:4 ms, graph": after_graph, "faster, graph": before_graph / after_graph,
             "largest difference": off}
        )  # fmt: skip
    return rows


def accuracies(run, args):
    """One row for each score."""
    sample, test = training_images(run), run.data(args.data_dir, download=False).test
    some = subset(sample, min(1024, len(sample)), seed=0)
    images, labels = run.inputs(some.x), some.y.to(run.device)
    x, y, test_x, test_y = run.inputs(sample.x), sample.y, run.inputs(test.x), test.y.to(run.device)
    handle = isf.attached_to(run.model)

    def scored(network):
        probs = class_probabilities(network, test_x)
        return accuracy(probs, test_y), nll(probs, test_y)

    whole = plain_copy(handle.model, expected_state(handle)).eval()
    before, before_nll = scored(whole)
    rows = [{"by": "none", "accuracy": before, "nll": before_nll, "tuned accuracy": before, "tuned nll": before_nll}]
    for score in SCORES:
        chance = torch.Generator().manual_seed(0)
        masks = two_of_four_masks(run.model, score=score, images=images, labels=labels, generator=chance)
        network = sparsify(run.model, masks).eval()
        raw, raw_nll = scored(network)
        recover(network, x, y, epochs=args.recover, lr=args.lr, keep_zeros=True)
        assert all(is_two_of_four(network.get_submodule(name).weight) for name in masks)
        tuned, tuned_nll = scored(network)
        rows.append(
            {"by": score, "accuracy": raw, "nll": raw_nll, "tuned accuracy": tuned, "tuned nll": tuned_nll}
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="a trained run")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--recover", type=int, default=5, help="epochs of fine-tuning")
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()
    device = find_device(args.device)
    times = timing(args.images, args.passes) if device.type == "cuda" else []
    if times:
        report("MLP block of a ViT-B in bfloat16, dense and 2:4", times, None)
    run = open_run(args.run, device=device)
    rows = accuracies(run, args)
    settings = {name: getattr(args, name) for name in ("passes", "recover", "lr")}
    trained = {name: run.about[name] for name in ("method", "recipe", "network")}
    report("Two of every four weights, accuracy on test images", rows, args.out, settings=settings, trained=trained,
           timing=times)  # fmt: skip


if __name__ == "__main__":
    main()
