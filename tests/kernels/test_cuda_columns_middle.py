"""The CUDA kernels for layer norms over a middle axis that have it in registers, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from the formulas in float64 as in cuda_cases.py. NV_NORMS_SMALL=1 leaves out the large
sizes, for compute-sanitizer.
"""

from __future__ import annotations

import pytest
from cuda_cases import (
    AXIS_SETTINGS,
    BF16,
    F16,
    F32,
    F64,
    SMALL,
    library,
    poisoned,
    run_case,
    run_mixed,
    torch,
    within,
)

# Each number of rows that has kernels of its own, one less and one more; rows of whole vectors of
# four columns and of none; fewer columns than threads, and some blocks' worth.
SHAPES = [
    (1, 2, 4), (3, 2, 1), (5, 2, 129), (2, 3, 1000), (7, 3, 49), (3, 4, 260), (40, 5, 7),
    (2, 7, 516), (3, 8, 333), (2, 8, 512), (6, 9, 64), (2, 12, 1001), (1, 15, 515), (2, 16, 128),
    (3, 16, 77), (2, 17, 64), (3, 24, 131), (1, 32, 258), (2, 32, 77), (2, 33, 64),
]  # fmt: skip
# More rows, whose parts add up their sums: powers of two and borders of the threads to a column,
# blocks whose columns are of two samples or more, and a last one that is not full.
SHAPES += [
    (3, 33, 49), (40, 34, 3), (2, 64, 131), (5, 65, 49), (1, 128, 33), (3, 129, 25), (2, 256, 17),
    (2, 257, 81), (30, 500, 3), (1, 512, 50), (3, 513, 7), (2, 700, 49), (1, 768, 35), (2, 769, 9),
]  # fmt: skip
# A block of vectors to every multiprocessor, and rows that are no whole vectors.
LARGE = [
    (2, 2, 300000), (9, 3, 50177), (128, 3, 12544), (3, 4, 100004), (4, 6, 65536), (30, 8, 4096),
    (1, 11, 100001), (70, 16, 3136), (3, 16, 99999), (100000, 3, 5), (2, 24, 50000),
    (5, 31, 9999), (64, 768, 49), (3, 64, 9999), (130, 100, 225), (9, 300, 1001),
]  # fmt: skip
ALL = SHAPES if SMALL else SHAPES + LARGE
SOME = [(2, 3, 1000), (3, 8, 333), (5, 16, 64), (3, 27, 130), (3, 100, 49), (2, 600, 25)]


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_every_number_of_rows(shape, dtype):
    run_case((shape, [1]), dtype, param_type=F64 if dtype == F64 else F32)


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_mixed_precision(shape, other):
    run_mixed((shape, [1]), other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_many_units_to_a_thread(shape, dtype, monkeypatch):
    """Of a small chip, which has vectors where there are few columns, too."""
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "1")
    times = 40 if shape[1] <= 32 else 4
    run_case(((times * shape[0], *shape[1:]), [1]), dtype)


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("settings", AXIS_SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_settings(shape, settings, dtype, monkeypatch):
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "1")
    run_case((shape, [1]), dtype, **within(settings, dtype))


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("settings", AXIS_SETTINGS, ids=str)
def test_settings_of_mixed_precision(shape, settings):
    run_mixed((shape, [1]), BF16, **settings)


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("out_type", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_an_output_of_another_type(shape, dtype, out_type):
    run_case((shape, [1]), dtype, dy_type=dtype, out_type=out_type, units=16)


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("slope", [0.125, "silu"])
def test_an_activation_behind(shape, slope):
    run_case((shape, [1]), F32, slope=slope)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_number_stays_in_its_column(rows, value):
    x = torch.randn((2, rows, 101), device="cuda")
    x[1, 2, 7] = value
    gamma, beta = torch.ones(rows, device="cuda"), torch.zeros(rows, device="cuda")
    y = poisoned(x.shape, F32)
    mean, rstd = poisoned((202,), F32), poisoned((202,), F32)
    library.forward(x, gamma, beta, y, mean, rstd, epsilon=1e-3, axis=[1])()
    finite = torch.ones_like(y, dtype=torch.bool)
    finite[1, :, 7] = False
    assert bool(y[finite].isfinite().all())
    assert bool(y[1, :, 7].isnan().all())
