"""The ways in which TensorFlow can be made to run a function: programs of arrays to arrays."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from .builder import Builder
from .line import BATCH, CHANNELS, RANK, STATIC, Input

Program = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def specs(inputs: Sequence[Input], dtype: tf.DType, knowledge: str) -> list[tf.TensorSpec]:
    """What the traced function knows of its inputs."""
    out = []
    for number, spec in enumerate(inputs):
        shape: list = list(spec.shape)
        if knowledge == BATCH:
            shape[0] = None
        elif knowledge == CHANNELS and spec.below is None:
            kept = {axis % len(shape) for axis in spec.channels}
            shape = [size if axis in kept else None for axis, size in enumerate(shape)]
        elif knowledge not in (STATIC, BATCH, CHANNELS, RANK):
            raise ValueError(f"knowledge: expected one of the four kinds, got {knowledge!r}")
        of = tf.int32 if spec.below is not None else dtype
        out.append(tf.TensorSpec(shape, of, name=f"input_{number}"))
    return out


def hide_rank(x: tf.Tensor) -> tf.Tensor:
    """x, of which TensorFlow's inference knows no shape, though Python does: Grappler does not look
    into the call, and who does finds an op that may give any shape."""

    @tf.function(experimental_attributes={"_noinline": True})
    def opaque(value):
        return tf.raw_ops.PlaceholderWithDefault(input=value, shape=None)

    hidden = opaque(x)
    hidden.set_shape(x.shape)
    return hidden


def program(function: Callable, builder: Builder, knowledge: str, mode: str) -> Program:
    """A program that runs the function in the given mode; traced here, optimized at first run."""
    signature = specs(builder.line.inputs, builder.dtype, knowledge)

    def known(*args):
        if knowledge == RANK:
            args = [hide_rank(x) if x.dtype.is_floating else x for x in args]
        return function(*args)

    return _MODES[mode](known, signature, builder)


def eager(function: Callable, builder: Builder, mode: str, arrays) -> list[np.ndarray]:
    """What a program of that mode should return: op by op, without any graph or optimizer."""
    tensors = [tf.constant(x) for x in arrays]
    if mode in ("train", "split_train"):
        return _flat(_with_gradients(function, builder, tensors))
    if mode == "while":
        return _flat(function(function(tensors[0])))
    if mode == "map_fn":
        return _flat(tf.stack([function(tensors[0]), function(tensors[0] + tensors[0])]))
    return _flat(function(*tensors))


def _flat(outputs) -> list[np.ndarray]:
    # (NumPy makes no array of a tensor that is one bfloat16.)
    return [np.asarray(tf.convert_to_tensor(each).numpy()) for each in tf.nest.flatten(outputs)]


def _infer(function, signature, builder):
    traced = tf.function(function, input_signature=signature).get_concrete_function()
    return lambda arrays: _flat(traced(*[tf.constant(x) for x in arrays]))


@functools.cache
def _phase():
    """1, which TensorFlow cannot know: weights that it knew would make dy a constant, as none is
    in training, and what is left of a norm's gradient then is no gradient of a norm."""
    with tf.init_scope():
        return tf.Variable(1.0, trainable=False)


def _loss(outputs):
    """A sum over the outputs in which each element has a weight of its own."""
    total = 0.0
    for y in tf.nest.flatten(outputs):
        accumulate = tf.float64 if y.dtype == tf.float64 else tf.float32
        flat = tf.reshape(tf.cast(y, accumulate), [-1])
        phase = tf.cast(_phase(), accumulate)
        weights = tf.sin(phase + tf.cast(tf.range(tf.size(flat)), accumulate))
        total += tf.reduce_sum(flat * weights)
    return total


def _with_gradients(function, builder, args):
    watched = [x for x in args if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        outputs = function(*args)
        loss = _loss(outputs)
    variables = [v for v in builder.variables if v.trainable]
    gradients = tape.gradient(loss, watched + variables)
    return outputs, [g for g in gradients if g is not None]


def _train(function, signature, builder):
    return _infer(lambda *args: _with_gradients(function, builder, args), signature, builder)


def _split_train(function, signature, builder):
    """The tape outside: forward and backward are two graphs, inner values are fetched."""
    traced = tf.function(function, input_signature=signature)
    return lambda arrays: _flat(_with_gradients(traced, builder, [tf.constant(x) for x in arrays]))


def freeze(function, signature):
    """The concrete function with its variables as constants."""
    traced = tf.function(function, input_signature=signature).get_concrete_function()
    return convert_variables_to_constants_v2(traced, lower_control_flow=False)


def _frozen(function, signature, builder):
    traced = freeze(function, signature)
    return lambda arrays: _flat(traced(*[tf.constant(x) for x in arrays]))


def _session(function, signature, builder):
    frozen = freeze(function, signature)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(frozen.graph.as_graph_def(), name="")
    feeds = [tensor.name for tensor in frozen.inputs]
    fetches = [tensor.name for tensor in frozen.outputs]

    def run(arrays):
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(fetches, dict(zip(feeds, arrays, strict=True)))

    return run


def _saved(function, signature, builder):
    module = tf.Module()
    module.kept = list(builder.variables)
    module.serve = tf.function(
        lambda *args: {"y": function(*args)}, input_signature=signature, autograph=False
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=module.serve)
        served = tf.saved_model.load(folder).signatures["serving_default"]
    names = [spec.name for spec in signature]

    def run(arrays):
        feeds = {name: tf.constant(x) for name, x in zip(names, arrays, strict=True)}
        return _flat(served(**feeds))

    return run


def _dataset(function, signature, builder):
    def run(arrays):
        data = tf.data.Dataset.from_generator(
            lambda: iter([tuple(arrays)]), output_signature=tuple(signature)
        )
        options = tf.data.Options()
        options.deterministic = True
        return _flat(next(iter(data.with_options(options).map(function))))

    return run


def _while(function, signature, builder):
    def loop(x):
        return tf.while_loop(
            lambda step, value: step < 2, lambda step, value: (step + 1, function(value)), (0, x)
        )[1]

    return _infer(loop, signature, builder)


def _cond(function, signature, builder):
    def branch(x):
        return tf.cond(tf.size(x) >= 0, lambda: function(x), lambda: tf.cast(x, builder.dtype))

    return _infer(branch, signature, builder)


def _map_fn(function, signature, builder):
    def mapped(x):
        return tf.map_fn(function, tf.stack([x, x + x]))

    return _infer(mapped, signature, builder)


def _noinline(function, signature, builder):
    inner = tf.function(
        function, input_signature=signature, experimental_attributes={"_noinline": True}
    )
    return _infer(lambda *args: inner(*args), signature, builder)


def _nested(function, signature, builder):
    inner = tf.function(function)
    return _infer(lambda *args: inner(*args), signature, builder)


_MODES = {
    "infer": _infer,
    "train": _train,
    "split_train": _split_train,
    "frozen": _frozen,
    "session": _session,
    "saved": _saved,
    "dataset": _dataset,
    "while": _while,
    "cond": _cond,
    "map_fn": _map_fn,
    "noinline": _noinline,
    "nested": _nested,
}
