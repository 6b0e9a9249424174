"""How long one call takes a GPU."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import torch


@functools.cache
def _flush() -> torch.Tensor:
    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def _medians(run: Callable[[], object], repeats: int, before: Callable[[], object]) -> float:
    """Median milliseconds of `run`, with `before` just before each and outside of its time."""
    events = []
    for _ in range(repeats):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median time of one call, with a cold L2."""
    for _ in range(3):
        run()
    return _medians(run, repeats, _flush().zero_)


def microseconds(run: Callable[[], object], calls: int = 20, graphs: int = 9) -> float:
    """Time of one call in a CUDA graph of `calls`: the median of that many graphs."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    graph.replay()
    return _medians(graph.replay, graphs, torch.cuda.synchronize) / calls * 1e3
