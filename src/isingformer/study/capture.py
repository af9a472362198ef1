"""Work on a GPU as CUDA graphs: recorded once, then launched whole, so that the GPU never waits for Python.

A graph repeats the very kernels that it recorded, on the same memory. What changes from step to step, batch and
learning rate, is therefore written into fixed tensors before each launch, and what Python would have counted is told to
the method afterwards.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor

from ..methods import Attached

WARM_RUNS = 2
"""Runs in eager mode before a recording: kernels are compiled and chosen, the optimiser's state is made."""


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Inside, Python frees no cycles of objects: an earlier training's graphs must not go while another is recorded."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Graphs:
    """Pieces of work by name, each recorded after its first runs. Those are ordinary ones: nothing is run for show.

    A piece reads and writes tensors that stay where they are, never waits for the GPU, and lets no tensor out.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.runs: dict[Hashable, int] = {}
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __call__(self, name: Hashable, work: Callable[[], None]) -> bool:
        """Do a piece of work; whether Python ran it, be it to record it. Inside `on_stream`."""
        if name in self.graphs:
            self.graphs[name].replay()
            return False
        if self.runs.setdefault(name, 0) < WARM_RUNS:
            self.runs[name] += 1
            work()
            return True
        graph = torch.cuda.CUDAGraph()
        shared = next((other.pool() for other in self.graphs.values()), None)
        with _no_garbage(), torch.cuda.graph(graph, pool=shared, stream=self.stream):
            work()
        self.graphs[name] = graph
        graph.replay()  # recording did nothing on the GPU
        return True

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Inside, eager runs use the stream of the recordings, which autograd remembers."""
        outside = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(outside)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outside.wait_stream(self.stream)


class CapturedStep:
    """A training step, from the forward pass to the optimiser, and the method's refreshes.

    Steps that measure curvature run other kernels than those that do not, so each kind has a graph of its own.

    Args:
        step: the training step.
        method: told of each launch that Python did not see.
        x: the model's inputs, on a GPU: where the step reads them.
    """

    def __init__(self, step: Callable[[], None], method: Attached, x: Tensor) -> None:
        self.step, self.method, self.x = step, method, x
        self.graphs = Graphs(x.device)

    def __call__(self) -> None:
        """Run one step."""
        if not self.graphs(("step", self.method.measures_next), self.step):
            self.method.replayed(self.x)

    def _launch(self, name: str, work: Callable[[], None]) -> None:
        self.graphs(name, work)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Inside, steps can be run, and the method's refreshes run as graphs too; afterwards their memory is free."""
        with self.graphs.on_stream():
            self.method.rule.launch = self._launch
            try:
                yield
            finally:
                del self.method.rule.launch
