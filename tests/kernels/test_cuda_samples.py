"""Layer and RMS norm whose gamma and beta are each sample's own, [N, D], on torch tensors.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). Expected values:
float64 from the formulas, as in cuda_cases.py. NV_NORMS_SMALL=1 leaves out what compute-sanitizer
takes long for.
"""

from __future__ import annotations

import math

import pytest
from cuda_cases import (
    BF16,
    F16,
    F32,
    F64,
    SMALL,
    kernels_of,
    library,
    run_case,
    run_mixed,
    torch,
    views,
)


def own(shape: tuple[int, ...], axis: list[int] | None = None) -> tuple:
    """A case of cuda_cases.py."""
    return (shape, axis or [-1], "per sample")


# A row in a part of a warp, in a block, in several blocks; odd sizes; samples of few rows and many
CASES = [
    own((2, 5, 7)), own((5, 1, 33)), own((3, 40, 1)), own((6, 65)), own((1, 9, 12)),
    own((3, 5, 7, 768)), own((4, 6, 10), [1, 2]), own((2, 300, 1152)), own((40, 17, 64)),
    own((131, 3, 257)), own((7, 31, 31)), own((300, 64, 16)), own((2, 1000, 384)),
    own((3, 17, 1536)), own((33, 16, 3072)), own((3, 9, 4100)), own((2, 5, 16390)),
    own((2, 3, 70001)), own((1000, 2, 100)), own((70, 3, 5, 128), [-1, -2]),
]  # fmt: skip
# Rows of a warp that goes on, of a block; numbers of rows that are no multiples of theirs
GOING = [
    own((2, 300, 1024)), own((3, 41, 1280)), own((2, 100, 2048)), own((2, 77, 2304)),
    own((2, 50, 2560)), own((2, 63, 3072)), own((3, 29, 5120)), own((2, 31, 8192)),
    own((2, 19, 10240)), own((70, 23, 1152)), own((300, 3, 1536)),
]  # fmt: skip
# Rows that share their parameters, of which these kernels have those of some widths
SHARED = [
    ((8192, 1152), [-1]), ((8201, 1536), [-1]), ((8193, 1040), [-1]), ((8195, 2560), [-1]),
    ((3, 2048), [-1]), ((4099, 2048), [-1]),
]  # fmt: skip
# Rows that fit into no block's registers: one sample after another
LARGE = [own((3, 4, 300000)), own((2, 3, 1_500_001))]
SOME = [CASES[0], CASES[7], CASES[8], CASES[10], CASES[13], CASES[16]]
SETTINGS = [
    {"misaligned": True}, {"mean": 1e4}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16}, {"param_type": BF16},
    {"dtype": F16, "misaligned": True}, {"dtype": BF16, "out_type": F32, "units": 16.0},
    {"dtype": BF16, "param_type": BF16}, {"dtype": F64, "param_type": F64, "misaligned": True},
]  # fmt: skip
large = pytest.mark.skipif(SMALL, reason="large")


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_other_settings(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("case", GOING, ids=str)
@pytest.mark.parametrize("settings", [
    {}, {"dtype": F16}, {"dtype": BF16}, {"dtype": BF16, "param_type": BF16}, {"mean": 1e4},
    {"dtype": F16, "mean": 1e4}, {"dtype": BF16, "mean": 3e4, "far": 1000.0}, {"params": False},
    {"dtype": F16, "params": False, "formula": "rms"}, {"dtype": BF16, "formula": "scale_only"},
    {"formula": "rms"}, {"formula": "scale_only"}, {"dtype": F16, "far": 3000.0},
], ids=str)  # fmt: skip
def test_rows_in_turn(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("case", SHARED, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("settings", [
    {}, {"mean": 1e4}, {"params": False}, {"formula": "rms"}, {"formula": "scale_only"},
    {"param_type": None}, {"misaligned": True},
], ids=str)  # fmt: skip
def test_rows_that_share_their_parameters(case, dtype, settings):
    if "param_type" in settings:
        settings = {"param_type": dtype}
    run_case(case, dtype, **settings)


@pytest.mark.parametrize("case", SHARED, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_rows_that_share_their_parameters_in_mixed_precision(case, other):
    run_mixed(case, other)


def calls_of(case: tuple, dtype: torch.dtype) -> tuple:
    """Of the forward pass, and of the gradient."""
    shape = case[0]
    kwargs, split, _, params = views(case, torch.empty(0))
    x, dy, y, dx = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
    like = [split[a] for a in params]
    gamma, beta, dgamma, dbeta = (torch.randn(like, device="cuda") for _ in range(4))
    mean, rstd = (torch.ones(math.prod(shape[:-1]), device="cuda") for _ in range(2))
    return (
        library.forward(x, gamma, beta, y, mean, rstd, **kwargs),
        library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **kwargs),
    )


@large
@pytest.mark.parametrize("case, dtype, forward, backward", [
    (CASES[8], BF16, "WarpRowsKernel", "WarpGradientKernel"),
    (GOING[0], BF16, "SampleRowsKernel", "WarpGradientKernel"),
    (GOING[5], F32, "SampleRowsKernel", "SampleGradientKernel"),
    (SHARED[0], BF16, "SampleRowsKernel", "WarpGradientKernel"),
    (SHARED[3], F16, "SampleRowsKernel", "SampleGradientKernel"),
    (SHARED[5], F32, "", "SampleGradientKernel"),
    (CASES[10], F32, "RowsKernel", "RowsKernel"),
], ids=str)  # fmt: skip
def test_these_kernels_are_reached(case, dtype, forward, backward):
    """So that the tests above test what they say."""
    for call, kernel in zip(calls_of(case, dtype), (forward, backward), strict=True):
        names = kernels_of(call)
        if not names:
            pytest.skip("the profiler sees no kernels")
        assert kernel in names


@large
@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize("settings", [
    {}, {"dtype": BF16}, {"misaligned": True}, {"params": False}, {"formula": "rms"},
], ids=str)  # fmt: skip
def test_one_sample_after_another(case, settings):
    run_case(case, **settings)


@large
def test_more_rows_than_a_grid_has_blocks():
    if torch.cuda.get_device_properties(0).total_memory < 100 << 30:
        pytest.skip("float64 values of 2^29 numbers need an H200's memory")
    run_case(own((5, 2**28 // 5 + 1, 2)))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_nan_stays_in_its_sample(case):
    """Of gamma, and of dy: other samples' outputs have the bits that they have without."""
    shape = case[0]
    torch.manual_seed(20261127)
    x, dy = (torch.randn(shape, device="cuda") for _ in range(2))
    gamma, beta = (torch.randn(shape[0], shape[-1], device="cuda") for _ in range(2))
    hit = shape[0] // 2

    def outputs() -> list[torch.Tensor]:
        y, dx = (torch.full_like(x, 7.0) for _ in range(2))
        mean, rstd = (torch.empty(math.prod(shape[:-1]), device="cuda") for _ in range(2))
        dgamma, dbeta = (torch.full_like(gamma, 7.0) for _ in range(2))
        kwargs = {"axis": [-1], "per_sample": True}
        library.forward(x, gamma, beta, y, mean, rstd, **kwargs)()
        library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **kwargs)()
        return [y, dx, dgamma, dbeta]

    clean = outputs()
    gamma[hit] = math.nan
    dy[hit] = math.nan
    for before, after in zip(clean, outputs(), strict=True):
        others = [n for n in range(shape[0]) if n != hit]
        assert torch.equal(before[others], after[others])
        assert bool(after[hit].isnan().all())
