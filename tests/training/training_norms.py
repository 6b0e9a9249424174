"""Normalizations as users write them, each with its gradient in float64 from the formula."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from training_steps import flat, normal

import oracle

EPSILON = 1e-3
GROUPS = 4

Layer = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Norm:
    """One spelling. make(policy) returns a layer of which `parameters` are set by hand.

    Attributes:
      name: for the test's name.
      kind: what the report calls it.
      shape: a shape of x that suits it, the batch first.
      make: returns the layer and its variables, [gamma, beta] or those that it has.
      parameter_shape: of gamma and beta.
      formula: "layer", "rms", "group" or "instance".
      axes: of a layer or RMS norm.
      channel_axis: of a group or instance norm.
      one_plus: whether gamma is 1 + the variable.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    make: Callable[[str], tuple[Layer, list[tf.Variable]]]
    parameter_shape: tuple[int, ...]
    formula: str = "layer"
    axes: tuple[int, ...] = (-1,)
    channel_axis: int = -1
    scale: bool = True
    center: bool = True
    one_plus: bool = False

    @property
    def has_beta(self) -> bool:
        return self.center and self.formula != "rms"

    def parameters(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Random values of those of gamma and beta that it has."""
        values = [rng.uniform(0.5, 1.5, self.parameter_shape)] if self.scale else []
        values += [rng.normal(size=self.parameter_shape)] if self.has_beta else []
        return [value.astype(np.float32) for value in values]

    def build(
        self, values: Sequence[np.ndarray], policy: str = "float32"
    ) -> tuple[Layer, list[tf.Variable]]:
        """The layer with these values of its parameters."""
        layer, variables = self.make(policy)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(value - 1 if self.one_plus else value, variable.dtype))
        return layer, variables

    def draw(self, rng: np.random.Generator):
        """Random x, dy and values of the parameters; the layer that has them, and its variables."""
        x, dy = normal(rng, *self.shape, mean=1.0), normal(rng, *self.shape)
        values = self.parameters(rng)
        return x, dy, values, *self.build(values)

    def forward(self, x: np.ndarray, values: Sequence[np.ndarray]) -> np.ndarray:
        """y in float64."""
        gamma, beta = self._gamma_and_beta(values)
        view, reduced, along = self._view(np.float64(x))
        xhat = oracle.normalize(view, reduced, EPSILON, self.formula != "rms")[0]
        return oracle.affine(xhat, gamma, beta, along).reshape(x.shape)

    def backward(
        self, dy: np.ndarray, x: np.ndarray, values: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """dx, and the gradients of those of gamma and beta that it has, in float64."""
        gamma, _ = self._gamma_and_beta(values)
        view, reduced, along = self._view(np.float64(x))
        dy = np.float64(dy).reshape(view.shape)
        center = self.formula != "rms"
        dx, dgamma, dbeta = oracle.backward(dy, view, gamma, reduced, along, EPSILON, center)
        out = [dx.reshape(x.shape)]
        out += [dgamma.reshape(self.parameter_shape)] if self.scale else []
        return out + ([dbeta.reshape(self.parameter_shape)] if self.has_beta else [])

    def _gamma_and_beta(self, values):
        values = list(values)
        gamma = values.pop(0) if self.scale else None
        return gamma, values.pop(0) if self.has_beta else None

    def _view(self, x: np.ndarray):
        """x with its groups as an axis, the axes that share a statistic, those of gamma."""
        if self.formula in ("layer", "rms"):
            axes = tuple(sorted(a % x.ndim for a in self.axes))
            return x, axes, axes
        channel = self.channel_axis % x.ndim
        count = x.shape[channel] if self.formula == "instance" else GROUPS
        split = (count, x.shape[channel] // count)
        view = x.reshape(*x.shape[:channel], *split, *x.shape[channel + 1 :])
        reduced = tuple(a for a in range(1, view.ndim) if a != channel)
        return view, reduced, (channel, channel + 1)


def fit(
    norm: Norm,
    values: Sequence[np.ndarray],
    x: np.ndarray,
    target: np.ndarray,
    *,
    policy: str = "float32",
    batch_size: int = 8,
    library: str = "keras",
    jit_compile: bool = False,
    kind: Callable[..., Any] | None = None,
) -> list[np.ndarray]:
    """The parameters after an epoch of plain gradient descent (the rate is 1) on the mean square
    error of a model of this norm alone; what comes out of it is cast to float32. The model is of
    class `kind`; None: of the library's own."""
    keras = importlib.import_module(library)
    inputs = keras.Input(x.shape[1:])
    layer, _ = norm.build(values, policy)
    outputs = keras.layers.Activation("linear", dtype="float32")(layer(inputs))
    model = (kind or keras.Model)(inputs, outputs)
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=jit_compile)
    model.fit(x, target, batch_size=batch_size, epochs=1, verbose=0, shuffle=False)
    return flat(layer.get_weights())


def fit_in_float64(
    norm: Norm,
    values: Sequence[np.ndarray],
    x: np.ndarray,
    target: np.ndarray,
    batch_size: int = 8,
) -> list[np.ndarray]:
    """What `fit` returns, by the formulas."""
    exact = [np.float64(value) for value in values]
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        apart = norm.forward(x[part], exact) - target[part]
        _, *gradients = norm.backward(2 * apart / apart.size, x[part], exact)
        exact = [value - gradient for value, gradient in zip(exact, gradients, strict=True)]
    return exact


