"""RMS norms with an infinity among what they normalize, by every CUDA kernel.

The mean of squares is infinite then, rstd is 0, and so is everything that is finite: x / sqrt(inf).
Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh).
"""

from __future__ import annotations

import math

import pytest
import test_cuda
import test_cuda_columns
import test_cuda_columns_axis
import test_cuda_columns_held
import test_cuda_columns_middle
import test_cuda_columns_stream
import test_cuda_segments
from cuda_cases import BF16, F16, F32, F64, library, poisoned, torch, views

CASES = [
    *test_cuda.ROW_CASES,
    *test_cuda.OTHER_CASES,
    *test_cuda_columns.ALL,
    *test_cuda_columns_held.ALL,
    *((shape, [1]) for shape in [*test_cuda_columns_axis.ALL, *test_cuda_columns_middle.ALL]),
    *test_cuda_segments.ALL,
]


def check(case, dtype) -> None:
    torch.manual_seed(3)
    x = torch.randn(case[0], device="cuda").to(dtype)
    kwargs, split, reduced, _ = views(case, x)
    of_stat = [1 if a in reduced else n for a, n in enumerate(split)]
    stat_type = F64 if dtype == F64 else F32

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        y, rstd = poisoned(x.shape, dtype), poisoned((math.prod(of_stat),), stat_type)
        library.forward(x, None, None, y, None, rstd, epsilon=1e-3, formula="rms", **kwargs)()
        return y.view(split), rstd.view(of_stat)

    clean = forward()
    at = tuple(n // 2 for n in split)
    x.view(split)[at] = -math.inf
    y, rstd = forward()
    hit = torch.zeros(of_stat, dtype=torch.bool, device="cuda")
    hit[tuple(0 if a in reduced else n for a, n in enumerate(at))] = True
    assert torch.equal(rstd, torch.where(hit, 0, clean[1]))
    expected = torch.where(hit, 0, clean[0])
    expected[at] = math.nan
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64], ids=str)
def test_what_is_finite_beside_an_infinity_becomes_zero(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize("case", test_cuda_columns_stream.CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_what_is_finite_beside_an_infinity_becomes_zero_on_a_small_chip(case, dtype, monkeypatch):
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "2")
    check(case, dtype)
