"""CUDA kernels whose blocks wait for each other, beside other work: no hang, and the same bits.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from cuda_cases import SMALL, library, torch

large = pytest.mark.skipif(SMALL, reason="large")


class Norm:
    """An instance norm and its gradient, channels last or first."""

    def __init__(self, last: bool) -> None:
        self.last = last

    def tensor(self, n: int, channels: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        shape = (n, size, channels) if self.last else (n, channels, size)
        return torch.randn(shape, device="cuda", dtype=dtype)

    def __call__(
        self, x: torch.Tensor, dy: torch.Tensor
    ) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """y, statistics and gradients, and what computes them again into the same tensors."""
        channels = x.shape[-1 if self.last else 1]
        layout = {"groups": channels, "channels_last": self.last}
        mean, rstd = (torch.full((x.shape[0] * channels,), math.nan, device="cuda") for _ in "mr")
        dgamma, dbeta = (torch.full((channels,), math.nan, device="cuda") for _ in "gb")
        gamma = torch.ones_like(dgamma)
        y, dx = (torch.full_like(x, math.nan) for _ in range(2))
        calls = (
            library.forward(x, gamma, None, y, mean, rstd, **layout),
            library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **layout),
        )

        def run() -> None:
            for call in calls:
                call()

        run()
        return [y, mean, rstd, dx, dgamma, dbeta], run


@pytest.fixture(params=[True, False], ids=["last", "first"])
def norm(request: pytest.FixtureRequest) -> Norm:
    return Norm(request.param)


def same(tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, tensors, expected))


# Samples: with 8 a tensor is much larger than the chip.
samples = pytest.mark.parametrize("n", [2, 8], ids="n={}".format)


@large
@samples
def test_ends_while_another_stream_holds_most_of_the_chip(norm, n):
    """Blocks that wait for each other must not wait for a multiprocessor that another has."""
    torch.manual_seed(6)
    x, dy = (norm.tensor(n, 32, 1 << 18, torch.float16) for _ in range(2))
    expected, _ = norm(x, dy)
    assert all(bool(t.isfinite().all()) for t in expected)
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    started = time.monotonic()
    with torch.cuda.stream(other):
        for _ in range(150):
            square @ square
    results = [norm(x, dy)[0] for _ in range(20)]
    torch.cuda.synchronize()
    assert time.monotonic() - started < 30
    assert all(same(tensors, expected) for tensors in results)


@large
@samples
def test_two_streams_at_once(norm, n):
    """Two such kernels at the same time, each with its workspace."""
    torch.manual_seed(7)
    inputs = [[norm.tensor(n, 64, 131072, torch.float16) for _ in range(2)] for _ in range(2)]
    expected = [norm(*pair)[0] for pair in inputs]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((i, norm(*inputs[i])[0]))
    torch.cuda.synchronize()
    assert all(same(tensors, expected[i]) for i, tensors in results)


@pytest.mark.parametrize(
    ("n", "size"), [(2, 20000), pytest.param(8, 1 << 16, marks=large)], ids=str
)
def test_in_a_captured_graph(norm, n, size):
    """The same launches again and again, over a workspace that holds what the last ones left."""
    torch.manual_seed(8)
    x = norm.tensor(n, 64, size, torch.float32)
    tensors, run = norm(x, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    expected = [t.clone() for t in tensors]
    assert all(bool(t.isfinite().all()) for t in expected)
    for _ in range(5):
        for t in tensors:
            t.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert same(tensors, expected)
