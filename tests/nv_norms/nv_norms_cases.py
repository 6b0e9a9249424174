"""What the tests of nv_norms share: the functions beside their formulas, tolerances, devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import nv_norms
import oracle

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
EPSILON = 1e-3


@dataclasses.dataclass(frozen=True)
class Case:
    """One function with its arguments, and what the formulas say of it."""

    kind: str  # layer, rms, instance, group
    shape: tuple[int, ...]
    axis: tuple[int, ...] = (-1,)  # layer, rms
    data_format: str = "N...C"  # instance, group
    groups: int = 1

    def __str__(self) -> str:
        what = {
            "layer": self.axis,
            "rms": self.axis,
            "instance": self.data_format,
            "group": f"{self.groups} in {self.data_format}",
        }[self.kind]
        return f"{self.kind} {what} of {self.shape}".replace(", ", ",").replace(" ", "_")

    @property
    def channel_axis(self) -> int:
        return 1 if self.data_format[1] == "C" else len(self.shape) - 1

    @property
    def parameter_axes(self) -> tuple[int, ...]:
        if self.kind in ("layer", "rms"):
            return tuple(sorted(a % len(self.shape) for a in self.axis))
        return (self.channel_axis,)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[a] for a in self.parameter_axes)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "layer": {"axis": list(self.axis)},
            "rms": {"axis": list(self.axis)},
            "instance": {"data_format": self.data_format},
            "group": {"data_format": self.data_format, "groups": self.groups},
        }[self.kind]

    def call(self, x: Any, scale: Any, offset: Any, epsilon: float = EPSILON) -> Sequence[Any]:
        """y, mean (RMS: None) and inv_std of nv_norms."""
        functions: dict[str, Callable[..., Any]] = {
            "layer": nv_norms.fused_layer_norm,
            "rms": nv_norms.fused_rms_norm,
            "instance": nv_norms.fused_instance_norm,
            "group": nv_norms.fused_group_norm,
        }
        out = functions[self.kind](x, scale, offset, epsilon=epsilon, **self.attributes)
        return out if len(out) == 3 else (out[0], None, out[1])

    def forward(self, x: Any, scale: Any, offset: Any, epsilon: float = EPSILON) -> oracle.Forward:
        """The same in float64; mean and rstd flat, or [N, C] or [N, groups]."""
        if self.kind == "layer":
            y, mean, rstd = oracle.layer_norm(x, scale, offset, self.axis, epsilon)
        elif self.kind == "rms":
            y, mean, rstd = oracle.rms_norm(x, scale, offset, self.axis, epsilon)
        elif self.kind == "instance":
            y, mean, rstd = oracle.instance_norm(x, scale, offset, self.channel_axis, epsilon)
        else:
            y, mean, rstd = oracle.group_norm(
                x, scale, offset, self.groups, self.channel_axis, epsilon
            )
        shape = (-1,) if self.kind in ("layer", "rms") else (self.shape[0], -1)
        if 0 in self.shape:
            shape = (mean.size,) if self.kind in ("layer", "rms") else mean.squeeze().shape
        return oracle.Forward(y, mean.reshape(shape), rstd.reshape(shape))

    def backward(self, dy: Any, x: Any, scale: Any, epsilon: float = EPSILON) -> oracle.Backward:
        """dx, dscale, doffset in float64."""
        rank = len(self.shape)
        if self.kind in ("layer", "rms"):
            axes = self.axis
            mean = self.kind == "layer"
            return oracle.backward(dy, x, scale, axes, self.axis, epsilon, subtract_mean=mean)
        if self.kind == "instance":
            axes = tuple(a for a in range(1, rank) if a != self.channel_axis)
            return oracle.backward(dy, x, scale, axes, (self.channel_axis,), epsilon)
        return self._group_backward(dy, x, scale, epsilon)

    def _group_backward(self, dy: Any, x: Any, scale: Any, epsilon: float) -> oracle.Backward:
        """A group norm is a norm over all but (N, groups) of x with its channels split in two."""

        def split(value: Any) -> np.ndarray:
            last = np.moveaxis(np.asarray(value).astype(np.float64), self.channel_axis, -1)
            return last.reshape(*last.shape[:-1], self.groups, -1)

        rank = len(self.shape)
        axes = (*range(1, rank - 1), rank)
        dx, dscale, doffset = oracle.backward(
            split(dy), split(x), scale, axes, (rank - 1, rank), epsilon
        )
        last = np.moveaxis(np.empty(self.shape), self.channel_axis, -1).shape
        dx = np.moveaxis(dx.reshape(last), -1, self.channel_axis)
        return oracle.Backward(dx, dscale.reshape(-1), doffset.reshape(-1))

    def random(
        self, rng: np.random.Generator, dtype: str = "float32", parameters: str | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """x, scale, offset, dy; scale and offset of float64 for float64, else float32."""
        parameters = parameters or ("float64" if dtype == "float64" else "float32")
        x = rng.normal(0.5, 2.0, self.shape).astype(DTYPES[dtype])
        scale = rng.normal(1.0, 0.3, self.parameter_shape).astype(DTYPES[parameters])
        offset = rng.normal(0.0, 0.3, self.parameter_shape).astype(DTYPES[parameters])
        return x, scale, offset, rng.normal(0.0, 1.0, self.shape).astype(DTYPES[dtype])


CASES = [
    Case("layer", (5, 7)),
    Case("layer", (2, 3, 16), (-2, -1)),
    Case("layer", (3, 4, 5, 6), (1, 2, 3)),
    Case("layer", (2, 6, 5), (1,)),
    Case("layer", (2, 3, 4, 5), (3, -3)),
    Case("rms", (5, 33)),
    Case("rms", (2, 3, 4, 5), (-1, 1)),
    Case("instance", (2, 4, 5, 6), data_format="NHWC"),
    Case("instance", (2, 6, 4, 5), data_format="NCHW"),
    Case("instance", (2, 3, 4, 5, 6), data_format="NDHWC"),
    Case("instance", (2, 6, 3, 4, 5), data_format="NCDHW"),
    Case("instance", (2, 9, 6), data_format="N...C"),
    Case("instance", (2, 6, 9), data_format="NC..."),
    Case("group", (2, 4, 5, 6), data_format="NHWC", groups=3),
    Case("group", (2, 6, 4, 5), data_format="NCHW", groups=2),
    Case("group", (2, 3, 4, 5, 8), data_format="NDHWC", groups=1),
    Case("group", (3, 24), data_format="NC...", groups=4),
]


def unit(dtype: str) -> float:
    """Half a unit in the last place of 1."""
    return float(ml_dtypes.finfo(DTYPES[dtype]).eps) / 2


def assert_close(
    got: Any, expected: np.ndarray, dtype: str, what: str, units: float = 8, size: float = 0
) -> None:
    """Within `units` roundings to `dtype`.

    y takes six of them (mean, inv_std, x - mean, and each step to y), of values up to y + |offset|
    in size; dx takes some fifteen (w = dy * gamma, the five of xhat, w * xhat, two means,
    xhat * mean, two differences, rstd and its product); a sum of n terms takes more. size: of the
    terms, where these nearly cancel.
    """
    got = np.asarray(got).astype(np.float64)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if not expected.size:
        return
    scale = np.maximum(np.abs(expected), max(np.sqrt(np.mean(expected**2)), size))
    worst = np.max(np.abs(got - expected) / np.maximum(scale, 1e-30))
    limit = units * unit(dtype) * (2 if dtype == "float64" else 1)  # the formula rounds as often
    assert worst <= limit, f"{what}: off by {worst:.3g} of its size, allowed {limit:.3g} ({dtype})"
