"""The CUDA kernels of rows at every width, on torch tensors, against float64.

How lanes share a row, and which kernel is compiled for that, follows from the width and the type.
Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from the formulas in float64 as in cuda_cases.py. NV_NORMS_SMALL=1 leaves out most
widths, for compute-sanitizer.
"""

from __future__ import annotations

import math

import pytest
from cuda_cases import BF16, F16, F32, SMALL, library, run_case, torch

STEP = 11 if SMALL else 1
TYPES = [(F32, F32), (BF16, BF16), (F16, F16), (F32, BF16), (F32, F16)]
types = pytest.mark.parametrize("dtype, other", TYPES, ids=str)


def run(case: tuple, dtype: torch.dtype, other: torch.dtype, **kwargs: object) -> None:
    """x and dx in dtype, y and dy in the other."""
    try:
        run_case(case, dtype, dy_type=other, out_type=other, dx_type=dtype, **kwargs)
    except Exception as error:
        raise AssertionError(f"{case}: {error}") from error


@types
@pytest.mark.parametrize("first", range(1, 513, 64))
def test_rows_of_every_width(first, dtype, other):
    for width in range(first, first + 64, STEP):
        run(((1 + 7 * width % 90, width), [-1]), dtype, other)


@types
@pytest.mark.parametrize("first", range(1, 321, 64))
def test_rows_of_every_width_with_parameters_of_their_own(first, dtype, other):
    for width in range(first, first + 64, STEP):
        run(((1 + width % 7, 5, width), 5, False), dtype, other)


@types
def test_rows_of_whole_vectors_of_up_to_1024_columns(dtype, other):
    for width in range(520, 1025, 8 * STEP):
        run(((1 + width % 50, width), [-1]), dtype, other)


@types
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 3e4}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16},
], ids=str)  # fmt: skip
def test_rows_of_few_columns_in_every_setting(settings, dtype, other):
    for width in [3, 5, 7, 9, 10, 12, 14, 15, 16, 17, 20, 24, 33, 40, 49, 56, 96, 147, 255]:
        run(((101, width), [-1]), dtype, other, **settings)


@types
def test_many_rows_of_few_columns(dtype, other):
    # more tiles than are resident, and a last one that is not all there
    for width, rows in [(3, 300001), (10, 200003), (24, 100001), (49, 50001), (255, 20003)]:
        run(((rows // STEP, width), [-1]), dtype, other)


# Of vectors of 16 bytes and of 8: the first and the last width of each way to share a row.
IN_REGISTERS = [
    32, 36, 48, 60, 64, 68, 72, 96, 100, 104, 124, 128, 132, 136, 192, 196, 200, 252, 256, 260, 264,
    380, 384, 388, 392, 508, 512, 516, 520, 764, 768, 772, 776, 1020, 1024, 1032, 1280, 1288, 1536,
    1544, 1792, 1800, 2040,
]  # fmt: skip


@types
@pytest.mark.parametrize("params", ["float32", "of y"])
@pytest.mark.parametrize("multiprocessors", ["all", "1"])
def test_rows_in_registers(dtype, other, params, multiprocessors, monkeypatch):
    # a GPU of one multiprocessor has the kernels for many rows
    if multiprocessors != "all":
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", multiprocessors)
    for width in IN_REGISTERS[:: 7 if SMALL else 1]:
        rows = 40001 if width <= 64 else 4099
        case = ((rows // (STEP if multiprocessors == "all" else 1), width), [-1])
        run(case, dtype, other, param_type=F32 if params == "float32" else other)


@pytest.mark.skipif(SMALL, reason="many rows")
@types
def test_rows_of_2048_columns_in_registers(dtype, other):
    # only of many rows
    run(((32771, 2048), [-1]), dtype, other)


@types
@pytest.mark.parametrize("settings", [
    {"misaligned": 2}, {"misaligned": 4}, {"mean": 3e4}, {"far": 1000.0}, {"params": False},
    {"formula": "rms"}, {"formula": "scale_only"}, {"param_type": F16}, {"param_type": BF16},
], ids=str)  # fmt: skip
def test_rows_in_registers_in_every_setting(settings, dtype, other):
    for width in [32, 100, 192, 250, 512, 1000, 1024, 1280, 1800]:
        run(((131, width), [-1]), dtype, other, **settings)


# Rows that are no whole vectors of 16 bytes, and longer than tiles have them: a block, or a cluster
# of blocks, has a row.
OF_BLOCKS = [513, 519, 777, 1001, 1002, 1023, 1540, 2049, 3071, 4097, 5003, 8190, 8191]
OF_CLUSTERS = [8193, 10001, 12293, 16379, 16385, 20001, 33333, 50002]


@types
def test_rows_of_odd_widths(dtype, other):
    for width in OF_BLOCKS[:: 3 if SMALL else 1]:
        run(((64 + width % 150, width), [-1]), dtype, other)


@types
def test_long_rows_of_odd_widths(dtype, other):
    for width in OF_CLUSTERS[:: 7 if SMALL else 1]:
        run(((528 + width % 20, width), [-1]), dtype, other)


@types
def test_few_long_rows_of_odd_widths(dtype, other):
    for width in [10001, 20001, 100001]:
        run(((100, width), [-1]), dtype, other)


@types
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 3e4}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16},
], ids=str)  # fmt: skip
def test_rows_of_odd_widths_in_every_setting(settings, dtype, other):
    for rows, width in [(101, 513), (101, 1002), (101, 4097), (530, 20001)]:
        run(((rows, width), [-1]), dtype, other, **settings)


@types
def test_few_rows_of_odd_widths(dtype, other):
    # fewer than lie to vectors alike, one to a block, or one block more
    for rows in [1, 3, 15, 16, 17, 33]:
        run(((rows, 1001), [-1]), dtype, other)


@types
def test_many_rows_of_odd_widths(dtype, other):
    # several rows to a block, the last of which have one less
    for width, rows in [(513, 20011), (1001, 9001), (4097, 3001), (8191, 1537)]:
        run(((rows // STEP, width), [-1]), dtype, other)


@pytest.mark.parametrize("case", [(533, 16385), (533, 10001), (533, 16384), (4099, 2048)], ids=str)
def test_the_same_bits_on_every_one_of_many_runs(case):
    """A copy of a coming row must not overtake reads of the row whose place it takes."""
    torch.manual_seed(12)
    rows, cols = case
    x, y = torch.randn(case, device="cuda"), torch.empty(case, device="cuda")
    gamma, beta = torch.randn(2, cols, device="cuda")
    mean, rstd = torch.empty(2, rows, device="cuda")
    call = library.forward(x, gamma, beta, y, mean, rstd, axis=[-1])
    call()
    first = y.clone()
    differ = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(30 if SMALL else 5000):
        y.fill_(math.nan)
        call()
        differ += (y != first).any()
    assert int(differ) == 0
