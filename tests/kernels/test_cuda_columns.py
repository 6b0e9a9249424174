"""The CUDA kernels for channels last, groups and middle axes on torch tensors, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from NumPy (small tensors) and from the formulas in float64 as in cuda_cases.py.
NV_NORMS_SMALL=1 leaves out the large sizes, for compute-sanitizer.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_cases import BF16, F16, F32, F64, SLOPES, SMALL, library, run_case, run_mixed, torch

# shape, groups, channels last: one block to a strip, several, and more than fits on the chip; rows
# of whole vectors, of part of one (3, 5, 6 channels), wide groups, a single group, tiny images
SHAPES = [
    ((2, 6, 6, 6, 32), 32, True), ((3, 100, 64), 64, True), ((2, 3001, 64), 64, True),
    ((2, 257, 96), 96, True), ((2, 300, 40), 4, True), ((3, 128, 24), 3, True),
    ((2, 64, 3), 3, True), ((2, 96, 6), 2, True), ((2, 95, 5), 5, True), ((2, 1001, 80), 1, True),
    ((5, 49, 2048), 2048, True), ((600, 16, 64), 64, True), ((1, 40000, 32), 4, True),
    ((2, 1, 1, 4096), 4096, True), ((7, 1, 1, 64), 8, True), ((1, 33, 4096), 32, True),
]  # fmt: skip
# Strips narrower than a line: of one sample, with groups of odd vectors, too, and of as many
# samples as give each block of an H100 or H200 a unit of its own
SHAPES += [
    ((1, 16387, 64), 64, True), ((1, 9001, 96), 32, True), ((1, 4099, 320), 32, True),
    ((12, 1021, 128), 128, True), ((33, 391, 128), 32, True), ((20, 785, 128), 128, True),
]  # fmt: skip
LARGE = [
    ((2, 100000, 64), 64, True), ((1, 600000, 32), 32, True), ((1, 1000, 1000, 3), 3, True),
    ((4, 4096, 320), 32, True), ((512, 14, 14, 64), 64, True), ((2, 9, 4096), 1, True),
    ((1, 128, 128, 128, 32), 32, True),
]  # fmt: skip
MIDDLE = [
    ((2, 70, 64), [1]), ((3, 700, 24), [1]), ((2, 768, 1000), [1]), ((2, 129, 7), [1]),
    ((40, 21, 1296), [1]),
]  # fmt: skip
LARGE += [((8, 96, 3136), [1]), ((2, 64, 65536), [1]), ((3, 9, 40000), [1]), ((1, 20000, 40), [1])]
# Tensors much larger than the chip: units that fit on it, that are read twice, and far beyond it
BEYOND = [
    ((8, 40001, 256), 256, True), ((4, 300001, 64), 64, True), ((4, 300001, 64), 8, True),
    ((2, 1500001, 32), 32, True),
]  # fmt: skip
LARGE += BEYOND
ALL = SHAPES + MIDDLE + ([] if SMALL else LARGE)
large = pytest.mark.skipif(SMALL, reason="large")


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32)


@pytest.mark.parametrize("case", [((2, 700, 32), 32, True), ((2, 700, 64), [1])], ids=str)
@pytest.mark.parametrize("out_type", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dy_type", [F16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_mixed_types(case, dtype, dy_type, out_type):
    run_case(case, dtype, dy_type=dy_type, out_type=out_type, param_type=F16)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("other", [F16] if SMALL else [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", [
    ((2, 700, 32), 32, True), ((2, 20000, 64), 8, True), ((2, 64, 3), 3, True), MIDDLE[1],
], ids=str)  # fmt: skip
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e6}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16},
], ids=str)  # fmt: skip
def test_mixed_precision(case, settings):
    run_mixed(case, BF16, **settings)


@pytest.mark.parametrize("formula", ["scale_only", "rms"])
@pytest.mark.parametrize(
    "case",
    [((2, 3000, 32), 32, True), ((2, 3000, 64), 8, True), ((2, 64, 3), 3, True), MIDDLE[1]],
    ids=str,
)
def test_other_formulas(case, formula):
    run_case(case, formula=formula)


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize("case", [((2, 20000, 32), 32, True), ((1, 9000, 64), 8, True)], ids=str)
def test_large_means(case, mean):
    run_case(case, mean=mean)


@large
@pytest.mark.parametrize("case", BEYOND, ids=str)
@pytest.mark.parametrize("settings", [
    {"mean": 1e6}, {"params": False}, {"formula": "rms"}, {"formula": "scale_only"},
    {"misaligned": True},
], ids=str)  # fmt: skip
def test_beyond_the_chip(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("case", [SHAPES[1], SHAPES[2], SHAPES[4], MIDDLE[0]], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_misaligned_tensors(case, dtype):
    run_case(case, dtype, misaligned=True)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16] if SMALL else [F32, F16, BF16, F64], ids=str)
@pytest.mark.parametrize("slope", [0.0, "silu"])
def test_activation_in_every_cut(case, dtype, slope):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32, slope=slope)


@pytest.mark.parametrize("case", [*SHAPES, *([] if SMALL else BEYOND)], ids=str)
@pytest.mark.parametrize("slope", [0.3] if SMALL else SLOPES)
def test_every_slope(case, slope):
    run_case(case, slope=slope)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
@pytest.mark.parametrize("slope", [0.5, "silu"])
def test_activation_of_mixed_precision_in_every_cut(case, other, slope):
    run_mixed(case, other, slope=slope)


@pytest.mark.parametrize("case", [((2, 700, 32), 32, True), ((2, 700, 32), 4, True)], ids=str)
@pytest.mark.parametrize("out_type", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("dy_type", [F16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_activation_of_mixed_types(case, dtype, dy_type, out_type):
    run_case(case, dtype, dy_type=dy_type, out_type=out_type, param_type=F16, slope=2.0)


@pytest.mark.parametrize("case", [
    ((2, 700, 32), 32, True), ((2, 20000, 64), 8, True), ((2, 64, 3), 3, True), MIDDLE[1],
    *([] if SMALL else BEYOND),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e4}, {"mean": 1e6}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": BF16}, {"dtype": F16, "misaligned": True},
    {"dtype": BF16, "slope": 0.01}, {"dtype": F16, "params": False, "slope": -0.5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("slope", [0.3, "silu"])
def test_activation_in_other_settings(case, settings, slope):
    run_case(case, **{"slope": slope, **settings})


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 2.0])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("shape", [
    (3, 700, 24), *([] if SMALL else [(2, 40000, 32), (4, 300001, 32)]),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("misaligned", [False, True])
def test_activation_of_extremes(shape, dtype, slope, misaligned):
    pytest.importorskip("test_cuda_activations").run_extremes(shape, True, dtype, slope, misaligned)


def test_the_activation_of_columns_takes_no_workspace():
    """It is inside all of their gradient's kernels, aligned or not, on the chip or not."""
    for dtype in (F32, F16, F64):
        x = torch.zeros((2, 700, 32), dtype=dtype, device="cuda")
        stats = torch.zeros(64, dtype=F64 if dtype == F64 else F32, device="cuda")
        sizes = [
            library.backward(
                x, x, None, stats, stats, x, None, None, groups=32, negative_slope=slope
            ).workspace.numel()
            for slope in (1.0, 0.0)
        ]
        assert sizes[1] - sizes[0] < x.numel() * x.element_size() // 2


