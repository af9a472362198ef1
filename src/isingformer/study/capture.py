"""A training step as a CUDA graph: recorded once, then launched whole, so that the GPU never waits for Python.

A graph repeats the very kernels that it recorded, on the same memory. What changes from step to step, batch and
learning rate, is therefore written into fixed tensors before each launch, and what Python would have counted is told to
the method afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..methods import Attached

WARM_PASSES = 2
"""Runs in eager mode before a recording: kernels are compiled and chosen, the optimiser's state is made."""


class Captured:
    """A training step, from the forward pass to the optimiser, recorded where that is possible.

    Steps that measure curvature run other kernels than those that do not, so each kind has a graph of its own. The
    first runs of a kind are ordinary ones: no step is run for show.

    Args:
        step: reads its batch from tensors that stay where they are, and lets no tensor out but by writing into one.
        method: told of each launch.
        x: the model's inputs, on a GPU: one of those tensors.
    """

    def __init__(self, step: Callable[[], None], method: Attached, x: Tensor) -> None:
        self.step, self.method, self.x = step, method, x
        self.stream = torch.cuda.Stream(x.device)
        self.runs = {False: 0, True: 0}
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}

    def __call__(self) -> None:
        """Run one step."""
        measured = self.method.measures_next
        if measured in self.graphs:
            self.graphs[measured].replay()
            self.method.replayed(self.x)
            return
        if self.runs[measured] < WARM_PASSES:
            self.runs[measured] += 1
            self.step()
            return
        graph = torch.cuda.CUDAGraph()
        shared = next((other.pool() for other in self.graphs.values()), None)
        with torch.cuda.graph(graph, pool=shared, stream=self.stream):
            self.step()
        self.graphs[measured] = graph
        graph.replay()  # recording ran nothing on the GPU, but told the method of a pass already

    def on_stream(self) -> torch.cuda.StreamContext:
        """Inside, eager runs use the stream of the recordings, which autograd remembers."""
        return torch.cuda.stream(self.stream)
