"""The CUDA kernels with an activation behind the norm, on torch tensors, against float64.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The expected
values come from the formulas in float64 as in cuda_cases.py. NV_NORMS_SMALL=1 leaves out most
slopes, for compute-sanitizer. Columns and segments: test_cuda_columns.py, test_cuda_segments.py.
"""

from __future__ import annotations

import math

import pytest
from cuda_cases import (
    BF16,
    EPSILON,
    F16,
    F32,
    F64,
    SLOPES,
    SMALL,
    ULP,
    clear_of_zero,
    fresh,
    library,
    poisoned,
    rounds,
    run_case,
    torch,
    views,
)

# Rows by columns and by runs, columns, general layouts; odd sizes, channels fewer than a vector
ACTIVATED = [
    ((7, 100), [-1]), ((33, 257), [-1]), ((3, 9000), [-1]), ((70, 20000), [-1]), ((2, 70, 12), [1]),
    ((2, 3, 4, 6), [0, 2]), ((3, 4, 2, 3, 2), [0, 2, 4]), ((2, 5, 3, 7), [1]),
    ((2, 7, 5, 6), 2, True), ((2, 5, 12), 12, True), ((2, 95, 5), 5, True), ((2, 12, 5), 3, False),
    ((3, 5, 7, 9), 5, False), ((50, 2, 309), 1, True), ((3, 40, 3001), 1, True),
]  # fmt: skip


@pytest.mark.parametrize("case", ACTIVATED, ids=str)
@pytest.mark.parametrize("slope", [0.0, 0.3] if SMALL else SLOPES)
def test_activation_of_every_layout(case, slope):
    run_case(case, slope=slope)


