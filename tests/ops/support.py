"""Calls of the ops under test with NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def stat_type(dtype: Any) -> tf.DType:
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def split_epsilon(epsilon: float) -> dict[str, float]:
    """The two attributes that together hold a float64."""
    high = float(np.float32(epsilon))
    return {"epsilon": high, "epsilon_low": float(np.float32(epsilon - high))}


def forward(
    ops: Any,
    kind: str,
    x: np.ndarray | tf.Tensor,
    scale: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    device: str = "/device:CPU:0",
    out_type: Any = None,
    epsilon: float = 1e-3,
    **attributes: Any,
) -> list[np.ndarray]:
    """The outputs of Fused{kind} as NumPy arrays."""
    with tf.device(device):
        tensor = tf.identity(tf.convert_to_tensor(x))
        call = getattr(ops, {"RMSNorm": "fused_rms_norm"}.get(kind, f"fused_{snake(kind)}"))
        outputs = call(
            x=tensor,
            scale=[] if scale is None else [tf.convert_to_tensor(scale)],
            offset=[] if offset is None else [tf.convert_to_tensor(offset)],
            out_type=tf.as_dtype(out_type or tensor.dtype),
            U=stat_type(tensor.dtype),
            **split_epsilon(epsilon),
            **attributes,
        )
    return [output.numpy() for output in outputs]


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def random(
    seed: int, shape: Sequence[int], dtype: np.dtype, mean: float = 0.5, std: float = 2.0
) -> np.ndarray:
    print(f"seed {seed}")  # shown where a test fails
    return np.random.default_rng(seed).normal(mean, std, shape).astype(dtype)


def gradient(
    ops: Any,
    kind: str,
    dy: np.ndarray,
    x: np.ndarray,
    scale: np.ndarray | None,
    mean: np.ndarray | None,
    rstd: np.ndarray,
    device: str = "/device:CPU:0",
    dx_type: Any = None,
    param_type: Any = tf.float32,
    wanted: tuple[int, int, int] = (1, 1, 1),
    offset: np.ndarray | None = None,
    **attributes: Any,
) -> list[np.ndarray | None]:
    """dx, dscale, doffset of Fused{kind}Grad, None for those that are not wanted."""
    with tf.device(device):
        name = "fused_rms_norm_grad" if kind == "RMSNorm" else f"fused_{snake(kind)}_grad"
        statistics = {"rstd": tf.convert_to_tensor(rstd)}
        if kind != "RMSNorm":
            statistics["mean"] = tf.convert_to_tensor(mean)
        if kind in ("InstanceNorm", "GroupNorm"):
            attributes["offset"] = [] if offset is None else [tf.convert_to_tensor(offset)]
        outputs = getattr(ops, name)(
            dy=tf.convert_to_tensor(dy),
            x=tf.convert_to_tensor(x),
            scale=[] if scale is None else [tf.convert_to_tensor(scale)],
            dx_type=tf.as_dtype(dx_type or x.dtype),
            param_type=tf.as_dtype(param_type),
            num_dx=wanted[0],
            num_dscale=wanted[1],
            num_doffset=wanted[2],
            **statistics,
            **attributes,
        )
    return [output[0].numpy() if output else None for output in outputs]
