"""The CUDA kernels for channels first (NC...) on torch tensors, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from the formulas in float64 as in cuda_cases.py. NV_NORMS_SMALL=1 leaves out the large
sizes, for compute-sanitizer.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_cases import (
    BF16,
    F16,
    F32,
    F64,
    SLOPES,
    SMALL,
    library,
    run_case,
    run_mixed,
    torch,
)

large = pytest.mark.skipif(SMALL, reason="large")

# shape, groups: a warp, a block and several blocks to a row; a channel to several blocks, several
# channels to a block; rows and channels that are no whole vectors, 1 x 1 images, 3 channels, 4096
SHAPES = [
    ((2, 6, 8, 8), 6), ((3, 5, 7, 9), 5), ((2, 3, 128), 3), ((4, 1, 32, 32), 1), ((2, 6, 45), 2),
    ((5, 8, 1, 1), 2), ((300, 8, 1, 1), 8), ((1, 4096, 4, 4), 4096), ((1, 4096, 8, 8), 32),
    ((512, 3, 16, 16), 3), ((2, 8, 56, 56), 2), ((1, 3, 40000), 3), ((2, 12, 4096), 3),
    ((2, 12, 5000), 3), ((1, 10, 9000), 1), ((3, 10, 1024), 1), ((2, 3, 100, 104), 1),
    ((3, 7, 20001), 7), ((2, 6, 10001), 3), ((3, 12, 4, 8), 3), ((5, 40, 8, 8), 1),
    ((2, 70, 1024), 1), ((3, 24, 56, 56), 3),
    # rows with parameters of their own by the kernels of long rows: 16 to 32 numbers to a thread, a
    # block to a row, one that works as a cluster, a cluster, and in 16 bits teams of the grid
    ((2, 8, 56, 56), 8), ((8, 64, 48, 48), 64), ((30, 10, 5120), 10), ((2, 50, 12288), 50),
    ((1, 150, 20480), 150), ((2, 40, 36864), 40),
    # rows that blocks hold: two, four and eight vectors to a thread, the last ones not all there;
    # runs of a vector, of more than a warp's, and of numbers that are no whole vectors
    ((3, 5, 1728), 5), ((2, 7, 13824), 7), ((2, 3, 32768), 3), ((1, 3, 55296), 3),
    ((2, 64, 4, 8), 2), ((3, 24, 48, 48), 8), ((2, 36, 28, 28), 2), ((3, 8, 3136), 4),
    ((2, 10, 2560), 1), ((2, 16, 1540), 2),
    # held rows whose runs end within vectors, and runs shorter than a vector, which are not held
    ((4, 64, 7, 7), 8), ((3, 32, 14, 14), 4), ((2, 640, 7, 7), 2), ((3, 64, 3, 3), 2),
    ((3, 64, 5), 2), ((3, 64, 3), 2), ((5, 48, 1, 17), 3),
    # rows that blocks hold and that are no whole vectors, with numbers before and after these: 1 to
    # 14 of them; the shortest such rows and the longest
    ((5, 9, 21, 21), 9), ((3, 7, 1001), 7), ((2, 5, 57, 57), 5), ((4, 3, 1030), 3),
    ((2, 3, 131), 3), ((3, 4, 263), 4), ((2, 3, 119, 120), 3), ((1, 3, 14337), 3),
    ((1, 3, 16387), 3), ((2, 2, 32775), 2), ((1, 3, 55303), 3), ((1, 3, 32771), 3),
    ((2, 3, 65543), 3), ((9, 5, 13, 13), 5),
    # and clusters of 3 to 16 blocks, of half as many threads as there may be and of all
    ((2, 3, 257, 257), 3), ((1, 2, 511, 1025), 2), ((1, 3, 511, 513), 3),
    # their runs: within a vector at both ends; those of rows that are whole vectors, by clusters;
    # many of them, few to a block; longer rows than clusters hold
    ((3, 6, 7, 7), 3), ((5, 6, 15, 15), 2), ((3, 9, 33, 33), 3), ((2, 6, 91, 91), 2),
    ((2, 6, 257, 257), 2), ((2, 16, 65, 65), 2), ((1, 16, 129, 129), 2), ((1, 70, 31, 31), 1),
    ((3, 350, 7, 11), 2), ((2, 16, 8, 8, 33), 2), ((1, 6, 21, 1999), 2), ((1, 8, 511, 257), 1),
    # hundreds of runs to a cluster, a run in two of its blocks, in up to three, and a few in all
    ((2, 2048, 406), 4), ((2, 3939, 735), 39), ((3, 282, 473), 2), ((4, 107, 662), 1),
    # short rows of whole vectors or not, in tiles: 1 to 32 lanes to a row, several tiles to a warp
    ((70, 40, 5), 40), ((33, 17, 7, 7), 17), ((300, 64, 4, 4), 64), ((9, 12, 300), 12),
    ((13, 6, 256), 6), ((5, 9, 15, 15), 9), ((7, 3, 11), 3), ((100, 3, 100), 3), ((40, 30, 64), 30),
    # long rows of several runs
    ((20, 8, 1600), 2), ((7, 40, 4096), 4), ((1, 8, 40960), 2),
]  # fmt: skip
LARGE = [
    ((2, 4, 128, 128, 128), 4), ((1, 3, 1000, 1000), 3), ((1, 3, 1001, 1001), 3),
    ((32, 256, 56, 56), 32), ((8, 320, 64, 64), 32), ((512, 64, 14, 14), 64),
    ((512, 64, 14, 14), 8), ((2, 4096, 16, 16), 4096), ((2, 512, 128, 128), 32),
    ((1, 2, 160, 160, 160), 2), ((1, 1, 256, 256, 256), 1), ((2, 64, 256, 256), 1),
    ((2000, 64, 49), 64), ((20001, 3, 16), 3),
    ((2, 6, 300, 301), 2), ((1, 4, 4000001), 2), ((70000, 32, 7), 4),
    # clusters and teams of the grid, with 8, 16 and 24 numbers to a thread
    ((2, 400, 32, 32, 32), 400), ((4, 64, 64, 64, 64), 64), ((1, 96, 640, 640), 96),
    ((1, 64, 96, 96, 96), 64), ((4, 128, 48, 48, 48), 128),
]  # fmt: skip
ALL = [(*case, False) for case in SHAPES + ([] if SMALL else LARGE)]


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32)


CUTS = [((2, 6, 8, 8), 6, False), ((3, 5, 5000), 5, False), ((2, 12, 5000), 3, False)]
CUTS += [((3, 7, 1001), 7, False), ((3, 9, 33, 33), 3, False), ((2, 6, 91, 91), 2, False)]
CUTS += [((1, 3, 66049), 3, False)]


@pytest.mark.parametrize("case", [*CUTS, ((2, 6, 45), 2, False)], ids=str)
@pytest.mark.parametrize("out_type", [F16, F32, F64], ids=str)
@pytest.mark.parametrize("dy_type", [F16, F32], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_mixed_types(case, dtype, dy_type, out_type):
    run_case(case, dtype, dy_type=dy_type, out_type=out_type, param_type=F16, units=16)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("other", [F16] if SMALL else [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", [*CUTS, ((1, 3, 90000), 3, False)], ids=str)
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e6}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16},
], ids=str)  # fmt: skip
def test_mixed_precision(case, settings):
    run_mixed(case, BF16, **settings)


@pytest.mark.parametrize("formula", ["scale_only", "rms"])
@pytest.mark.parametrize(
    "case", [*CUTS, ((1, 3, 90000), 3, False), ((3, 7, 201), 7, False)], ids=str
)
def test_other_formulas(case, formula):
    run_case(case, formula=formula)


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize("case", [*CUTS, ((1, 3, 90000), 3, False)], ids=str)
def test_large_means(case, mean):
    run_case(case, mean=mean)


@pytest.mark.parametrize("case", [*CUTS, ((1, 3, 90000), 3, False)], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_misaligned_tensors(case, dtype):
    run_case(case, dtype, misaligned=True)


@pytest.mark.parametrize("case", [*CUTS, ((3, 5, 7, 9), 5, False)], ids=str)
def test_no_parameters(case):
    run_case(case, params=False)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16] if SMALL else [F32, F16, BF16, F64], ids=str)
@pytest.mark.parametrize("slope", [0.0, "silu"])
def test_activation_in_every_cut(case, dtype, slope):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32, slope=slope)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("other", [F16] if SMALL else [F16, BF16], ids=str)
@pytest.mark.parametrize("slope", [0.5, "silu"])
def test_activation_of_mixed_precision_in_every_cut(case, other, slope):
    run_mixed(case, other, slope=slope)


@pytest.mark.parametrize(
    "case", [*CUTS, ((1, 3, 90000), 3, False), ((3, 5, 7, 9), 5, False)], ids=str
)
@pytest.mark.parametrize("slope", [0.3] if SMALL else SLOPES)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_every_slope(case, dtype, slope):
    run_case(case, dtype, slope=slope)


@pytest.mark.parametrize("case", [*CUTS, ((1, 3, 90000), 3, False)], ids=str)
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e4}, {"mean": 1e6}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16}, {"dtype": F16, "misaligned": True},
    {"dtype": F16, "out_type": F32, "slope": -0.5}, {"dtype": F32, "dy_type": F16, "slope": 2.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("slope", [0.3, "silu"])
def test_activation_in_other_settings(case, settings, slope):
    run_case(case, **{"slope": slope, **settings})


def forward(x, groups):
    stats = torch.full((x.shape[0] * groups,), math.nan, device="cuda")
    rstd = torch.full_like(stats, math.nan)
    y = torch.full_like(x, math.nan)
    call = library.forward(x, None, None, y, stats, rstd, groups=groups, channels_last=False)
    call()
    return y, stats, rstd, call


@pytest.mark.parametrize("far", [0, 0.3, -1], ids="element {}".format)
@pytest.mark.parametrize("length", [40000, 66049])
@pytest.mark.parametrize("value", [1e4, -3e5])
def test_one_element_far_from_the_others(far, value, length):
    """Whichever element the kernel looks at first, one far off costs no precision."""
    rng = np.random.default_rng(3)
    x = rng.normal(2.0, 1.0, (2, 3, length)).astype(np.float32)
    x[:, :, -1 if far == -1 else int(far * length)] = value
    y = forward(torch.from_numpy(x).cuda(), 3)[0].double().cpu().numpy()
    centered = x.astype(np.float64) - x.astype(np.float64).mean(axis=2, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(axis=2, keepdims=True) + 1e-3)
    bound = 2e-6 * (1 + np.abs(expected))
    assert (np.abs(y - expected) <= bound).all(), np.abs(y - expected).max()


@pytest.mark.parametrize("case", [*ALL, ((7, 1, 94496), 1, False)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("multiprocessors", ["all", "8"])
def test_first_elements_far_from_the_others(case, dtype, multiprocessors, monkeypatch):
    """Of a channel, eight side by side: a thread's first ones may all be far."""
    if multiprocessors != "all":
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", multiprocessors)
    run_case(case, dtype, far=1000.0)


