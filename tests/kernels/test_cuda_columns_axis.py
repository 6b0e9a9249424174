"""The CUDA kernels for layer norms over a middle axis on torch tensors, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from the formulas in float64 as in cuda_cases.py, or from NumPy. NV_NORMS_SMALL=1 leaves
out the large sizes, for compute-sanitizer.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_cases import (
    AXIS_SETTINGS,
    BF16,
    F16,
    F32,
    SMALL,
    library,
    run_case,
    run_mixed,
    torch,
    within,
)

# The borders of the rules for strips and threads, and beyond; strips that do not divide a row,
# narrow ones, rows of whole vectors of 16 bytes, of 8, of 4 and of none.
SHAPES = [
    (3, 15, 64), (3, 16, 40), (2, 17, 64), (5, 24, 392), (2, 32, 64), (2, 33, 132), (3, 70, 8),
    (2, 96, 200), (3, 128, 72), (2, 129, 136), (2, 192, 784), (2, 256, 64), (2, 384, 196),
    (2, 385, 40), (2, 512, 136), (1, 600, 44), (2, 768, 72), (2, 769, 72), (1, 1024, 40),
    (1, 1100, 64), (1, 1600, 40), (1, 2048, 64), (7, 64, 49), (2, 100, 50), (3, 96, 4), (2, 31, 12),
]  # fmt: skip
LARGE = [
    (64, 96, 3136), (2, 64, 65536), (300, 49, 512), (9, 512, 1032), (40, 768, 136), (128, 384, 196),
    (700, 16, 256), (130, 200, 1004),
]  # fmt: skip
ALL = SHAPES[1::4] if SMALL else SHAPES + LARGE
SOME = [(3, 96, 200), (2, 384, 196), (9, 24, 264), (2, 700, 40)]
large = pytest.mark.skipif(SMALL, reason="large")


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_every_cut(shape, dtype):
    run_case((shape, [1]), dtype)


@pytest.mark.parametrize("shape", ALL, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(shape, other):
    run_mixed((shape, [1]), other)


@pytest.mark.parametrize("shape", SHAPES[::3] if SMALL else SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_many_units_to_a_block(shape, dtype, monkeypatch):
    """Of a small chip, where a block goes through many strips and has the next one's on the way."""
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "1")
    run_case(((3 * shape[0], *shape[1:]), [1]), dtype)


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("settings", AXIS_SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_settings(shape, settings, dtype):
    run_case((shape, [1]), dtype, **within(settings, dtype))


@pytest.mark.parametrize("shape", SOME, ids=str)
@pytest.mark.parametrize("settings", AXIS_SETTINGS, ids=str)
def test_settings_of_mixed_precision(shape, settings):
    run_mixed((shape, [1]), BF16, **settings)


@pytest.mark.parametrize("out_type", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dy_type", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_every_type(dtype, dy_type, out_type):
    run_case(((2, 96, 72), [1]), dtype, dy_type=dy_type, out_type=out_type, param_type=F16)


@pytest.mark.parametrize("slope", [0.0, 0.3, "silu"])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_an_activation_behind(dtype, slope):
    run_case(((2, 96, 136), [1]), dtype, slope=slope)


def forward(x, mean=True):
    stats = torch.full((x.shape[0] * x.shape[2],), math.nan, device="cuda")
    rstd = torch.full_like(stats, math.nan)
    y = torch.full_like(x, math.nan)
    library.forward(x, None, None, y, stats if mean else None, rstd, epsilon=1e-3, axis=[1])()
    return y, stats, rstd


def numpy_norm(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    centered = x.astype(np.float64) - x.astype(np.float64).mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + epsilon)


def check_against_numpy(x: np.ndarray, bound: float) -> None:
    y = forward(torch.from_numpy(x).cuda())[0].double().cpu().numpy()
    expected = numpy_norm(x)
    error = np.abs(y - expected) / (1 + np.abs(expected))
    assert error.max() <= bound, error.max()


@pytest.mark.parametrize("rows", [16, 24, 96, 384, 768, 1400])
@pytest.mark.parametrize("far", [0.0, 0.5, 1.0], ids="at {}".format)
@pytest.mark.parametrize("value", [1e4, -3e5])
def test_one_row_far_from_the_others(rows, far, value):
    """Whichever row a thread looks at first, one element far off costs no precision."""
    seed = 3
    print("seed", seed)
    x = np.random.default_rng(seed).normal(2.0, 1.0, (2, rows, 72)).astype(np.float32)
    x[:, int(far * (rows - 1))] = value
    check_against_numpy(x, 2e-6)


@pytest.mark.parametrize("rows", [16, 24, 96, 384, 768, 1400])
def test_zeros_around_a_far_mean(rows):
    """Borders of zeros around values near 1000: every row that is cheap to look at is a zero."""
    seed = 4
    print("seed", seed)
    x = np.random.default_rng(seed).normal(1000.0, 1.0, (2, rows, 72)).astype(np.float32)
    x[:, [0, rows // 2, rows - 1]] = 0
    check_against_numpy(x, 5e-6)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("shape", SOME, ids=str)
def test_constant_columns_give_exactly_zero(shape, dtype):
    columns = torch.linspace(-2000, 2000, shape[2], device="cuda").to(dtype)
    x = columns.expand(shape).contiguous()
    y, mean, rstd = forward(x)
    assert bool((y == 0).all())
    assert torch.equal(mean.view(shape[0], -1), columns.float().expand(shape[0], -1))
    torch.testing.assert_close(rstd, torch.full_like(rstd, 1e-3**-0.5))


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("shape", SOME, ids=str)
def test_nan_and_infinity_stay_in_their_column(shape, dtype):
    torch.manual_seed(5)
    x = torch.randn(shape, device="cuda").to(dtype)
    clean = forward(x)[0]
    assert torch.equal(forward(x, mean=False)[0], clean)
    _, mean, rstd = forward(x)
    dy = torch.randn(shape, device="cuda").to(dtype)
    gradients = [torch.full_like(x, 7.0) for _ in range(2)]
    sums = [torch.full((shape[1],), 7.0, device="cuda") for _ in range(2)]
    library.backward(dy, x, None, mean, rstd, gradients[0], None, None, axis=[1])()
    hit = torch.zeros(shape, dtype=torch.bool, device="cuda")
    hit[0, :, 5] = hit[1, :, shape[2] - 1] = True
    x[0, 7, 5] = dy[0, 7, 5] = math.nan
    x[1, shape[1] - 1, -1] = dy[1, 3, -1] = math.inf
    y, hit_mean, hit_rstd = forward(x)
    assert not bool(y[hit].isfinite().any())
    assert torch.equal(y[~hit], clean[~hit])
    assert torch.equal(hit_rstd.view(shape[0], -1).isnan(), hit[:, 0])
    assert torch.equal(hit_mean.view(shape[0], -1).isfinite(), ~hit[:, 0])
    x[hit] = 1.0
    library.backward(dy, x, None, mean, rstd, gradients[1], *sums, axis=[1])()
    assert not bool(gradients[1][hit].isfinite().any())
    assert torch.equal(gradients[1][~hit], gradients[0][~hit])
    assert bool(sums[0][7].isnan()) and bool(sums[1][7].isnan())
    assert bool(sums[1][:3].isfinite().all())


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_the_output_may_take_the_input_s_place(dtype):
    torch.manual_seed(6)
    x = torch.randn(40, 96, 200, device="cuda").to(dtype)
    y, mean, rstd = forward(x)
    library.forward(x, None, None, x, mean, rstd, epsilon=1e-3, axis=[1])()
    assert torch.equal(x, y)


@large
def test_more_than_two_to_the_31_elements():
    torch.manual_seed(7)
    x = torch.randn(2, 64, 17_000_000, device="cuda", dtype=F16)
    y, mean, rstd = forward(x)
    part = x[1:, :, -100_000:].contiguous()
    expected = forward(part)
    assert torch.equal(y[1:, :, -100_000:], expected[0])
    assert torch.equal(mean[-100_000:], expected[1]) and torch.equal(rstd[-100_000:], expected[2])
    dx, others = torch.empty_like(x), torch.empty_like(part)
    library.backward(y, x, None, mean, rstd, dx, None, None, axis=[1])()
    library.backward(expected[0], part, None, *expected[1:], others, None, None, axis=[1])()
    assert torch.equal(dx[1:, :, -100_000:], others)
