"""Instance and group norms of many kinds, with an activation behind them or none: the ops' outputs
and gradients against the formulas in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import formulas
import numpy as np
from support import DTYPES, forward, gradient, random, snake

EPSILON = 1e-3
FLOAT32 = DTYPES["float32"]


class Norm(NamedTuple):
    """One op on x of a shape, and what it should give."""

    shape: tuple[int, ...]
    data_format: str
    groups: int | None  # None: an instance norm
    per_sample: bool = False  # parameters of each sample

    def __str__(self) -> str:
        name = f"{self.kind}-{self.data_format}-{self.groups}-{'x'.join(map(str, self.shape))}"
        return name + "-per_sample" * self.per_sample

    @property
    def kind(self) -> str:
        return "InstanceNorm" if self.groups is None else "GroupNorm"

    @property
    def attributes(self) -> dict[str, Any]:
        groups = {} if self.groups is None else {"groups": self.groups}
        per_sample = {"per_sample": True} if self.per_sample else {}
        return {"data_format": self.data_format, **groups, **per_sample}

    @property
    def channels(self) -> int:
        return self.shape[-1 if self.data_format == "N...C" else 1]

    @property
    def params(self) -> tuple[int, ...]:
        """The shape of the parameters' gradients."""
        return (self.shape[0], self.channels) if self.per_sample else (self.channels,)

    @property
    def statistics(self) -> tuple[int, ...]:
        return (self.shape[0], self.groups or self.channels)

    @property
    def formula(self) -> str:
        return "center"

    def view(self, x: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
        """x with its channels split, the reduced axes and those of the parameters."""
        last = self.data_format == "N...C"
        view, reduced, params = formulas.grouped(x, self.groups or self.channels, last)
        return view, reduced, [0, *params] if self.per_sample else params

    def call(self, ops: Any, x: Any, scale: list[Any], offset: list[Any], **rest: Any) -> Any:
        """y, as a tensor that has a gradient."""
        op = getattr(ops, f"fused_{snake(self.kind)}")
        attributes = {"out_type": x.dtype, **self.attributes, **rest}
        return op(x=x, scale=scale, offset=offset, **attributes)[0]


NORMS = [
    Norm((2, 5, 3), "N...C", None),
    Norm((3, 9, 9, 33), "N...C", None),
    Norm((2, 40, 40, 64), "N...C", None),
    Norm((1, 7, 1), "N...C", None),
    Norm((4, 10), "N...C", None),
    Norm((2, 3, 1025), "NC...", None),
    Norm((2, 64, 32, 32), "NC...", None),
    Norm((3, 4, 2, 3, 5), "NC...", None),
    Norm((2, 9, 11, 6), "N...C", 3),
    Norm((2, 30, 64), "N...C", 8),
    Norm((2, 6, 9, 11), "NC...", 3),
    Norm((3, 16, 64), "NC...", 1),
    Norm((3, 9, 9, 33), "N...C", None, True),
    Norm((2, 64, 32, 32), "NC...", None, True),
    Norm((5, 30, 64), "N...C", 8, True),
    Norm((2, 6, 9, 11), "NC...", 3, True),
    Norm((4, 10), "N...C", 5, True),
]
FEW = [NORMS[1], NORMS[5], NORMS[8], NORMS[10], NORMS[12], NORMS[15]]


def params_of(norm: Norm, dtype: np.dtype, scaled: bool, shifted: bool) -> list[Any]:
    scale = random(2, norm.params, dtype) if scaled else None
    return [scale, random(3, norm.params, dtype) if shifted else None]


def check_forward(
    ops: Any,
    norm: Norm,
    slope: formulas.Slope,
    device: str,
    x: np.ndarray,
    scale: np.ndarray | None,
    offset: np.ndarray | None,
    out_type: Any = None,
    ulps: float = 1.0,
) -> None:
    y, mean, rstd = forward(
        ops, norm.kind, x, scale, offset, device, out_type,
        **formulas.attributes_of(slope), **norm.attributes,
    )  # fmt: skip
    view, reduced, params = norm.view(x)
    t, *statistics = formulas.norm(view, scale, offset, reduced, params, EPSILON)
    expected = formulas.activated(t, slope).reshape(norm.shape)
    formulas.assert_close(y, expected, 8, "y", np.sqrt(np.mean(t**2)), ulps)
    for actual, e in zip((mean, rstd), statistics, strict=True):
        formulas.assert_close(actual, e.reshape(actual.shape), 8, "statistics")


def check_gradient(
    ops: Any,
    norm: Norm,
    slope: formulas.Slope,
    device: str,
    x: np.ndarray,
    scale: np.ndarray | None,
    offset: np.ndarray | None,
    dy_type: np.dtype | None = None,
    **rest: Any,
) -> list[Any]:
    view, reduced, params = norm.view(x)
    meant = (view, scale, offset, reduced, params, EPSILON)
    dy = random(4, x.shape, dy_type or x.dtype)
    dy[formulas.near_zero(*meant).reshape(x.shape)] = 0
    mean, rstd = (s.reshape(x.shape[0], -1) for s in formulas.statistics(view, reduced))
    actual = gradient(
        ops, norm.kind, dy, x, scale, mean, rstd, device,
        offset=offset, **formulas.attributes_of(slope), **norm.attributes, **rest,
    )  # fmt: skip
    what = (dy.reshape(view.shape), formulas.norm(*meant)[0], slope)
    arguments = (view, scale, reduced, params, EPSILON)
    expected = formulas.norm_gradient(formulas.passed(*what), *arguments)
    passed_size = formulas.passed_size(*what, formulas.t_sizes(*meant))
    sizes = formulas.gradient_sizes(passed_size, *arguments)
    for name, a, e, size in zip(("dx", "dscale", "doffset"), actual, expected, sizes, strict=True):
        if a is None:
            continue
        if a.dtype == np.float64 and rstd.dtype == np.float32:
            a = a.astype(np.float32)  # no closer than mean and rstd
        assert a.shape == (x.shape if name == "dx" else norm.params)
        formulas.assert_close(a, e.reshape(a.shape), 4, name, size.reshape(a.shape))
    return actual


def tape_inputs(norm: Norm) -> tuple[list[np.ndarray], np.ndarray]:
    """x, gamma, beta and weights of a loss; no element is close to where it has no gradient."""
    x, weight = random(51, norm.shape, FLOAT32), random(54, norm.shape, FLOAT32)
    gamma, beta = (random(seed, norm.params, FLOAT32) for seed in (52, 53))
    view, reduced, params = norm.view(x)
    t = formulas.norm(view, gamma, beta, reduced, params, EPSILON)[0]
    assert np.abs(t).min() > 1e-3, "choose another seed"
    return [x, gamma, beta], weight


TAPES = [
    Norm((2, 4, 3, 5), "N...C", None),
    Norm((2, 5, 3, 4), "NC...", None),
    Norm((2, 4, 3, 6), "N...C", 3),
    Norm((2, 6, 3, 4), "NC...", 2),
    Norm((2, 4, 3, 5), "N...C", None, True),
    Norm((2, 6, 3, 5), "NC...", 2, True),
]
