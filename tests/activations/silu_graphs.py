"""A silu behind a fused norm, as Grappler leaves it and in other ways, and gradients of it."""

from __future__ import annotations

import tensorflow as tf
from activations_graphs import C, fused, make_step, placeholder, v1

from fused_graphs import trace

OPS = {"Sigmoid", "Mul", "Sub", "AddV2", "Neg"}


def silu(y: tf.Tensor, slope: object = None, name: str | None = None) -> tf.Tensor:
    """As Grappler leaves tf.nn.silu."""
    return tf.raw_ops.Mul(x=tf.sigmoid(y), y=y, name=name)


def silu_grad(
    da: tf.Tensor, y: tf.Tensor, a: object = None, slope: object = None, name: str | None = None
) -> tf.Tensor:
    """Its gradient likewise: what is multiplied by da waits for it."""
    with tf.control_dependencies([da]):
        sigmoid = tf.sigmoid(y)
    one = tf.ones((), y.dtype)
    inner = tf.raw_ops.AddV2(x=one, y=tf.raw_ops.Mul(x=y, y=one - sigmoid))
    return tf.raw_ops.Mul(x=da, y=tf.raw_ops.Mul(x=sigmoid, y=inner), name=name)


def traced_silu(y: tf.Tensor, slope: object = None, name: str | None = None) -> tf.Tensor:
    """As tf.nn.silu traces it, with its beta of 1."""
    one = tf.ones((), y.dtype)
    return tf.raw_ops.Mul(x=y, y=tf.sigmoid(tf.raw_ops.Mul(x=one, y=y)), name=name)


def traced_silu_grad(da, y, a=None, slope=None, name=None):
    one = tf.ones((), y.dtype)
    sigmoid = tf.sigmoid(tf.raw_ops.Mul(x=one, y=y))
    scaled = tf.raw_ops.Mul(x=one, y=y)
    # The gradient of beta, which nobody reads.
    tf.reduce_sum(tf.raw_ops.Mul(x=da, y=tf.square(y)) * sigmoid * (1.0 - sigmoid))
    inner = tf.raw_ops.AddV2(x=one, y=tf.raw_ops.Mul(x=scaled, y=one - sigmoid))
    return tf.raw_ops.Mul(x=da, y=tf.raw_ops.Mul(x=sigmoid, y=inner), name=name)


def other_grad(da, y, a=None, slope=None, name=None):
    """The same function in another way."""
    sigmoid = tf.sigmoid(y)
    derivative = sigmoid * (y + 1.0) - y * tf.square(sigmoid)
    return tf.raw_ops.Mul(x=derivative, y=da, name=name)


def step(kind: str = "instance", forward=silu, backward=silu_grad, **options) -> v1.GraphDef:
    return trace(lambda: make_step(kind, 0.0, forward=forward, backward=backward, **options))


def parameters() -> tuple:
    return placeholder("gamma", [C]), placeholder("beta", [C])


def made(name: str) -> tf.Tensor:
    """A tensor of the graph in the making."""
    return v1.get_default_graph().get_tensor_by_name(name)


def silus(graph: v1.GraphDef) -> list[bool]:
    """Of the fused ops, forwards first."""
    return [node.attr["silu"].b for node in fused(graph)]


def left(graph: v1.GraphDef) -> list[str]:
    return sorted(node.name for node in graph.node if node.op in OPS)
