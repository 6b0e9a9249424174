"""Graphs of normalizations with something in them changed at random: an op, a constant, an edge.

What the recognizer makes of such a graph must compute the same, in float64, where rounding hides
nothing. Most changes make another function of a norm; some hit what is beside it, and it is still
to be fused; some keep its meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training import saver

import nv_norms_rewriter

from .graphs import by_name
from .modes import freeze

_SHAPES = {3: (3, 4, 6), 4: (2, 3, 4, 6)}
_FLOAT = tf.float64.as_datatype_enum


class Source(NamedTuple):
    """A graph of norms, what it is fed, in that order, and what is fetched."""

    graph: tf.compat.v1.GraphDef
    feeds: list[str]
    fetches: list[str]
    shapes: list[tuple[int, ...]]


def _moments(axes: list[int]) -> Callable:
    def norm(x, z, gamma, beta):
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta

    return norm


def _batch_normalization(axes: list[int]) -> Callable:
    def norm(x, z, gamma, beta):
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3)

    return norm


def _rms(x, z, gamma, beta):
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-5) * gamma


def _groups(x, z, gamma, beta):
    split = tf.reshape(x, [tf.shape(x)[0], -1, 2, x.shape[-1] // 2])
    mean, variance = tf.nn.moments(split, [1, 3], keepdims=True)
    xhat = (split - mean) * tf.math.rsqrt(variance + 1e-3)
    return tf.reshape(xhat, tf.shape(x)) * gamma + beta


def _residual(x, z, gamma, beta):
    return _moments([-1])(x + z, z, gamma, beta) + x


def _two(x, z, gamma, beta):
    return _rms(tf.nn.relu(_moments([-1])(x, z, gamma, beta)), z, gamma, beta) + z


def _gated(x, z, gamma, beta):
    return _moments([-1])(x, z, gamma, beta) * tf.sigmoid(z)


def _layer(make: Callable[..., keras.layers.Layer], rank: int) -> Callable:
    @functools.cache
    def layer():
        built = make(dtype="float64")
        built.build((None, *_SHAPES[rank][1:]))
        rng = np.random.default_rng(5)
        for weight in built.weights:
            weight.assign(rng.normal(1, 0.3, weight.shape))
        return built

    return lambda x, z, gamma, beta: layer()(x)


# What a norm is in, by name, and the rank of x.
NORMS: dict[str, tuple[Callable, int]] = {
    "moments": (_moments([-1]), 3),
    "batch_normalization": (_batch_normalization([-1]), 3),
    "instance": (_moments([1, 2]), 4),
    "instance batch_normalization": (_batch_normalization([1, 2]), 4),
    "rms": (_rms, 3),
    "groups": (_groups, 4),
    "residual": (_residual, 3),
    "two": (_two, 3),
    "gated": (_gated, 3),
    "LayerNormalization": (_layer(keras.layers.LayerNormalization, 3), 3),
    "LayerNormalization, two axes": (
        _layer(functools.partial(keras.layers.LayerNormalization, axis=[-2, -1]), 3),
        3,
    ),
    "RMSNormalization": (_layer(keras.layers.RMSNormalization, 3), 3),
    "GroupNormalization": (_layer(functools.partial(keras.layers.GroupNormalization, 2), 4), 4),
    "InstanceNormalization": (_layer(functools.partial(keras.layers.GroupNormalization, -1), 4), 4),
}


def _activated(make: Callable, activation: Callable) -> Callable:
    return lambda x, z, gamma, beta: activation(make(x, z, gamma, beta))


def _leaky(y):
    return tf.nn.leaky_relu(y, 0.25)


def _activated_twice(x, z, gamma, beta):
    a = _leaky(_moments([1, 2])(x, z, gamma, beta))
    return tf.nn.relu(_groups(a + z, z, gamma, beta))


# Norms with an activation behind them that goes into the op on a GPU.
ACTIVATED: dict[str, tuple[Callable, int]] = {
    "instance, relu": (_activated(_moments([1, 2]), tf.nn.relu), 4),
    "instance, leaky_relu": (_activated(_batch_normalization([1, 2]), _leaky), 4),
    "groups, leaky_relu": (_activated(_groups, _leaky), 4),
    "GroupNormalization, relu": (_activated(NORMS["GroupNormalization"][0], tf.nn.relu), 4),
    "InstanceNormalization, relu": (_activated(NORMS["InstanceNormalization"][0], tf.nn.relu), 4),
    "two": (_activated_twice, 4),
}


def _with_gradients(function: Callable) -> Callable:
    def train(x, z, gamma, beta):
        arguments = [x, z, gamma, beta]
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            y = function(*arguments)
        gradients = tape.gradient(y, arguments, output_gradients=3 * tf.cos(2.1 * z) + x)
        return [y, *(g for g in gradients if g is not None)]

    return train


@functools.cache
def source(name: str, train: bool, known: bool, optimized: bool, activated: bool = False) -> Source:
    """A norm by its name; with its gradients; with a known batch; as TensorFlow's optimizer leaves
    it; one of ACTIVATED, not of NORMS."""
    function, rank = (ACTIVATED if activated else NORMS)[name]
    shape = _SHAPES[rank]
    shapes = [shape, shape, shape[-1:], shape[-1:]]
    given = (shape if known else (None, *shape[1:]),) * 2 + (shape[-1:],) * 2
    signature = [tf.TensorSpec(s, tf.float64, name=f"input_{i}") for i, s in enumerate(given)]
    traced = freeze(_with_gradients(function) if train else function, signature)
    graph = traced.graph.as_graph_def()
    feeds, fetches = ([t.name for t in tensors] for tensors in (traced.inputs, traced.outputs))
    if optimized:
        meta = saver.export_meta_graph(graph_def=graph, graph=traced.graph)
        kept = meta.collection_def["train_op"].node_list.value
        kept.extend(fetch.partition(":")[0] for fetch in fetches)
        config = config_pb2.ConfigProto()
        config.graph_options.rewrite_options.min_graph_nodes = -1
        with nv_norms_rewriter.disabled():
            graph = tf_optimizer.OptimizeGraph(config, meta)
    for node in graph.node:
        node.attr.pop("_output_shapes", None)  # a changed graph has others
    return Source(graph, feeds, fetches, shapes)


class Place(NamedTuple):
    """A node of a graph, and the nodes that come before it."""

    graph: tf.compat.v1.GraphDef
    node: tf.compat.v1.NodeDef
    earlier: list[str]
    rng: np.random.Generator

    def pick(self, items: list):
        return items[int(self.rng.integers(len(items)))]

    def data_input(self) -> int | None:
        """One of its inputs, if it computes floats."""
        data = [i for i, edge in enumerate(self.node.input) if not edge.startswith("^")]
        return self.pick(data) if data and self.node.attr["T"].type == _FLOAT else None


_BINARY = ["AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference", "RealDiv"]
_UNARY = ["Rsqrt", "Sqrt", "Square", "Neg", "Reciprocal", "Abs", "Relu", "Exp", "Identity", "Tanh"]
_REDUCTIONS = ["Mean", "Sum", "Max", "Min", "Prod"]


def _another_op(place: Place) -> bool:
    for ops in (_BINARY, _UNARY, _REDUCTIONS):
        if place.node.op in ops and place.node.attr["T"].type == _FLOAT:
            place.node.op = place.pick([op for op in ops if op != place.node.op])
            return True
    return False


def _another_number(place: Place) -> bool:
    if place.node.op != "Const":
        return False
    value = tf.make_ndarray(place.node.attr["value"].tensor).copy()
    flat = value.reshape(-1)
    if flat.size == 0 or value.dtype.kind not in "fi":
        return False
    which = slice(None) if place.rng.random() < 0.5 else int(place.rng.integers(flat.size))
    if value.dtype.kind == "f":
        flat[which] *= place.pick([1 + 1e-4, 0.5, -1.0, 2.0, 0.0, 1e3])
    elif place.rng.random() < 0.3:
        flat[:] = flat[::-1].copy()
    else:
        flat[which] += place.pick([-2, -1, 1, 2])
    place.node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, shape=value.shape))
    return True


def _another_input(place: Place) -> bool:
    number = place.data_input()
    nodes = by_name(place.graph)
    floats = [
        name
        for name in place.earlier
        if _FLOAT in (nodes[name].attr["T"].type, nodes[name].attr["dtype"].type)
    ]
    if number is None or not floats:
        return False
    place.node.input[number] = place.pick(floats)
    return True


def _inputs_in_turn(place: Place) -> bool:
    if place.node.op not in _BINARY:
        return False
    place.node.input[0], place.node.input[1] = place.node.input[1], place.node.input[0]
    return True


def _one_op_more(place: Place) -> bool:
    number = place.data_input()
    if number is None:
        return False
    name = f"more_{len(place.graph.node)}"
    more = place.graph.node.add(name=name, op=place.pick([*_UNARY, "ReverseV2"]))
    more.attr["T"].type = _FLOAT
    more.input.append(place.node.input[number])
    if more.op == "ReverseV2":
        axis = place.graph.node.add(name=f"{name}_axis", op="Const")
        axis.attr["dtype"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.array([-1], np.int32)))
        more.attr["Tidx"].type = tf.int32.as_datatype_enum
        more.input.append(axis.name)
    place.node.input[number] = name
    return True


def _other_dimensions(place: Place) -> bool:
    if place.node.op not in _REDUCTIONS:
        return False
    place.node.attr["keep_dims"].b = not place.node.attr["keep_dims"].b
    return True


def _another_slope(place: Place) -> bool:
    if place.node.op not in ("LeakyRelu", "LeakyReluGrad"):
        return False
    place.node.attr["alpha"].f = place.pick([0.0, -0.25, 1.0, 0.5])
    return True


_CHANGES = (
    _another_op,
    _another_number,
    _another_input,
    _inputs_in_turn,
    _one_op_more,
    _other_dimensions,
)


def _in_order(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Names of the nodes, each behind those that it reads."""
    nodes, order = by_name(graph), {}

    def visit(name: str) -> None:
        if name in order:
            return
        for edge in nodes[name].input:
            visit(edge.lstrip("^").partition(":")[0])
        order[name] = None

    for name in nodes:
        visit(name)
    return list(order)


def change(graph: tf.compat.v1.GraphDef, rng: np.random.Generator, activated: bool = False) -> str:
    """Changes one thing in a graph; what, in words."""
    names, nodes = _in_order(graph), by_name(graph)
    changes = (*_CHANGES, _another_slope) if activated else _CHANGES
    while True:
        number = int(rng.integers(len(names)))
        kind = changes[int(rng.integers(len(changes)))]
        before = str(nodes[names[number]])
        if kind(Place(graph, nodes[names[number]], names[:number], rng)):
            return f"{kind.__name__} at {before}"
