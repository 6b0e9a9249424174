"""The CUDA kernels for columns of small samples on torch tensors, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from NumPy (small tensors) and from the formulas in float64 as in cuda_cases.py.
NV_NORMS_SMALL=1 leaves out the large sizes, for compute-sanitizer.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_cases import BF16, F16, F32, SMALL, library, run_case, run_mixed, torch

# shape, groups, channels last
SHAPES = [
    # several samples to a block, the last block not full; one sample; some groups of one
    ((70, 3, 16), 16, True), ((70, 3, 16), 4, True), ((5, 49, 64), 8, True),
    ((3, 49, 256), 32, True),
    # positions that do not divide s, one position, more of them than s has whole rounds of
    ((7, 9, 64), 64, True), ((9, 2, 128), 1, True), ((4, 5, 24), 3, True), ((3, 65, 96), 96, True),
    # groups that end within vectors: of 1, 2, 3, 5 and 6 channels
    ((6, 25, 64), 32, True), ((3, 36, 48), 16, True), ((3, 17, 40), 8, True), ((5, 8, 48), 8, True),
    # channels that are no whole vectors, which are read one by one
    ((4, 16, 5), 5, True), ((4, 33, 30), 6, True), ((3, 50, 7), 1, True), ((9, 4, 12), 4, True),
    # groups of more parts than a warp has lanes; more than 128 threads, and just too many
    ((3, 4, 1024), 1, True), ((2, 144, 1280), 32, True), ((2, 225, 320), 8, True),
    ((2, 400, 256), 32, True), ((2, 577, 64), 8, True), ((3, 576, 16), 16, True),
    # 16 vectors to a thread: just that many positions, one more; all that blocks take, and more
    ((5, 17, 64), 8, True), ((3, 145, 32), 8, True), ((3, 160, 48), 48, True),
    ((2, 324, 640), 32, True), ((2, 400, 96), 96, True), ((2, 484, 320), 32, True),
    ((3, 1024, 16), 16, True), ((2, 1024, 64), 8, True), ((2, 1024, 32), 8, True),
    ((2, 1025, 32), 8, True), ((2, 1152, 64), 64, True), ((2, 1153, 64), 8, True),
    # more blocks than run at once on a large GPU, which have more vectors to a thread
    ((2500, 17, 48), 8, True), ((700, 25, 192), 192, True), ((1100, 100, 24), 3, True),
    # images of 7 x 7, and volumes
    ((5, 7, 7, 512), 32, True), ((3, 4, 4, 4, 64), 16, True), ((2, 14, 14, 256), 256, True),
    # no positions at all: groups of [n, channels], of whole vectors or not
    ((37, 64), 8, True), ((37, 64), 32, True), ((19, 2400), 3, True), ((11, 30), 10, True),
    ((13, 24), 24, True), ((41, 40), 4, False), ((7, 2048), 4, True), ((300, 12), 3, True),
]  # fmt: skip
# Samples enough for several in turn to a block of the gradient, and one more
LARGE = [((100003, 2, 16), 4, True), ((300001, 16), 4, True), ((40001, 9, 5), 5, True)]
ALL = SHAPES + ([] if SMALL else LARGE)
SOME = [((70, 3, 16), 4, True), ((6, 25, 64), 32, True), ((5, 49, 64), 8, True),
        ((4, 33, 30), 6, True), ((37, 64), 8, True)]  # fmt: skip


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("other", [F16] if SMALL else [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16] if SMALL else [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("slope", [0.0, "silu"])
def test_activation_in_every_cut(case, dtype, slope):
    run_case(case, dtype, slope=slope)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("slope", [0.5, "silu"])
def test_activation_of_mixed_precision_in_every_cut(case, slope):
    run_mixed(case, F16, slope=slope)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e4}, {"mean": 1e6}, {"far": 1000.0}, {"params": False},
    {"formula": "rms"}, {"formula": "scale_only"}, {"param_type": F16}, {"slope": 0.3},
    {"slope": -2.0}, {"dtype": F16, "misaligned": True}, {"dtype": F16, "param_type": F16},
    {"dtype": BF16, "out_type": F32, "units": 16.0}, {"dtype": F16, "formula": "rms"},
    {"slope": "silu", "formula": "scale_only"}, {"slope": 0.1, "mean": 1e4, "misaligned": True},
], ids=str)  # fmt: skip
def test_other_settings(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("far", [0, 17, 195], ids="position {}".format)
@pytest.mark.parametrize("value", [1e4, -3e5])
@pytest.mark.parametrize("groups", [32, 8])
def test_one_position_far_from_the_others(far, value, groups):
    """Whichever position a kernel looks at first, one far off costs no precision."""
    rng = np.random.default_rng(3)
    x = rng.normal(2.0, 1.0, (2, 196, 32)).astype(np.float32)
    x[:, far] = value
    y = forward(torch.from_numpy(x).cuda(), groups)[0].double().cpu().numpy()
    split = x.astype(np.float64).reshape(2, 196, groups, -1)
    centered = split - split.mean(axis=(1, 3), keepdims=True)
    rstd = 1 / np.sqrt((centered**2).mean(axis=(1, 3), keepdims=True) + 1e-3)
    expected = (centered * rstd).reshape(x.shape)
    bound = 2e-6 * (1 + np.abs(expected))
    assert (np.abs(y - expected) <= bound).all(), np.abs(y - expected).max()


@pytest.mark.parametrize("case", [
    ((238, 1744), 2, True), ((155, 3, 1216), 2, True), ((9, 13464), 11, False),
    ((40, 49, 256), 8, True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_first_channels_far_from_the_others(case, dtype):
    """Of a group: what a thread finds of these is no worse a start for what all found together."""
    run_case(case, dtype, far=1000.0)


def forward(x, groups):
    stats = torch.full((x.shape[0] * groups,), math.nan, device="cuda")
    rstd = torch.full_like(stats, math.nan)
    y = torch.full_like(x, math.nan)
    library.forward(x, None, None, y, stats, rstd, groups=groups, channels_last=True)()
    return y, stats, rstd


@pytest.mark.parametrize("positions", [2, 49])
@pytest.mark.parametrize("groups", [64, 8])
def test_nan_and_infinity_stay_in_their_group(positions, groups):
    torch.manual_seed(5)
    x = torch.randn(40, positions, 64, device="cuda")
    clean = forward(x, groups)[0]
    x[1, 1, 5] = math.nan
    x[2, positions - 1, 60] = math.inf
    y, mean, rstd = forward(x, groups)
    hit = torch.zeros(40, groups, dtype=torch.bool, device="cuda")
    hit[1, 5 * groups // 64] = hit[2, 60 * groups // 64] = True
    y, clean = (t.view(40, positions, groups, -1).transpose(1, 2) for t in (y, clean))
    assert bool(y[hit].isnan().all())
    assert torch.equal(mean.view(40, groups).isfinite(), ~hit)
    assert torch.equal(rstd.view(40, groups).isnan(), hit)
    assert torch.equal(y[~hit], clean[~hit])


def test_constant_samples_give_exactly_beta():
    for positions in (1, 3, 49, 196):
        x = torch.full((30, positions, 48), 123.456, device="cuda")
        for groups in (48, 16, 4, 3, 1) if positions > 1 else (16, 4, 3):
            y, mean, rstd = forward(x, groups)
            assert bool((y == 0).all())
            assert bool((mean == x[0, 0, 0]).all())
            torch.testing.assert_close(rstd, torch.full_like(rstd, 1e-3**-0.5))


@pytest.mark.parametrize("groups", [32, 4])
def test_nan_of_dy_stays_in_its_sample_and_channel(groups):
    torch.manual_seed(6)
    x, dy = (torch.randn(50, 9, 32, device="cuda") for _ in range(2))
    _, mean, rstd = forward(x, groups)
    dy[7, 3, 12] = math.nan
    gamma = torch.ones(32, device="cuda")
    dx, dgamma, dbeta = (
        torch.full_like(x, math.nan),
        torch.empty_like(gamma),
        torch.empty_like(gamma),
    )
    library.backward(
        dy, x, gamma, mean, rstd, dx, dgamma, dbeta, groups=groups, channels_last=True
    )()
    hit = torch.zeros(50, groups, dtype=torch.bool, device="cuda")
    hit[7, 12 * groups // 32] = True
    wide = hit.repeat_interleave(32 // groups, 1)[:, None, :].expand_as(x)
    assert torch.equal(dx.isnan(), wide)
    channel = torch.arange(32, device="cuda") == 12
    assert torch.equal(dbeta.isnan(), channel) and torch.equal(dgamma.isnan(), channel)
