"""Instance and group norm whose gamma and beta are each sample's own, [N, C], on torch tensors.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh). Expected values:
float64 from the formulas, as in cuda_cases.py, and NumPy, sample by sample. NV_NORMS_SMALL=1 leaves
out what compute-sanitizer takes long for.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_cases import (
    BF16,
    EPSILON,
    F16,
    F32,
    F64,
    SLOPES,
    SMALL,
    attributes_of,
    check,
    kernels_of,
    library,
    run_case,
    run_mixed,
    torch,
)

import oracle


def own(shape: tuple[int, ...], groups: int, last: bool = True) -> tuple:
    """A case of cuda_cases.py."""
    return (shape, groups, last, "per sample")


# Samples that a block holds: several at once, one, some groups of one; groups that end within
# vectors, odd channels
HELD = [
    own((5, 17, 64), 8), own((40, 9, 5), 5), own((33, 4, 12), 3), own((21, 2, 16), 4),
    own((40, 3, 16), 1), own((7, 7, 7, 256), 32), own((3, 100, 30), 6), own((3, 1024, 16), 16),
    own((9, 33, 7), 1), own((2, 14, 14, 640), 32), own((31, 49, 320), 320),
]  # fmt: skip
# Strips on the chip: one block to a strip, several; several rows as one; a single sample
RESIDENT = [
    own((2, 3001, 64), 64), own((3, 5000, 24), 3), own((2, 3000, 40), 1), own((2, 2048, 3), 3),
    own((5, 4000, 6), 2), own((11, 1500, 32), 8), own((1, 3001, 64), 8), own((4, 1153, 96), 96),
]  # fmt: skip
# What is left to the kernels that read x twice, and to those for any layout
OTHERS = [
    own((2, 3001, 5), 5), own((3, 4001, 33), 11), own((40, 1999, 7), 7), own((2, 9, 4096), 1),
    own((3, 70, 2100), 3), own((2, 5001, 1), 1), own((3, 40, 1030), 2),
]  # fmt: skip
FIRST = [
    own((3, 8, 49), 8, False), own((5, 32, 100), 4, False), own((2, 64, 33, 33), 1, False),
    own((40, 6, 7), 3, False), own((2, 12, 4096), 4, False), own((2, 16, 70000), 16, False),
    own((2, 6, 50001), 2, False), own((9, 20), 5, False), own((37, 64), 8), own((13, 24), 24),
    own((11, 30), 10), own((19, 2400), 3), own((7, 2048), 1), own((1, 32, 500), 4, False),
    own((17, 5, 1001), 5, False), own((3, 1, 4000), 1, False),
]  # fmt: skip
ALL = HELD + RESIDENT + OTHERS + FIRST
# On a chip of two multiprocessors these are much larger than it.
STREAMED = [own((9, 4097, 64), 64), own((2, 30001, 64), 8), own((2, 20001, 32), 32)]
# Forward the first two are piped and the last is streamed, in the gradient the last two are
LARGE = [own((8, 40001, 256), 256), own((4, 300001, 64), 8), own((2, 1500001, 32), 32)]
SOME = [HELD[0], HELD[1], RESIDENT[1], RESIDENT[3], OTHERS[0], OTHERS[3], FIRST[1], FIRST[8]]
SETTINGS = [
    {"misaligned": True}, {"mean": 1e4}, {"far": 1000.0}, {"params": False}, {"formula": "rms"},
    {"formula": "scale_only"}, {"param_type": F16}, {"param_type": BF16},
    {"dtype": F16, "misaligned": True}, {"dtype": BF16, "out_type": F32, "units": 16.0},
    {"slope": 0.1, "misaligned": True}, {"slope": "silu", "formula": "scale_only"},
    {"slope": 0.3, "dtype": F16, "param_type": F16}, {"slope": 0.0, "params": False},
]  # fmt: skip
large = pytest.mark.skipif(SMALL, reason="large")


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_every_cut(case, dtype):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("slope", [1.0, 0.3])
def test_mixed_precision_in_every_cut(case, slope):
    run_mixed(case, F16, slope=slope)


@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16] if SMALL else [F32, F16, BF16, F64], ids=str)
@pytest.mark.parametrize("slope", [0.0, "silu"])
def test_activation_in_every_cut(case, dtype, slope):
    run_case(case, dtype, param_type=F64 if dtype == F64 else F32, slope=slope)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("slope", SLOPES)
def test_every_slope(case, slope):
    run_case(case, slope=slope)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_other_settings(case, settings):
    run_case(case, **settings)


@pytest.mark.parametrize("case", STREAMED, ids=str)
@pytest.mark.parametrize("settings", [
    {}, {"dtype": BF16}, {"slope": 0.3}, {"slope": "silu", "dtype": F16}, {"misaligned": True},
    {"params": False}, {"dtype": F64, "param_type": F64},
], ids=str)  # fmt: skip
def test_on_a_small_chip(case, settings, monkeypatch):
    monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", "2")
    run_case(case, **settings)


@large
@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize(
    "settings", [{}, {"dtype": BF16}, {"slope": 0.3}, {"misaligned": True}], ids=str
)
def test_beyond_the_chip(case, settings):
    run_case(case, **settings)


def calls_of(case: tuple, dtype: torch.dtype = F32) -> tuple:
    """Of the forward pass, and of the gradient."""
    shape, groups, last, _ = case
    channels = shape[-1 if last else 1]
    x, dy, y, dx = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
    gamma, beta, dgamma, dbeta = (torch.randn(shape[0], channels, device="cuda") for _ in range(4))
    mean, rstd = (torch.ones(shape[0] * groups, device="cuda") for _ in range(2))
    kwargs = {"groups": groups, "channels_last": last, "per_sample": True}
    return (
        library.forward(x, gamma, beta, y, mean, rstd, **kwargs),
        library.backward(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, **kwargs),
    )


@large
@pytest.mark.parametrize("case, chip, forward, backward", [
    (HELD[0], None, "HeldColumnsKernel", "HeldColumnsKernel"),
    (HELD[1], None, "HeldColumnsKernel", "HeldColumnsKernel"),
    (RESIDENT[0], None, "ForwardResidentKernel", "BackwardResidentKernel"),
    (RESIDENT[3], None, "ForwardResidentKernel", "BackwardResidentKernel"),
    (OTHERS[1], None, "MomentsKernel", "SumsKernel"),
    (OTHERS[3], None, "ForwardKernel", "BackwardKernel"),
    (STREAMED[2], "2", "ForwardStreamKernel", "BackwardStreamKernel"),
    (LARGE[0], None, "ForwardPipeKernel", "BackwardResidentKernel"),
    (LARGE[1], None, "ForwardPipeKernel", "BackwardStreamKernel"),
], ids=str)  # fmt: skip
def test_these_kernels_are_reached(case, chip, forward, backward, monkeypatch):
    """So that the tests above test what they say."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("some need compute capability 9.0")
    if chip:
        monkeypatch.setenv("NV_NORMS_MULTIPROCESSORS", chip)
    for call, kernel in zip(calls_of(case), (forward, backward), strict=True):
        names = kernels_of(call)
        if not names:
            pytest.skip("the profiler sees no kernels")
        assert kernel in names