def forward(x, groups):
    stats = torch.full((x.shape[0] * groups,), math.nan, device="cuda")
    rstd = torch.full_like(stats, math.nan)
    y = torch.full_like(x, math.nan)
    call = library.forward(x, None, None, y, stats, rstd, groups=groups, channels_last=True)
    call()
    return y, stats, rstd, call


def numpy_instance_norm(x: np.ndarray, epsilon: float = 1e-3) -> np.ndarray:
    x = x.astype(np.float64)
    mean = x.mean(axis=1, keepdims=True)
    centered = x - mean
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + epsilon)


@pytest.mark.parametrize("case", [
    ((7, 448, 5, 103), 103, True), ((2, 2136, 278), 278, True), ((3, 4000, 33), 11, True),
    ((2, 9000, 64), 64, True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("multiprocessors", ["all", "8"])
@pytest.mark.parametrize("types", [(F32, F32), (F16, F32), (BF16, BF16)], ids=str)
def test_first_rows_far_from_the_others(case, types, multiprocessors, monkeypatch):
    """Unaligned: a thread of the general pair adds up many rows about one of its first."""
    if multiprocessors != "all":
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", multiprocessors)
    dtype, other = types
    run_case(
        case, dtype, other, out_type=other, dx_type=dtype, far=1000.0, far_axis=1, misaligned=True
    )


@pytest.mark.parametrize("case", [
    ((2, 2136, 278), "8"), ((2, 9000, 64), "8"), ((4, 100000, 24), "8"), ((9, 4097, 64), "8"),
    ((2, 20000, 32), "8"), ((2, 20000, 32), "2"), ((8, 32768, 256), "all"),
    ((2, 1 << 20, 32), "all"), ((8, 1 << 18, 64), "all"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("far_rows", [8, 40, 300])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_all_first_rows_of_threads_far_from_the_others(case, far_rows, dtype, monkeypatch):
    """A thread that sums about one of them, or their median, loses up to four digits of rstd.

    On the chip, streamed and piped.
    """
    shape, multiprocessors = case
    if SMALL and math.prod(shape) > 1 << 20:
        pytest.skip("large")
    if multiprocessors != "all":
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", multiprocessors)
    torch.manual_seed(1)
    x = torch.randn(shape, device="cuda")
    x[:, :far_rows] += 1000
    x = x.to(dtype)
    variance, mean = torch.var_mean(x.double(), dim=1, correction=0)
    _, means, rstd, _ = forward(x, shape[-1])
    expected = 1 / torch.sqrt(variance + 1e-3)
    torch.testing.assert_close(rstd.double(), expected.flatten(), rtol=1e-6, atol=0)
    error = (means.double() - mean.flatten()).abs()
    assert float((error * expected.flatten()).max()) < 2e-7


def check_one_row_far(rows, far, value):
    rng = np.random.default_rng(3)
    x = rng.normal(2.0, 1.0, (2, rows, 32)).astype(np.float32)
    x[:, far] = value
    y = forward(torch.from_numpy(x).cuda(), 32)[0].double().cpu().numpy()
    expected = numpy_instance_norm(x)
    bound = 2e-6 * (1 + np.abs(expected))
    assert (np.abs(y - expected) <= bound).all(), np.abs(y - expected).max()


@pytest.mark.parametrize("far", [0, 2500, 4999], ids="row {}".format)
@pytest.mark.parametrize("value", [1e4, -3e5])
def test_one_row_far_from_the_others(far, value):
    """Whichever row the kernel looks at first, one element far off costs no precision."""
    check_one_row_far(5000, far, value)


@pytest.mark.parametrize("rows", [1500, 2500, 3500, 5000])
def test_a_first_row_far_from_the_others_on_a_small_chip(rows, monkeypatch):
    """So that a thread has many rows of what stays on the chip."""
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "2")
    check_one_row_far(rows, 0, -3e5)


@large
@pytest.mark.parametrize("shape", [(8, 40001, 128), (4, 300001, 32)], ids=str)
@pytest.mark.parametrize("value", [1e4, -3e5])
def test_far_rows_nan_and_infinity_beyond_the_chip(shape, value):
    """The same of tensors much larger than the chip, and once more with y in x's place."""
    torch.manual_seed(3)
    x = torch.randn(shape, device="cuda") + 2
    x[:, [0, 20001, -1]] = value
    x[1, 77, 5] = math.nan
    x[2, 30000, 9] = math.inf
    hit = torch.zeros(shape[0], shape[2], dtype=torch.bool, device="cuda")
    hit[1, 5] = hit[2, 9] = True
    y, mean, rstd, _ = forward(x, shape[2])
    x64 = x.double()
    centered = x64 - x64.mean(dim=1, keepdim=True)
    expected = centered / (centered.square().mean(dim=1, keepdim=True) + 1e-3).sqrt()
    keep = ~hit.unsqueeze(1).expand_as(y)
    error = (y.double() - expected).abs() / (1 + expected.abs())
    assert float(error[keep].max()) <= 2e-6
    assert not bool(y[~keep].isfinite().any())
    assert torch.equal(rstd.view_as(hit).isnan(), hit)
    assert torch.equal(mean.view_as(hit).isfinite(), ~hit)
    library.forward(x, None, None, x, mean, rstd, groups=shape[2], channels_last=True)()
    assert torch.equal(x[keep], y[keep])


def check_zeros_around_a_far_mean(rows, channels):
    rng = np.random.default_rng(4)
    x = rng.normal(1000.0, 1.0, (2, rows, channels)).astype(np.float32)
    x[:, [0, rows // 2, rows - 1]] = 0
    y = forward(torch.from_numpy(x).cuda(), channels)[0].double().cpu().numpy()
    expected = numpy_instance_norm(x)
    np.testing.assert_allclose(y, expected, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("chip", [None, "2"])
def test_zeros_around_a_far_mean(chip, monkeypatch):
    """Borders of zeros around values near 1000: every row that is cheap to look at is a zero."""
    if chip:
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", chip)
    check_zeros_around_a_far_mean(4001, 64)


def check_nan_and_infinity(samples, rows):
    torch.manual_seed(5)
    x = torch.randn(samples, rows, 32, device="cuda")
    clean = forward(x, 32)[0]
    x[0, 77, 5] = math.nan
    x[1, rows - 1000, 9] = math.inf
    y, mean, rstd, _ = forward(x, 32)
    hit = torch.zeros(samples, 32, dtype=torch.bool, device="cuda")
    hit[0, 5] = hit[1, 9] = True
    assert bool(y[0, :, 5].isnan().all()) and bool(y[1, :, 9].isnan().all())
    assert torch.equal(mean.view(samples, 32).isfinite(), ~hit)
    assert torch.equal(rstd.view(samples, 32).isnan(), hit)
    keep = ~hit.unsqueeze(1).expand_as(y)
    assert torch.equal(y[keep], clean[keep])


def test_nan_and_infinity_stay_in_their_channel():
    check_nan_and_infinity(3, 5000)


@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_nan_and_infinity_of_a_gradient_in_16_bits_stay_in_their_channel(other):
    torch.manual_seed(5)
    x = torch.randn(3, 5000, 32, device="cuda")
    _, mean, rstd, _ = forward(x, 32)
    dy = torch.randn(3, 5000, 32, device="cuda").to(other)
    clean, hit = torch.full_like(x, 7.0), torch.full_like(x, 7.0)
    library.backward(dy, x, None, mean, rstd, clean, None, None, groups=32)()
    dy[1, 77, 5] = math.nan
    dy[2, 4999, 9] = math.inf
    library.backward(dy, x, None, mean, rstd, hit, None, None, groups=32)()
    bad = torch.zeros(3, 1, 32, dtype=torch.bool, device="cuda").expand_as(x).clone()
    bad[1, :, 5] = bad[2, :, 9] = True
    assert not bool(hit[bad].isfinite().any())
    assert torch.equal(hit[~bad], clean[~bad])


def test_constant_channels_give_exactly_beta():
    x = torch.full((2, 3000, 64), 123.456, device="cuda")
    y, mean, rstd, _ = forward(x, 64)
    assert bool((y == 0).all())
    assert bool((mean == x[0, 0, 0]).all())
    torch.testing.assert_close(rstd, torch.full_like(rstd, 1e-3**-0.5))
