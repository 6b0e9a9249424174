"""Random inputs and parameters, and the distance between two results."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from .line import Input, compute_dtype

_NUMPY = {"bfloat16": ml_dtypes.bfloat16}


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(_NUMPY.get(name, name))


def draw_inputs(inputs: Sequence[Input], policy: str, seed: int) -> list[np.ndarray]:
    """Random inputs in the policy's compute type."""
    rng = np.random.default_rng(seed)
    out = []
    for spec in inputs:
        if spec.below is not None:
            out.append(rng.integers(0, spec.below, spec.shape, dtype=np.int32))
        else:
            x = rng.normal(spec.center, spec.spread, spec.shape)
            out.append(x.astype(numpy_dtype(compute_dtype(policy))))
    return out


def draw_parameter(rng: np.random.Generator, shape: Sequence[int], name: str, fine: bool):
    """A value for a weight by its name; unless fine, multiples of 1/64, which every type holds."""
    leaf = name.rsplit("/", 1)[-1]
    if any(word in leaf for word in ("gamma", "scale")):
        center, spread = 1.0, 0.25
    elif any(word in leaf for word in ("beta", "bias", "offset")):
        center, spread = 0.0, 0.25
    elif "variance" in leaf:
        center, spread = 1.0, 0.2
    elif "mean" in leaf:
        center, spread = 0.0, 0.25
    else:
        fan_in = int(np.prod(shape[:-1])) if len(shape) > 1 else 1
        return rng.normal(0, max(1, fan_in) ** -0.5, shape)
    value = center + rng.uniform(-2 * spread, 2 * spread, shape)
    return value if fine else np.round(value * 64) / 64


def rounded_otherwise(rng: np.random.Generator, value: np.ndarray, policy: str) -> np.ndarray:
    """The value, moved by up to a unit in the last place of the policy's compute type."""
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        return value
    unit = float(ml_dtypes.finfo(numpy_dtype(compute_dtype(policy))).eps)
    moved = np.float64(value) * (1 + unit * rng.uniform(-1, 1, value.shape))
    return moved.astype(value.dtype)


def unit_in_last_place(value: float, dtype: np.dtype) -> float:
    """The distance from |value| to the next larger number of a type."""
    info = ml_dtypes.finfo(dtype)
    value = max(abs(float(value)), float(info.tiny))
    return float(2.0 ** np.floor(np.log2(value)) * float(info.eps))


def max_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest absolute error; equal non-finite values (and NaN for NaN) count as no error."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise AssertionError(f"shape {got.shape}, expected {want.shape}")
    if got.size == 0:
        return 0.0
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - want))
    return float(np.inf if np.isnan(error).any() else error.max())