@pytest.mark.parametrize("case", [*SOME, RESIDENT[5], FIRST[3]], ids=str)
@pytest.mark.parametrize("which", ["both", "gamma", "beta"])
@pytest.mark.parametrize("slope", [1.0, 0.25])
def test_numpy_sample_by_sample(case, which, slope):
    """Each sample alone, with parameters that are shared as far as the oracle knows."""
    seed = 20261128
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    shape, groups, last, _ = case
    channel = len(shape) - 1 if last else 1
    channels = shape[channel]
    x = rng.normal(0.5, 2.0, shape).astype(np.float32)
    dy = rng.normal(size=shape).astype(np.float32)
    gamma, beta = (rng.normal(size=(shape[0], channels)).astype(np.float32) for _ in range(2))
    gamma = None if which == "beta" else gamma + np.sign(gamma)
    beta = None if which == "gamma" else beta
    split = (1, *shape[1:channel], groups, channels // groups, *shape[channel + 1 :])
    over = tuple(a for a in range(1, len(split)) if a != channel)
    expected = {name: [] for name in ("y", "dx", "dgamma", "dbeta")}
    for n in range(shape[0]):
        one, d = x[n].reshape(split).astype(np.float64), dy[n].reshape(split).astype(np.float64)
        g = np.ones(channels) if gamma is None else gamma[n]
        b = np.zeros(channels) if beta is None else beta[n]
        for _ in range(20):  # no t whose sign its rounding decides
            xhat = oracle.normalize(one, over, EPSILON, True).y
            t = oracle.affine(xhat, g, b, (channel, channel + 1))
            near = np.abs(t) < 1e-5
            if slope == 1 or one[0].size == groups or not near.any():
                break
            one = (one + 0.25 * near).astype(np.float32).astype(np.float64)
        else:
            raise AssertionError("no inputs without an element at the activation's kink")
        x[n] = one.reshape(shape[1:])
        d = np.where(t > 0, d, slope * d)
        gradient = oracle.backward(d, one, g, over, (channel, channel + 1), EPSILON)
        expected["y"].append(np.where(t > 0, t, slope * t))
        expected["dx"].append(gradient.dx)
        expected["dgamma"].append(gradient.dgamma)
        expected["dbeta"].append(gradient.dbeta)

    def tensor(values: np.ndarray | None) -> torch.Tensor | None:
        return None if values is None else torch.from_numpy(values).cuda()

    x_, dy_, gamma_, beta_ = (tensor(t) for t in (x, dy, gamma, beta))
    y, dx = (torch.full_like(x_, math.nan) for _ in range(2))
    dgamma, dbeta = (torch.full((shape[0], channels), math.nan, device="cuda") for _ in range(2))
    mean, rstd = (torch.full((shape[0] * groups,), math.nan, device="cuda") for _ in range(2))
    kwargs = {"groups": groups, "channels_last": last, "per_sample": True, **attributes_of(slope)}
    library.forward(x_, gamma_, beta_, y, mean, rstd, epsilon=EPSILON, **kwargs)()
    library.backward(dy_, x_, gamma_, mean, rstd, dx, dgamma, dbeta, beta=beta_, **kwargs)()
    inputs = x.size // (shape[0] * channels)
    actual = {"y": y, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    for name, got in actual.items():
        want = tensor(np.concatenate([np.asarray(e).reshape(1, -1) for e in expected[name]]))
        size = {"y": 1.0, "dx": max(1.0, float(rstd.max()))}.get(name, inputs**0.5)
        check(name, got, (want, torch.full_like(want, 4.0 * size)), 32.0)


@pytest.mark.parametrize("case", [*SOME, *HELD[2:5]], ids=str)
def test_nan_stays_in_its_sample(case):
    """Of gamma, and of dy: other samples' outputs have the bits that they have without."""
    shape, groups, last, _ = case
    channels = shape[-1 if last else 1]
    kwargs = {"groups": groups, "channels_last": last, "per_sample": True}
    torch.manual_seed(20270119)
    x, dy = (torch.randn(shape, device="cuda") for _ in range(2))
    gamma, beta = (torch.randn(shape[0], channels, device="cuda") for _ in range(2))
    hit = shape[0] // 2

    def outputs() -> list[torch.Tensor]:
        y, dx = (torch.full_like(x, 7.0) for _ in range(2))
        mean, rstd = (torch.empty(shape[0] * groups, device="cuda") for _ in range(2))
        dgamma, dbeta = (torch.full_like(gamma, 7.0) for _ in range(2))
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
