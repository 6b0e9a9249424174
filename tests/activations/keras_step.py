"""A step of a Keras model of convolutions, group norms and activations, and how far it is off."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from activations_graphs import run, v1

import nv_norms_rewriter

IMAGE = (6, 6, 4)


class KerasStep:
    """y and the gradients of a model's weights, stock.

    groups: of each of its two norms (-1: instance norm).
    activation: a layer of a dtype policy, made anew for each norm.
    """

    def __init__(
        self,
        groups: int,
        activation: Callable[[str], keras.layers.Layer],
        policy: str,
        batch: int | None = 2,
    ) -> None:
        self._batch = batch
        self.traced, self._shapes = self._trace(groups, activation, policy)
        self._wide, _ = self._trace(groups, activation, "float64")
        self.graph = self.traced.graph.as_graph_def()
        self.fetches = [t.op.name for t in self.traced.outputs]

    def _trace(self, groups: int, activation: Callable, policy: str) -> tuple:
        """Its function, and the shapes of its weights."""
        keras.utils.set_random_seed(3)
        wide = "float64" if policy == "float64" else "float32"
        x = inputs = keras.Input(IMAGE, dtype=wide)
        for _ in range(2):
            x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, dtype=policy)(x)
            x = keras.layers.GroupNormalization(groups, dtype=policy)(x)
            x = activation(policy)(x)
        model = keras.Model(inputs, keras.layers.Conv2D(1, 3, dtype=wide)(x))

        def step(x, *weights):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y, _ = model.stateless_call(weights, [], x)
                loss = tf.reduce_mean(tf.square(y))
            return [y, *tape.gradient(loss, weights)]

        shapes = [tuple(w.shape) for w in model.variables]
        specs = [tf.TensorSpec(s, wide) for s in ((self._batch, *IMAGE), *shapes)]
        with nv_norms_rewriter.disabled():
            return tf.function(step, autograph=False).get_concrete_function(*specs), shapes

    def errors(
        self, before: v1.GraphDef, after: v1.GraphDef, rng: np.random.Generator
    ) -> tuple[float, float]:
        """Of all tensors together, to float64: before and after, the median of five draws.

        At a kink rounding decides the sign: single draws differ by a factor of 3.
        """
        errors = []
        names = [t.op.name for t in self.traced.inputs]
        for _ in range(5):
            weights = [rng.normal(size=shape) / 3 for shape in self._shapes]
            given = [v.astype(np.float32) for v in (rng.normal(size=(2, *IMAGE)), *weights)]
            exact = [t.numpy() for t in self._wide(*(tf.constant(v, tf.float64) for v in given))]
            feeds = dict(zip(names, given, strict=True))
            was, now = (run(each, feeds, self.fetches) for each in (before, after))
            assert [v.dtype for v in was] == [v.dtype for v in now]
            errors.append([_relative_error(values, exact) for values in (was, now)])
        return tuple(np.median(errors, 0))


def _relative_error(values: list[np.ndarray], exact: list[np.ndarray]) -> float:
    pairs = zip(values, exact, strict=True)
    return np.linalg.norm([np.linalg.norm(v - e) / np.linalg.norm(e) for v, e in pairs])