@pytest.mark.parametrize("length", [64, 5000, 90000, 66049])
def test_nan_and_infinity_stay_in_their_channel(length):
    torch.manual_seed(5)
    x = torch.randn(3, 8, length, device="cuda")
    clean = forward(x, 8)[0]
    x[1, 5, 17] = math.nan
    x[2, 3, length - 1] = math.inf
    y, mean, rstd, _ = forward(x, 8)
    hit = torch.zeros(3, 8, dtype=torch.bool, device="cuda")
    hit[1, 5] = hit[2, 3] = True
    assert bool(y[1, 5].isnan().all()) and bool(y[2, 3].isnan().all())
    assert torch.equal(mean.view(3, 8).isfinite(), ~hit)
    assert torch.equal(rstd.view(3, 8).isnan(), hit)
    assert torch.equal(y[~hit], clean[~hit])


def test_constant_rows_give_exactly_beta():
    for length in (64, 5000, 90000, 66049):
        x = torch.full((2, 4, length), 123.456, device="cuda")
        y, mean, rstd, _ = forward(x, 4)
        assert bool((y == 0).all())
        assert bool((mean == x[0, 0, 0]).all())
        torch.testing.assert_close(rstd, torch.full_like(rstd, 1e-3**-0.5))


def gradient(x, dy, groups, mean, rstd):
    gamma = torch.ones(x.shape[1], device="cuda")
    outputs = torch.full_like(x, math.nan), torch.empty_like(gamma), torch.empty_like(gamma)
    call = library.backward(dy, x, gamma, mean, rstd, *outputs, groups=groups, channels_last=False)
    call()
    return outputs, call


@large
def test_more_than_two_to_the_31_elements():
    torch.manual_seed(9)
    x = torch.empty(2, 2, 2**29 + 72, dtype=BF16, device="cuda").normal_(0.5, 2.0)
    y, mean, rstd, call = forward(x, 2)
    del call
    outputs, call = gradient(x, x, 2, mean, rstd)
    for n, c in ((0, 0), (1, 1)):
        row = x[n, c].double()
        true_mean = row.mean()
        true_rstd = 1 / torch.sqrt(row.var(correction=0) + 1e-3)
        xhat = (row - true_mean) * true_rstd
        torch.testing.assert_close(y[n, c].double(), xhat, rtol=8e-3, atol=1e-5)
        dx = true_rstd * (row - true_mean - xhat * (row * xhat).mean())
        torch.testing.assert_close(outputs[0][n, c].double(), dx, rtol=8e-3, atol=1e-4)
    sums = [(x[n].double() * y[n].double()).sum(1) for n in range(2)]
    torch.testing.assert_close(outputs[1].double(), sums[0] + sums[1], rtol=1e-3, atol=0)
