"""Gradients of columns much larger than the chip: kernels that stream x and dy twice.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). The harness makes
the chip small (NV_NORMS_MULTIPROCESSORS), so small tensors are much larger than it. Expected
values: float64 from the formulas, as in cuda_cases.py, and NumPy. NV_NORMS_SMALL=1 leaves out what
compute-sanitizer takes long for.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import test_cuda_columns
from cuda_cases import (
    BF16,
    F16,
    F32,
    F64,
    SMALL,
    attributes_of,
    check,
    kernels_of,
    library,
    run_case,
    run_mixed,
    torch,
)

if torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("these kernels need compute capability 9.0", allow_module_level=True)
KERNEL, FORWARD_KERNEL = "BackwardStreamKernel", "ForwardStreamKernel"


@pytest.fixture(autouse=True)
def small_chip(monkeypatch):
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "2")


# One strip to a row and several, one unit and many, a last item of one row, rows of one vector;
# instance norm, groups within a strip, one group
CASES = [
    ((2, 20000, 32), 32, True), ((9, 4097, 64), 64, True), ((2, 30001, 64), 8, True),
    ((1, 7000, 256), 256, True), ((3, 50, 50, 50, 8), 8, True), ((2, 200003, 4), 4, True),
    ((1, 70001, 32), 1, True), ((12, 2049, 128), 64, True),
]  # fmt: skip


def gradient(x, dy, groups=None, gamma=None, beta=None, slope=1.0):
    """A call of the gradient at mean 0.25 and rstd 0.75, and its dx, dgamma and dbeta."""
    channels = x.shape[-1]
    groups = groups or channels
    mean = torch.full((x.shape[0] * groups,), 0.25, device="cuda")
    rstd = torch.full_like(mean, 0.75)
    dx = torch.full_like(x, math.nan)
    dgamma, dbeta = (torch.full((channels,), math.nan, device="cuda") for _ in range(2))
    kwargs = {} if slope == 1.0 else {**attributes_of(slope), "beta": beta}
    call = library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, groups=groups, **kwargs)
    return call, dx, dgamma, dbeta


@pytest.mark.skipif(SMALL, reason="a profiler")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_these_sizes_are_streamed(case, monkeypatch):
    """So that the other tests test what they say; a chip of usual size keeps them on it."""
    shape, groups, _ = case
    x = torch.randn(shape, device="cuda")
    call = gradient(x, torch.randn_like(x), groups)[0]
    names = kernels_of(call)
    if not names:
        pytest.skip("the profiler sees no kernels")
    assert KERNEL in names
    monkeypatch.delenv("NV_NORMS_MULTIPROCESSORS")
    call = gradient(x, torch.randn_like(x), groups)[0]
    assert KERNEL not in kernels_of(call)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("other", [F16, BF16], ids=str)
def test_mixed_precision_in_every_cut(case, other):
    run_mixed(case, other)


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=str)
@pytest.mark.parametrize("settings", [
    {"misaligned": True}, {"mean": 1e6}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16}, {"param_type": BF16}, {"param_type": F64},
    {"dx_type": BF16}, {"dtype": F64, "param_type": F64},
], ids=str)  # fmt: skip
def test_settings(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("slope", [0.0, 0.01, -0.5, 2.0, "silu"])
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3]], ids=str)
@pytest.mark.parametrize(
    "types", [(F32, F32), (F16, F16), (BF16, BF16), (F32, F16), (F32, BF16)], ids=str
)
def test_an_activation_inside(case, types, slope):
    """dy counts times the derivative at xhat * gamma + beta; against NumPy."""
    shape, groups, _ = case
    rng = np.random.default_rng(20261122)
    channels = shape[-1]

    def tensor(dtype, *dims, scale=1.0):
        values = torch.from_numpy(rng.normal(0.25, scale, dims).astype(np.float32))
        return values.cuda().to(dtype)

    x, dy = tensor(types[0], *shape, scale=1.5), tensor(types[1], *shape)
    beta = tensor(F32, channels)
    gamma = tensor(F32, channels)
    gamma += 0.5 * gamma.sign()
    split = (shape[0], -1, groups, channels // groups)
    x64, d = (t.double().cpu().numpy().reshape(split) for t in (x, dy))
    mean = x64.mean((1, 3), keepdims=True).astype(np.float32).astype(np.float64)
    rstd = 1 / np.sqrt(((x64 - mean) ** 2).mean((1, 3), keepdims=True) + 1e-3)
    rstd = rstd.astype(np.float32).astype(np.float64)
    g, b = (t.double().cpu().numpy().reshape(groups, -1) for t in (gamma, beta))
    # No x whose sign behind the norm its rounding decides.
    x64 = x64 + 0.5 * (np.abs((x64 - mean) * rstd * g + b) < 1e-3)
    x = torch.from_numpy(x64.reshape(shape)).cuda().to(types[0])
    x64 = x.double().cpu().numpy().reshape(split)
    t = (x64 - mean) * rstd * g + b
    assert (np.abs(t) > 1e-5).all() and (t < 0).any() and (t > 0).any()
    size = np.abs(d) / 2 * (1 + np.abs(t))  # silu passes on the rounding of t
    if slope == "silu":
        sigmoid = 1 / (1 + np.exp(-t))
        d = d * sigmoid * (1 + t * (1 - sigmoid))
        size = np.abs(d) + size
    else:
        d = np.where(t > 0, d, slope * d)
        size = np.abs(d)
    w, w_size = d * g, size * np.abs(g)
    axes = (1, 3)
    centered = x64 - x64.mean(axes, keepdims=True)
    xhat = centered * rstd
    parts = w, w.mean(axes, keepdims=True), xhat * (w * xhat).mean(axes, keepdims=True)
    dx_size = w_size + w_size.mean(axes, keepdims=True)
    dx_size = dx_size + np.abs(xhat) * (w_size * np.abs(xhat)).mean(axes, keepdims=True)
    expected = {
        "dx": (rstd * (parts[0] - parts[1] - parts[2]), rstd * dx_size),
        "dgamma": ((d * xhat).sum((0, 1)), (size * (np.abs(xhat) + 1)).sum((0, 1))),
        "dbeta": (d.sum((0, 1)), size.sum((0, 1))),
    }
    m, r = (torch.from_numpy(v.reshape(-1).astype(np.float32)).cuda() for v in (mean, rstd))
    dx = torch.full_like(x, math.nan)
    dgamma, dbeta = torch.full_like(gamma, math.nan), torch.full_like(gamma, math.nan)
    library.backward(
        dy,
        x,
        gamma,
        m,
        r,
        dx,
        dgamma,
        dbeta,
        groups=groups,
        beta=beta,
        **attributes_of(slope),
    )()
    for name, actual in (("dx", dx), ("dgamma", dgamma), ("dbeta", dbeta)):
        check(name, actual, tuple(torch.from_numpy(e).cuda() for e in expected[name]), 8)


@pytest.mark.parametrize("types", [(F32, F32), (F16, F16), (F32, BF16)], ids=str)
def test_nan_and_infinity_stay_in_their_channel(types):
    torch.manual_seed(5)
    x = torch.randn(3, 20000, 32, device="cuda").to(types[0])
    dy = torch.randn(3, 20000, 32, device="cuda").to(types[1])
    call, clean, *_ = gradient(x, dy)
    call()
    dy[1, 77, 5] = math.nan
    dy[2, 19999, 9] = math.inf
    call, hit, dgamma, dbeta = gradient(x, dy)
    call()
    bad = torch.zeros(3, 1, 32, dtype=torch.bool, device="cuda").expand_as(x).clone()
    bad[1, :, 5] = bad[2, :, 9] = True
    assert not bool(hit[bad].isfinite().any())
    assert torch.equal(hit[~bad], clean[~bad])
    channels = torch.arange(32, device="cuda")
    touched = (channels == 5) | (channels == 9)
    assert torch.equal(dbeta.isfinite(), ~touched) and torch.equal(dgamma.isfinite(), ~touched)


def test_the_same_bits_on_every_one_of_many_runs():
    """Steps are taken by whoever is free; sums are added up in one order all the same."""
    torch.manual_seed(6)
    x, dy = (torch.randn(5, 9000, 64, device="cuda") for _ in range(2))
    call, dx, dgamma, dbeta = gradient(x, dy)
    call()
    first = [t.clone() for t in (dx, dgamma, dbeta)]
    for _ in range(3 if SMALL else 100):
        for t in (dx, dgamma, dbeta):
            t.fill_(math.nan)
        call()
        for t, same in zip((dx, dgamma, dbeta), first, strict=True):
            assert torch.equal(t, same)


@pytest.mark.skipif(SMALL, reason="large")
@pytest.mark.parametrize(
    "case", [((2, 1000003, 32), 32, True), ((3, 300001, 64), 8, True)], ids=str
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_beyond_a_whole_chip(case, dtype, monkeypatch):
    monkeypatch.delenv("NV_NORMS_MULTIPROCESSORS")
    run_case(case, dtype)


@pytest.mark.skipif(SMALL, reason="large")
@pytest.mark.parametrize("shape, forward_kernel", [
    ((2, 2**25 + 5, 32), FORWARD_KERNEL),
    ((3, 2**24 + 5, 64), "ForwardPipeKernel"),
    ((1, 2**25 + 5, 64), "ForwardResidentKernel"),
], ids=str)  # fmt: skip
def test_more_than_two_to_the_31_elements(shape, forward_kernel, monkeypatch):
    """Of x, dy, y and dx each; some channels of every sample against float64."""
    monkeypatch.delenv("NV_NORMS_MULTIPROCESSORS")
    torch.manual_seed(11)
    x = torch.empty(shape, dtype=BF16, device="cuda").normal_(0.5, 2.0)
    dy = torch.empty_like(x).normal_(0.1, 1.0)
    channels = shape[-1]
    y, mean, rstd, call = test_cuda_columns.forward(x, channels)
    names = kernels_of(call)
    assert not names or forward_kernel in names  # the profiler may see none
    dx = torch.full_like(x, math.nan)
    dgamma, dbeta = (torch.full((channels,), math.nan, device="cuda") for _ in range(2))
    call = library.backward(dy, x, None, mean, rstd, dx, dgamma, dbeta, groups=channels)
    names = kernels_of(call)
    assert not names or KERNEL in names
    for channel in (0, 19, channels - 1):
        sums, sizes = [0.0, 0.0], [0.0, 0.0]
        for n in range(shape[0]):
            x64, d = (t[n, :, channel].double() for t in (x, dy))
            true_rstd = 1 / torch.sqrt(x64.var(correction=0) + 1e-3)
            xhat = (x64 - x64.mean()) * true_rstd
            torch.testing.assert_close(y[n, :, channel].double(), xhat, rtol=8e-3, atol=1e-5)
            expected = true_rstd * (d - d.mean() - xhat * (d * xhat).mean())
            torch.testing.assert_close(dx[n, :, channel].double(), expected, rtol=8e-3, atol=1e-5)
            for i, terms in enumerate((d * xhat, d)):
                sums[i], sizes[i] = sums[i] + terms.sum(), sizes[i] + terms.abs().sum()
        for got, want, size in zip((dgamma, dbeta), sums, sizes, strict=True):
            assert abs(got[channel].double() - want) <= 1e-6 * size


@pytest.mark.skipif(SMALL, reason="a profiler")
@pytest.mark.parametrize(
    "shape, dtype", [((2, 20001, 32), F32), ((2, 20001, 32), BF16), ((2, 30001, 64), BF16)], ids=str
)
def test_these_sizes_are_streamed_forward(shape, dtype):
    """So that the tests below and test_every_cut test what they say."""
    names = kernels_of(test_cuda_columns.forward(torch.randn(shape).cuda().to(dtype), shape[-1])[3])
    if not names:
        pytest.skip("the profiler sees no kernels")
    assert FORWARD_KERNEL in names


@pytest.mark.parametrize("far", [0, 10000, 20000], ids="row {}".format)
@pytest.mark.parametrize("value", [1e4, -3e5])
def test_one_row_far_from_the_others(far, value):
    test_cuda_columns.check_one_row_far(20001, far, value)


def test_zeros_around_a_far_mean():
    test_cuda_columns.check_zeros_around_a_far_mean(20001, 32)


def test_nan_and_infinity_stay_in_their_channel_forward():
    test_cuda_columns.check_nan_and_infinity(2, 20001)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_y_in_the_place_of_x(dtype):
    torch.manual_seed(8)
    x = torch.randn(2, 20001, 32, device="cuda").to(dtype)
    y, mean, rstd = test_cuda_columns.forward(x, 32)[:3]
    library.forward(x, None, None, x, mean, rstd, groups=32)()
    assert torch.equal(x, y)


def test_two_streams_at_once():
    """Blocks of one may be all that runs: those of the other must not wait for any that do not."""
    torch.manual_seed(7)
    calls = []
    for _ in range(4):
        x, dy = (torch.randn(2, 200000, 32, device="cuda") for _ in range(2))
        calls.append(gradient(x, dy))
    alone = []
    for call, *outputs in calls:
        call()
        alone.append([t.clone() for t in outputs])
        for t in outputs:
            t.fill_(math.nan)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in calls]
    for _ in range(2 if SMALL else 20):
        for stream, (call, *_) in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                call()
    torch.cuda.synchronize()
    for (_, *outputs), expected in zip(calls, alone, strict=True):
        for t, same in zip(outputs, expected, strict=True):
            assert torch.equal(t, same)
