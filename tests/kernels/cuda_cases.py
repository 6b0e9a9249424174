"""What the tests of the CUDA kernels share: norms on torch tensors, their float64 values, a run.

Needs a GPU, torch and build/libnv_norms_kernels.so (benchmarks/kernels/build.sh); a test file that
imports this is skipped without. NV_NORMS_SMALL=1 leaves out large sizes, for compute-sanitizer.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
import library  # noqa: E402
import random_cases  # noqa: E402, F401

if not Path(os.environ.get("NV_NORMS_KERNELS", str(library.DEFAULT))).exists():
    pytest.skip("build/libnv_norms_kernels.so is not built", allow_module_level=True)

SMALL = os.environ.get("NV_NORMS_SMALL") == "1"
EPSILON = 1e-3
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ULP = {F16: 2.0**-10, BF16: 2.0**-7, F32: 2.0**-23, F64: 2.0**-52}


def views(case: tuple, x: torch.Tensor) -> tuple:
    """The kernel's keyword arguments, the shape to reduce in, its reduced and parameter axes."""
    if len(case) == 2 or isinstance(case[1], list):
        shape, axis, *rest = case
        axes = tuple(sorted(a % len(shape) for a in axis))
        if rest == ["per sample"]:
            return {"axis": axis, "per_sample": True}, shape, axes, (0, *axes)
        assert not rest
        return {"axis": axis}, shape, axes, axes
    shape, groups, last, *rest = case
    channel = len(shape) - 1 if last else 1
    split = (*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
    reduced = tuple(a for a in range(1, len(split)) if a != channel)
    kwargs = {"groups": groups, "channels_last": last}
    if rest == ["per sample"]:
        return {**kwargs, "per_sample": True}, split, reduced, (0, channel, channel + 1)
    assert not rest
    return kwargs, split, reduced, (channel, channel + 1)


SLOPES = [0.0, 0.01, 0.3, -0.5, 2.0, "silu"]


def attributes_of(slope: float | str) -> dict[str, float | bool]:
    """What the harness calls a leaky relu of this slope, or "silu"."""
    return {"silu": True} if slope == "silu" else {"negative_slope": slope}


def activate(t: torch.Tensor, slope: float | str) -> torch.Tensor:
    """t where it is positive, else slope * t; 0 times minus infinity is 0; NaN stays. Or silu."""
    if slope == "silu":
        return t * t.sigmoid()
    below = slope * t if slope != 0 else torch.where(t.isnan(), t, torch.zeros_like(t))
    return torch.where(t > 0, t, below)


def derive(t: torch.Tensor, d: torch.Tensor, slope: float | str) -> torch.Tensor:
    """d times the derivative at t."""
    if slope == "silu":
        return d * t.sigmoid() * (1 + t * (1 - t.sigmoid()))
    return torch.where(t > 0, d, slope * d)


def derive_size(t, d, slope: float | str, t_size) -> torch.Tensor:
    """What rounding acts on in derive(); t_size: what it acts on in t."""
    value = derive(t, d, slope).abs()
    if slope != "silu":
        return value
    s = t.sigmoid()
    return value + (d * s * (1 - s) * (2 + t * (1 - 2 * s))).abs() * t_size


def rounds(slope: float | str) -> bool:
    """Whether a number in few bits times the derivative may need more of them."""
    return slope == "silu" or (slope != 0 and math.frexp(abs(slope))[0] != 0.5)


def clear_of_zero(case: tuple, x, gamma, beta, formula: str) -> None:
    """Moves elements of x whose sign of t = xhat * gamma + beta is within rounding, in place.

    There the activation has no derivative, and one element of the other sign would be seen in all
    gradients. Within rounding is 2^-16 of the two summands, and what the mean loses in float32.
    """
    _, shape, reduced, params = views(case, x)
    if math.prod(shape[a] for a in reduced) == 1:
        return  # xhat is exactly 0
    over = [n if a in params else 1 for a, n in enumerate(shape)]
    g = 1.0 if gamma is None else gamma.double().reshape(over)
    b = torch.zeros((), device="cuda", dtype=F64) if beta is None else beta.double().reshape(over)
    for _ in range(60):
        x64 = x.double().reshape(shape)
        mean = x64.mean(reduced, keepdim=True)
        mean = mean + (x64 - mean).mean(reduced, keepdim=True)
        shift = torch.zeros_like(mean) if formula == "rms" else mean
        rstd = 1 / torch.sqrt(((x64 - shift) ** 2).mean(reduced, keepdim=True) + EPSILON)
        source = x64 - mean if formula == "center" else x64
        part = source * (rstd * g)
        bound = 2.0**-16 * (part.abs() + b.abs())
        if formula == "center":
            bound = bound + 2.0**-21 * (mean * rstd * g).abs()
        near = ((part + b).abs() <= bound).reshape(x.shape)
        if not bool(near.any()):
            return
        x += near.to(x.dtype)
    raise AssertionError("no inputs without an element at the activation's kink")


def reference(case: tuple, x, gamma, beta, dy, formula: str, slope: float | str = 1.0) -> dict:
    kwargs, shape, reduced, params = views(case, x)
    x64 = x.double().reshape(shape)
    over = [n if a in params else 1 for a, n in enumerate(shape)]
    g = torch.ones((), device="cuda", dtype=F64) if gamma is None else gamma.double().reshape(over)
    b = torch.zeros((), device="cuda", dtype=F64) if beta is None else beta.double().reshape(over)
    mean = x64.mean(reduced, keepdim=True)
    mean = mean + (x64 - mean).mean(reduced, keepdim=True)
    if formula == "rms":
        mean = torch.zeros_like(mean)
    centered = x64 - mean
    rstd = 1 / torch.sqrt((centered**2).mean(reduced, keepdim=True) + EPSILON)
    source = centered if formula == "center" else x64
    xhat = source * rstd
    d = dy.double().reshape(shape)
    t = xhat * g + b
    t_size = (xhat.abs() + (mean * rstd).abs()) * g.abs() + b.abs()
    d_size = derive_size(t, d, slope, t_size)
    if dy.dtype == F16:  # below, a number that is rounded to half is off by as much as there
        d_size = d_size.clamp(min=2.0**-14)
    d = derive(t, d, slope)
    w, w_size = d * g, d_size * g.abs()
    dx = w * rstd - rstd**3 * centered * (w * source).mean(reduced, keepdim=True)
    lost = centered.abs()
    if formula == "scale_only":  # what rounding the mean to float32 does to a centered x near 0
        lost = lost + mean.abs()
    size = w_size + lost * rstd * (w_size * xhat.abs()).mean(reduced, keepdim=True)
    size = size * rstd
    if formula == "center":
        dx = dx - (w * rstd).mean(reduced, keepdim=True)
        size = size + (w_size * rstd).mean(reduced, keepdim=True)
    others = tuple(a for a in range(len(shape)) if a not in params)
    count = math.prod(shape[a] for a in params)

    def sums(t: torch.Tensor) -> torch.Tensor:
        return (t.sum(others) if others else t).reshape(count)

    y_size = t.pow(2).mean().sqrt().expand(t.shape)
    y_size = y_size + t.abs() if slope == "silu" else max(1.0, abs(slope)) * y_size
    return {
        "y": (activate(t, slope), y_size),
        "mean": (mean, x64.abs().mean(reduced, keepdim=True)),
        "rstd": (rstd, rstd),
        "dx": (dx, size),
        "dgamma": (sums(d * xhat), sums(d_size * (xhat.abs() + 1))),
        "dbeta": (sums(d), sums(d_size)),
    }


def check(
    name: str, actual: torch.Tensor, expected: tuple, units: float, of_size: float = 0.0
) -> None:
    value, size = (t.reshape(actual.shape) for t in expected)
    unit = 2.0**-49 if actual.dtype == F64 else 2.0**-23
    bound = units * unit * (value.abs() + size) + ULP[actual.dtype] * value.abs() + 2.0**-24
    bound = bound + of_size * size
    error = ((actual.double() - value).abs() / bound).nan_to_num(nan=math.inf)
    worst = float(error.max()) if error.numel() else 0.0
    assert worst <= 1, f"{name}: {worst:.3g} times the error allowed"


def fresh(shape, dtype, mean=0.5, std=2.0, misaligned=0):
    """misaligned: by so many numbers (True: one)."""
    count, first = math.prod(shape), int(misaligned)
    storage = torch.empty(count + first, dtype=dtype, device="cuda")
    storage.normal_(mean, std)
    return storage[first:].view(shape)


def poisoned(shape, dtype):
    return torch.full(shape, math.nan, dtype=dtype, device="cuda")


def run_case(
    case, dtype=F32, dy_type=None, param_type=F32, out_type=None, formula="center", mean=0.5,
    misaligned=False, params=True, units=8.0, far=0.0, far_axis=-1, dx_type=None, slope=1.0,
    params_misaligned=None,
):  # fmt: skip
    """params_misaligned: gamma and beta, if not as the others."""
    torch.manual_seed(1234)
    if params_misaligned is None:
        params_misaligned = misaligned
    shape = case[0]
    stat_type = F64 if dtype == F64 else F32
    out_type, dy_type = out_type or dtype, dy_type or dtype
    dx_type = dx_type or out_type
    x = fresh(shape, dtype, mean=mean, misaligned=misaligned)
    x.narrow(far_axis, 0, min(8, shape[far_axis])).add_(far)
    dy = fresh(shape, dy_type, misaligned=misaligned)
    kwargs, split, reduced, param_axes = views(case, x)
    count = math.prod(split[a] for a in param_axes)
    gamma = fresh((count,), param_type, misaligned=params_misaligned) if params else None
    beta = fresh((count,), param_type, misaligned=params_misaligned) if params else None
    stats = math.prod(n for a, n in enumerate(split) if a not in [r % len(split) for r in reduced])
    # Where dy is multiplied in a pass of its own, that rounds to dy's type, as an op does.
    narrow = dy_type in (F16, BF16) or (dy_type == F32 and F64 in (dtype, param_type))
    of_size = ULP[dy_type] / 2 if rounds(slope) and slope != 1 and narrow else 0.0
    if slope != 1:
        kwargs = {**kwargs, **attributes_of(slope)}
    if slope not in (1, "silu"):
        clear_of_zero(case, x, gamma, beta, formula)
    forward = {"formula": formula, "epsilon": EPSILON, **kwargs}
    backward = {"formula": formula, "beta": beta, **kwargs}
    results = []
    for _ in range(2):
        y = poisoned(shape, out_type)
        m = None if formula == "rms" else poisoned((stats,), stat_type)
        r = poisoned((stats,), stat_type)
        call = library.forward(x, gamma, beta, y, m, r, **forward)
        call()
        dx, dgamma, dbeta = (
            poisoned(shape, dx_type),
            poisoned((count,), param_type),
            poisoned((count,), param_type),
        )
        grad = library.backward(dy, x, gamma, m, r, dx, dgamma, dbeta, **backward)
        grad()
        torch.cuda.synchronize()
        for c in (call, grad):
            assert bool((c.workspace[-16:] == 0x5A).all()), "written beyond the workspace"
        out = {"y": y, "rstd": r, "dx": dx, "dgamma": dgamma, "dbeta": dbeta}
        results.append(out if m is None else {**out, "mean": m})
    unread = poisoned(shape, out_type)
    library.forward(x, gamma, beta, unread, None, None, **forward)()
    assert torch.equal(unread, results[0]["y"]), "other bits where nobody reads the statistics"
    expected = reference(case, x, gamma, beta, dy, formula, slope)
    if slope == 0:
        zero = expected["y"][0].reshape(shape) == 0
        assert bool((results[0]["y"][zero] == 0).all())
    gradients = ("dx", "dgamma", "dbeta")
    for name, value in results[0].items():
        narrow = dtype != F64 and value.dtype == F64
        extra = of_size if name in gradients else 0.0
        if name == "y" and slope == "silu" and out_type in (F16, BF16):
            extra = ULP[out_type] / 2  # in a pass of its own, of a t in y's type
        check(name, value.float() if narrow else value, expected[name], units, extra)
        again = results[1][name]
        assert torch.equal(value, again), f"{name}: other bits the second time"
    if not SMALL:  # each output alone
        for wanted in gradients:
            alone = poisoned(results[0][wanted].shape, results[0][wanted].dtype)
            outputs = [alone if name == wanted else None for name in gradients]
            library.backward(dy, x, gamma, m, r, *outputs, **backward)()
            check(
                wanted,
                alone.float() if dtype != F64 and alone.dtype == F64 else alone,
                expected[wanted],
                units,
                of_size,
            )


def kernels_of(call) -> str:
    """The names of the kernels that a call launches."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profiler.key_averages())


# Of norms over a middle axis.
AXIS_SETTINGS = [
    {"misaligned": True}, {"mean": 1e4}, {"mean": 1e6}, {"far": 1000.0}, {"params": False},
    {"formula": "rms"}, {"formula": "scale_only"}, {"param_type": F16}, {"param_type": BF16},
]  # fmt: skip


def within(settings: dict, dtype) -> dict:
    """The settings, with a mean that the type has."""
    return {"mean": 3e4} if dtype == F16 and settings.get("mean") == 1e6 else settings


def run_mixed(case, other, **kwargs):
    """As mixed precision has it: x and dx in float32, y and dy in 16 bits."""
    run_case(case, F32, dy_type=other, out_type=other, dx_type=F32, **kwargs)