def _keras(name: str, shape: tuple[int, ...], **options):
    def make(policy: str):
        import keras

        layer = getattr(keras.layers, name)(epsilon=EPSILON, dtype=policy, **options)
        layer.build((None, *shape[1:]))
        return layer, [weight.value for weight in layer.trainable_weights]

    return make


def _tf_keras(name: str, shape: tuple[int, ...], **options):
    def make(policy: str):
        import tf_keras

        layer = getattr(tf_keras.layers, name)(**{"epsilon": EPSILON, "dtype": policy} | options)
        layer.build((None, *shape[1:]))
        return layer, layer.trainable_weights

    return make


def _by_hand(function: Callable[..., tf.Tensor], width: int, count: int):
    """function(x, *parameters), its parameters in float32 or wider and cast to x's type."""

    def make(policy: str):
        dtype = tf.float64 if policy == "float64" else tf.float32
        variables = [tf.Variable(tf.ones([width], dtype)) for _ in range(count)]
        return lambda x: function(x, *[tf.cast(v, x.dtype) for v in variables]), variables

    return make


def _moments(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)


def _centred(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred / tf.sqrt(variance + EPSILON) * gamma + beta


def _llama(x: tf.Tensor, gamma: tf.Tensor) -> tf.Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.pow(x, 2), -1, keepdims=True) + EPSILON) * gamma


def _gemma(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    root = tf.sqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + EPSILON)
    return x * tf.math.reciprocal(root) * (1.0 + scale)


_ROWS = (4, 6, 16)
_IMAGE = (3, 4, 5, 8)
_FIRST = (3, 8, 4, 5)

LAYER = Norm("keras_layer", "layer_norm", _ROWS, _keras("LayerNormalization", _ROWS), (16,))
RMS = Norm("keras_rms", "rms_norm", _ROWS, _keras("RMSNormalization", _ROWS), (16,), "rms")
GROUP = Norm(
    "keras_group",
    "group_norm",
    _IMAGE,
    _keras("GroupNormalization", _IMAGE, groups=GROUPS),
    (8,),
    "group",
)
INSTANCE = Norm(
    "keras_instance",
    "instance_norm",
    _IMAGE,
    _keras("GroupNormalization", _IMAGE, groups=-1),
    (8,),
    "instance",
)
LAYER_AXES = Norm(
    "keras_layer_axes",
    "layer_norm",
    _IMAGE,
    _keras("LayerNormalization", _IMAGE, axis=[1, 2, 3]),
    (4, 5, 8),
    axes=(1, 2, 3),
)
LAYER_NO_SCALE = dataclasses.replace(
    LAYER,
    name="keras_layer_no_scale",
    make=_keras("LayerNormalization", _ROWS, scale=False),
    scale=False,
)
LAYER_NO_CENTER = dataclasses.replace(
    LAYER,
    name="keras_layer_no_center",
    make=_keras("LayerNormalization", _ROWS, center=False),
    center=False,
)
LAYER_PLAIN = dataclasses.replace(
    LAYER,
    name="keras_layer_plain",
    make=_keras("LayerNormalization", _ROWS, scale=False, center=False),
    scale=False,
    center=False,
)
GROUP_PLAIN = dataclasses.replace(
    GROUP,
    name="keras_group_plain",
    make=_keras("GroupNormalization", _IMAGE, groups=GROUPS, scale=False, center=False),
    scale=False,
    center=False,
)
GROUP_FIRST = dataclasses.replace(
    GROUP,
    name="keras_group_first",
    shape=_FIRST,
    make=_keras("GroupNormalization", _FIRST, groups=GROUPS, axis=1),
    channel_axis=1,
)
TF_KERAS_LAYER = dataclasses.replace(
    LAYER, name="tf_keras_layer", make=_tf_keras("LayerNormalization", _ROWS)
)
TF_KERAS_MIDDLE = dataclasses.replace(
    LAYER,
    name="tf_keras_layer_middle",
    make=_tf_keras("LayerNormalization", _ROWS, axis=1),
    parameter_shape=(6,),
    axes=(1,),
)
TF_KERAS_GROUP = dataclasses.replace(
    GROUP, name="tf_keras_group", make=_tf_keras("GroupNormalization", _IMAGE, groups=GROUPS)
)
MOMENTS = dataclasses.replace(LAYER, name="moments", make=_by_hand(_moments, 16, 2))
CENTRED = dataclasses.replace(LAYER, name="centred", make=_by_hand(_centred, 16, 2))
LLAMA = dataclasses.replace(RMS, name="llama", make=_by_hand(_llama, 16, 1))
GEMMA = dataclasses.replace(RMS, name="gemma", make=_by_hand(_gemma, 16, 1), one_plus=True)

FOUR = (LAYER, RMS, GROUP, INSTANCE)
ALL = (
    *FOUR,
    LAYER_AXES,
    LAYER_NO_SCALE,
    LAYER_NO_CENTER,
    LAYER_PLAIN,
    GROUP_PLAIN,
    GROUP_FIRST,
    TF_KERAS_LAYER,
    TF_KERAS_MIDDLE,
    TF_KERAS_GROUP,
    MOMENTS,
    CENTRED,
    LLAMA,
    GEMMA,
)
