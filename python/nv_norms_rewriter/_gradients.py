"""Gradients of the fused ops, for graphs that TensorFlow differentiates after they were fused."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import tensorflow as tf

from . import _saving, _stock, _tape, _trace_layout


def register(ops: ModuleType) -> None:
    """Registers the fused ops' gradients; `ops` has their wrappers. A second call does nothing.

    Of the outputs only y has a gradient, as with TensorFlow's FusedBatchNormV3: mean and rstd are
    there for y's.
    """
    for kind, attributes in _stock.ATTRIBUTES.items():
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
        meaning = {key: _plain(op.get_attr(key)) for key in attributes}
        offset = params[num_scale:] if _stock.has_activation(meaning) else []
        if "negative_slope" in attributes:
            extra["offset"] = offset
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
            **meaning,
        )
        _trace_layout.copy(op, dx[0])
        if _saving.is_marked(op):
            dx[0].op._set_attr(_saving.MARK, tf.compat.v1.AttrValue(b=True))
            read = [dy, op.inputs[0], *params[:num_scale], *offset]
            _tape.made_gradient(op, read, dx + dscale + doffset)
        per_sample = meaning.get("per_sample", False)
        return dx + [
            _like(gradient, param, per_sample)
            for gradient, param in zip(dscale + doffset, params, strict=True)
        ]

    @tf.RegisterGradient(f"{kind}Grad")
    def _second_gradient(op: tf.Operation, *of_outputs: Any) -> list[Any]:
        """By TensorFlow's own ops; mean and rstd count as functions of x, as in `_gradient`."""
        num_scale, num_doffset = op.get_attr("num_scale"), op.get_attr("num_doffset")
        wanted = [op.get_attr("num_dx"), *[op.get_attr("num_dscale")] * num_scale]
        wanted += [1] * num_doffset
        offset = list(op.inputs)[2 + num_scale : -2 if has_mean else -1]

        def computed(dy: Any, x: Any, *params: Any) -> list[Any]:
            outputs = _stock.gradient(
                kind,
                dy,
                x,
                params[:num_scale],
                op.inputs[-1],
                params[num_scale:],
                num_offset=num_doffset,
                dx_type=op.get_attr("dx_type"),
                param_type=op.get_attr("param_type"),
                **{key: _plain(op.get_attr(key)) for key in attributes},
            )
            return [output for output, want in zip(outputs, wanted, strict=True) if want]

        given = list(op.inputs)[: 2 + num_scale] + offset
        gradients = _stock.differentiate(computed, given, of_outputs)
        return gradients + [None] * (len(op.inputs) - len(given))


def _like(gradient: Any, param: Any, per_sample: bool) -> Any:
    """A parameter's gradient in its shape; summed over samples that share it."""
    elements = gradient.shape.num_elements()
    if per_sample and (elements is None or elements != param.shape.num_elements()):
        shape = tf.shape(gradient)
        of_param = _stock.shape_of_own(param, shape[1:])
        axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=of_param, s1=shape)
        gradient = tf.reduce_sum(gradient, axes)
    return tf.reshape(gradient, tf.shape(param))


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