@pytest.mark.parametrize(
    "case",
    [((7, 100), [-1]), ((2, 70, 12), [1]), ((2, 3, 4, 6), [0, 2]), ((2, 12, 5), 3, False)],
    ids=str,
)
@pytest.mark.parametrize("param_type", [F16, F64], ids=str)
@pytest.mark.parametrize("out_type", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
@pytest.mark.parametrize("slope", [-0.5, "silu"])
def test_activation_of_every_type(case, dtype, out_type, param_type, slope):
    run_case(
        case,
        dtype,
        dy_type=out_type,
        param_type=param_type,
        out_type=out_type,
        units=16,
        slope=slope,
    )


@pytest.mark.parametrize("case", [
    ((7, 100), [-1]), ((2, 400, 12), [1]), ((2, 3, 4, 6), [0, 2]), ((2, 12, 5), 3, False),
    ((2, 12, 4096), 3, False),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e4}, {"mean": 1e6}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"dtype": F16, "misaligned": True}, {"dtype": F64},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("slope", [0.3, "silu"])
def test_activation_in_other_settings(case, settings, slope):
    run_case(case, slope=slope, **settings)


@pytest.mark.parametrize("case", [
    ((0, 10), [-1]), ((10, 0), [-1]), ((2, 0, 8), 8, True), ((0, 5, 8), 8, True),
    ((2, 8, 0), 8, False), ((2, 5, 0), 1, True),
], ids=str)  # fmt: skip
def test_activation_of_nothing(case):
    kwargs, split, reduced, params = views(case, torch.empty(case[0], device="cuda"))
    count = math.prod(split[a] for a in params)
    stats = math.prod(n for a, n in enumerate(split) if a not in reduced)
    x = torch.empty(case[0], device="cuda")
    gamma, beta = fresh((count,), F32), fresh((count,), F32)
    m, r = poisoned((stats,), F32), torch.zeros(stats, device="cuda")
    library.forward(x, gamma, beta, x, m, r, negative_slope=0.3, **kwargs)()
    dgamma, dbeta = poisoned((count,), F32), poisoned((count,), F32)
    gradient = library.backward(
        x, x, gamma, m, r, x, dgamma, dbeta, beta=beta, negative_slope=0.3, **kwargs
    )
    gradient()
    assert bool(r.isnan().all())
    assert bool((dgamma == 0).all()) and bool((dbeta == 0).all())


def run_extremes(shape, channels_last, dtype, slope, misaligned=False):
    """t is NaN, plus and minus infinity and 0 in a channel each; the others are as if alone."""
    torch.manual_seed(7)
    channels = shape[-1 if channels_last else 1]
    case = (shape, channels, channels_last)
    kwargs = {"groups": channels, "channels_last": channels_last, "negative_slope": slope}
    x = fresh(shape, dtype, misaligned=misaligned)
    gamma, beta = fresh((channels,), F32), fresh((channels,), F32)
    gamma[3:9], beta[3:9] = 1.5, 0.25
    clear_of_zero(case, x, gamma, beta, "center")
    stats = shape[0] * channels

    def run() -> tuple:
        y, m, r = poisoned(shape, dtype), poisoned((stats,), F32), poisoned((stats,), F32)
        library.forward(x, gamma, beta, y, m, r, epsilon=EPSILON, **kwargs)()
        dx, dgamma = poisoned(shape, dtype), poisoned((channels,), F32)
        dbeta = poisoned((channels,), F32)
        library.backward(dy, x, gamma, m, r, dx, dgamma, dbeta, beta=beta, **kwargs)()
        return y, dx, dgamma, dbeta

    dy = fresh(shape, dtype, misaligned=misaligned)
    at = [slice(None)] * len(shape)

    def channel(t: torch.Tensor, c: int) -> torch.Tensor:
        at[-1 if channels_last else 1] = c
        return t[tuple(at)]

    clean = run()
    gamma[3] = math.nan
    channel(x, 4)[1].view(-1)[5] = math.nan
    beta[5] = -math.inf
    beta[6] = math.inf
    gamma[7] = beta[7] = 0
    beta[8] = math.nan
    y, dx, dgamma, dbeta = run()
    d = dy.double()
    others = tuple(a for a in range(len(shape)) if a != (len(shape) - 1 if channels_last else 1))
    sums, sizes = d.sum(others), d.abs().sum(others)

    def near(c: int, factor: float) -> bool:
        # A pass of its own rounds every product to dy's type.
        bound = (2.0**-20 + (ULP[dtype] if rounds(slope) else 0.0)) * float(sizes[c])
        return abs(float(dbeta[c]) - factor * float(sums[c])) <= bound

    for t, other in ((y, clean[0]), (dx, clean[1])):
        for c in (0, 1, 2, 9, channels - 1):
            assert torch.equal(channel(t, c), channel(other, c))
        assert bool(channel(t, 3).isnan().all())
        assert bool(channel(t, 4)[1].isnan().all()) and torch.equal(
            channel(t, 4)[0], channel(other, 4)[0]
        )
    assert bool(dgamma[4].isnan()) and near(3, slope)
    expected = 0.0 if slope == 0 else -slope * math.inf
    assert bool((channel(y, 5) == expected).all()) and near(5, slope)
    assert bool((channel(y, 6) == math.inf).all()) and near(6, 1.0)
    assert bool((channel(y, 7) == 0).all()) and near(7, slope)  # t = 0 is not above 0
    assert bool((channel(dx, 7) == 0).all())
    assert bool(channel(y, 8).isnan().all()) and near(8, slope)
    for c in (5, 6, 8):
        assert bool(channel(dx, c).isfinite().all())


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 2.0])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("shape", [(2, 12, 40), (2, 12, 5000)], ids=str)
@pytest.mark.parametrize("misaligned", [False, True])
def test_activation_of_extremes(shape, dtype, slope, misaligned):
    run_extremes(shape, False, dtype, slope, misaligned)


@pytest.mark.parametrize("case", [((7, 100), [-1]), ((2, 700, 32), 32, True)], ids=str)
def test_a_slope_of_one_is_no_activation(case):
    """The same bits, and no workspace for one."""
    torch.manual_seed(8)
    kwargs, split, reduced, params = views(case, torch.empty(case[0], device="cuda"))
    count = math.prod(split[a] for a in params)
    stats = math.prod(n for a, n in enumerate(split) if a not in [r % len(split) for r in reduced])
    x, dy = fresh(case[0], F16), fresh(case[0], F16)
    gamma, beta = fresh((count,), F32), fresh((count,), F32)
    results = []
    for one in ({}, {"negative_slope": 1.0}):
        y, m, r = poisoned(case[0], F16), poisoned((stats,), F32), poisoned((stats,), F32)
        library.forward(x, gamma, beta, y, m, r, **one, **kwargs)()
        dx, dgamma = poisoned(case[0], F16), poisoned((count,), F32)
        dbeta = poisoned((count,), F32)
        call = library.backward(
            dy, x, gamma, m, r, dx, dgamma, dbeta, beta=beta if one else None, **one, **kwargs
        )
        call()
        results.append((y, dx, dgamma, dbeta, torch.tensor(call.workspace.numel())))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
