"""Gradients of the fused ops, for graphs that TensorFlow differentiates after they were fused."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import tensorflow as tf

_KINDS = {
    "FusedLayerNorm": ("axis", "subtract_mean"),
    "FusedRMSNorm": ("axis",),
    "FusedInstanceNorm": ("data_format",),
    "FusedGroupNorm": ("data_format", "groups"),
}


def register(ops: ModuleType) -> None:
    """Registers the fused ops' gradients; `ops` has their wrappers. A second call does nothing.

    Of the outputs only y has a gradient, as with TensorFlow's FusedBatchNormV3: mean and rstd are
    there for y's.
    """
    for kind, attributes in _KINDS.items():
        with contextlib.suppress(KeyError):  # registered already
            _register(ops, kind, attributes)


def _register(ops: ModuleType, kind: str, attributes: tuple[str, ...]) -> None:
    name = {"FusedRMSNorm": "fused_rms_norm"}.get(kind) or "".join(
        f"_{c.lower()}" if c.isupper() else c for c in kind
    ).lstrip("_")
    gradient_op = getattr(ops, f"{name}_grad")
    has_mean = kind != "FusedRMSNorm"

    @tf.RegisterGradient(kind)
    def _gradient(op: tf.Operation, dy: Any, *_: Any) -> list[Any]:
        num_scale = op.get_attr("num_scale")
        num_offset = op.get_attr("num_offset")
        params = list(op.inputs)[1:]
        if dy is None:
            return [None] * len(op.inputs)
        extra = {"mean": op.outputs[1]} if has_mean else {}
        dx, dscale, doffset = gradient_op(
            dy=dy,
            x=op.inputs[0],
            scale=params[:num_scale],
            rstd=op.outputs[-1],
            dx_type=op.inputs[0].dtype,
            param_type=params[0].dtype if params else tf.float32,
            num_dx=1,
            num_dscale=num_scale,
            num_doffset=num_offset,
            **extra,
            **{key: _plain(op.get_attr(key)) for key in attributes},
        )
        return dx + [
            tf.reshape(gradient, tf.shape(param))
            for gradient, param in zip(dscale + doffset, params, strict=True)
        ]

    @tf.RegisterGradient(f"{kind}Grad")
    def _second_gradient(op: tf.Operation, *_: Any) -> list[Any]:
        raise LookupError(
            f"{kind}Grad has no gradient: second derivatives through a fused normalization are not "
            "supported. Compute them under nv_norms_rewriter.disabled()."
        )


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
