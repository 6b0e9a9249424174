"""Random graphs around normalizations: most are one, many are one or two changes away from one.

Whatever the rewriter makes of such a graph, its values must stay. Each graph follows from its seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .builder import Builder
from .line import BATCH, RANK, STATIC, Input, Line, compute_dtype
from .modes import eager, program
from .values import draw_inputs


@dataclasses.dataclass(frozen=True)
class Graph:
    """A random function: what it does in words, and how to run it."""

    seed: int
    words: tuple[str, ...]
    line: Line
    policy: str
    knowledge: str
    mode: str
    inputs: tuple[np.ndarray, ...]
    rounded_to: str = ""  # the type of what leads to gradients, where that may be a narrower one

    def run(self) -> list[np.ndarray]:
        builder = Builder(self.line, self.policy, self.seed)
        function = self.line.make(builder)
        return program(function, builder, self.knowledge, self.mode)(self.inputs)

    def exact(self) -> list[np.ndarray]:
        builder = Builder(self.line, "float64", self.seed)
        wide = [x.astype(np.float64) for x in self.inputs]
        return eager(self.line.make(builder), builder, self.mode, wide)

    def __str__(self) -> str:
        shape = self.inputs[0].shape
        how = f"seed {self.seed}, {shape}, {self.policy}, {self.knowledge}, {self.mode}"
        return f"{how}: {'; '.join(self.words)}"


class _Choices:
    """Random choices that are written down, so that building again makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.words: list[str] = []

    def pick(self, what: str, options: dict, usual: str | None = None, odds: float = 0.75):
        """One of the named options; the usual one more often than the others together."""
        names = list(options)
        name = names[int(self.rng.integers(len(names)))]
        if usual is not None and self.rng.random() < odds:
            name = usual
        self.words.append(f"{what} {name}")
        return options[name]


def _axes(choices: _Choices, what: str, rank: int) -> list[int]:
    """Usually the last, else some of all."""
    axes = [rank - 1]
    if choices.rng.random() < 0.5:
        count = int(choices.rng.integers(1, rank))
        axes = sorted(int(a) for a in choices.rng.choice(rank, count, replace=False))
    signed = [a - rank if choices.rng.random() < 0.3 else a for a in axes]
    choices.words.append(f"{what} {signed}")
    return signed


def _parameter_shape(choices: _Choices, shape, axes) -> tuple[int, ...]:
    """Usually that of the normalized axes, else anything that broadcasts."""
    kept = {a % len(shape) for a in axes}
    if choices.rng.random() < 0.4:
        kept = {i for i in range(len(shape)) if choices.rng.random() < 0.4}
    full = tuple(size if i in kept else 1 for i, size in enumerate(shape))
    first = min(kept, default=len(shape) - 1)
    return full[first:] if choices.rng.random() < 0.7 else full


def _mean(x, axes):
    return tf.reduce_mean(x, axes, keepdims=True)


_OTHER: dict[str, Callable] = {
    "x": lambda x, z: x,
    "z": lambda x, z: z,
    "relu(x)": lambda x, z: tf.nn.relu(x),
    "reversed x": lambda x, z: tf.reverse(x, [-1]),
    "x without fraction": lambda x, z: tf.round(x),
    "rolled x": lambda x, z: tf.roll(x, 1, 0),
    "-x": lambda x, z: -x,
    "2 x": lambda x, z: 2 * x,
    "x + 1": lambda x, z: x + 1,
    "batch mean": lambda x, z: x - tf.reduce_mean(x, 0, keepdims=True),
    "x by way of float16": lambda x, z: tf.cast(tf.cast(x, tf.float16), x.dtype),
}

_ROOTS: dict[str, Callable] = {
    "* rsqrt": lambda d, v: d * tf.math.rsqrt(v),
    "/ sqrt": lambda d, v: d / tf.sqrt(v),
    "* reciprocal(sqrt)": lambda d, v: d * tf.math.reciprocal(tf.sqrt(v)),
    "* pow(-0.5)": lambda d, v: d * tf.pow(v, tf.constant(-0.5, v.dtype)),
    "/ v": lambda d, v: d / v,
    "* sqrt": lambda d, v: d * tf.sqrt(v),
    "/ (sqrt + 0.1)": lambda d, v: d / (tf.sqrt(v) + tf.constant(0.1, v.dtype)),
    "* min(rsqrt, 2)": lambda d, v: d * tf.minimum(tf.math.rsqrt(v), tf.constant(2.0, v.dtype)),
    "* rsqrt of the first": lambda d, v: d * tf.math.rsqrt(v[:1]),
    "* rsqrt(2 v)": lambda d, v: d * tf.math.rsqrt(2 * v),
}


def _square_mean(axes):
    return lambda d, x, m: _mean(tf.square(d), axes)


def _variances(axes) -> dict[str, Callable]:
    return {
        "mean((x - m)^2)": _square_mean(axes),
        "mean(squared_difference)": lambda d, x, m: _mean(tf.math.squared_difference(x, m), axes),
        "mean(d d)": lambda d, x, m: _mean(d * d, axes),
        "mean(x^2) - m^2": lambda d, x, m: _mean(tf.square(x), axes) - tf.square(m),
        "mean(x^2)": lambda d, x, m: _mean(tf.square(x), axes),
        "sum(d^2)": lambda d, x, m: tf.reduce_sum(tf.square(d), axes, keepdims=True),
        "sum(d^2) / 3": lambda d, x, m: tf.reduce_sum(tf.square(d), axes, keepdims=True) / 3,
        "max(d^2)": lambda d, x, m: tf.reduce_max(tf.square(d), axes, keepdims=True),
        "mean(|d|)": lambda d, x, m: _mean(tf.abs(d), axes),
        "mean(d^2) of the batch": lambda d, x, m: _mean(_mean(tf.square(d), axes), 0),
        "mean(x d)": lambda d, x, m: _mean(x * d, axes),
    }


_EPSILONS: dict[str, Callable] = {
    "+ 1e-3": lambda v, x: v + tf.constant(1e-3, v.dtype),
    "+ 0.3": lambda v, x: v + tf.constant(0.3, v.dtype),
    "+ |x0|": lambda v, x: v + tf.abs(x[:1]) + tf.constant(0.1, v.dtype),
    "max 0.5": lambda v, x: tf.maximum(v, tf.constant(0.5, v.dtype)),
    "+ per channel": lambda v, x: v
    + tf.reshape(tf.linspace(tf.constant(0.1, v.dtype), tf.constant(0.5, v.dtype), x.shape[-1]),
                 [x.shape[-1]]),
}  # fmt: skip

_SCALES: dict[str, Callable] = {
    "* g": lambda y, g: y * g,
    "g *": lambda y, g: g * y,
    "* (1 + g)": lambda y, g: y * (1 + g),
    "/ g": lambda y, g: y / g,
    "none": lambda y, g: y,
    "* g^2": lambda y, g: y * tf.square(g),
}

_OFFSETS: dict[str, Callable] = {
    "+ b": lambda y, b: y + b,
    "b -": lambda y, b: b - y,
    "none": lambda y, b: y,
}

_AFTER: dict[str, Callable] = {
    "nothing": lambda y, x, z: y,
    "+ x": lambda y, x, z: y + x,
    "+ z": lambda y, x, z: z + y,
    "* z": lambda y, x, z: y * z,
    "* 0.5": lambda y, x, z: y * 0.5,
    "relu": lambda y, x, z: tf.nn.relu(y),
    "+ 1": lambda y, x, z: 1 + y,
    "- x": lambda y, x, z: y - x,
    "transposed": lambda y, x, z: tf.transpose(y),
    "flattened": lambda y, x, z: tf.reshape(y, [-1]),
}

_VIEWS: dict[str, Callable] = {
    "as it is": lambda x: x,
    "transposed": lambda x: tf.transpose(x, [0, *range(len(x.shape) - 1, 0, -1)]),
    "with an axis of 1": lambda x: tf.expand_dims(x, -1),
    "channels in pairs": lambda x: tf.reshape(
        x, [-1, *(int(s) for s in x.shape[1:-1]), int(x.shape[-1]) // 2, 2]
    ),
    "half and back": lambda x: x + 0.0,
}

_SHAPES = ((3, 5, 8), (4, 4, 4), (6, 8), (4, 4), (2, 3, 4, 6), (2, 4, 4, 4), (2, 6, 1, 4), (3, 2))


def _norm(choices: _Choices, number: int, shape: tuple[int, ...]) -> Callable:
    """A random norm (or nearly one): builder -> (x, z) -> [y and what is fetched besides]."""
    rank = len(shape)
    mean_axes = _axes(choices, "mean over", rank)
    variance_axes = mean_axes
    if choices.rng.random() < 0.15:
        variance_axes = _axes(choices, "variance over", rank)
    of_mean = choices.pick("mean of", _OTHER, "x", 0.9)
    of_variance = choices.pick("variance of", _OTHER, "x", 0.9)
    of_numerator = choices.pick("on top", _OTHER, "x", 0.9)
    centered = choices.rng.random() < 0.7
    choices.words.append("centered" if centered else "not centered")
    kinds = _variances(variance_axes)
    usual = "mean((x - m)^2)" if centered else "mean(x^2)"
    take = choices.pick("variance", kinds, usual, 0.55)
    # These are variances, and positive, only if both means are of x.
    signed = take in (kinds["mean(x^2) - m^2"], kinds["mean(x d)"])
    signed = signed and not (of_mean is of_variance is _OTHER["x"])
    epsilon = choices.pick("epsilon", _EPSILONS, "+ 1e-3", 0.8)
    invert = choices.pick("root", _ROOTS, "* rsqrt", 0.55)
    gamma_shape = _parameter_shape(choices, shape, mean_axes)
    beta_shape = _parameter_shape(choices, shape, mean_axes)
    choices.words.append(f"gamma {gamma_shape}, beta {beta_shape}")
    scale = choices.pick("scale", _SCALES, "* g", 0.5)
    offset = choices.pick("offset", _OFFSETS, "+ b", 0.5)
    fetched = {"nothing": (), "xhat": (0,), "mean": (1,), "var": (2,)}
    fetch = choices.pick("fetched too", fetched, "nothing", 0.75)

    def make(builder: Builder) -> Callable:
        gamma = builder.parameter(f"gamma_{number}", gamma_shape)
        beta = builder.parameter(f"beta_{number}", beta_shape)

        def function(x, z):
            g, b = tf.cast(gamma, x.dtype), tf.cast(beta, x.dtype)
            m = _mean(of_mean(x, z), mean_axes)
            source, top = of_variance(x, z), of_numerator(x, z)
            v = take(source - m, source, m)
            v = epsilon(tf.abs(v) if signed else v, x)
            xhat = invert(top - m if centered else top, v)
            return [offset(scale(xhat, g), b), *((xhat, m, v)[i] for i in fetch)]

        return function

    return make


_SECOND: dict[str, Callable] = {
    "none": lambda first, second, x, z: first(x, z),
    "after the first": lambda first, second, x, z: _then(first(x, z), second, x),
    "of the same x": lambda first, second, x, z: first(x, z) + second(x, z),
    "added": lambda first, second, x, z: _sum(first(x, z), second(z, x)),
}


def _then(outputs, second, x):
    return [*second(tf.broadcast_to(outputs[0], tf.shape(x)), x), *outputs[1:]]


def _sum(one, two):
    return [one[0] + two[0], *one[1:], *two[1:]]


def graph(seed: int) -> Graph:
    """The random graph of a seed."""
    choices = _Choices(seed)
    shape = _SHAPES[int(choices.rng.integers(len(_SHAPES)))]
    policies = ("float32", "mixed_float16", "float16", "mixed_bfloat16")
    policy = policies[int(choices.rng.choice(4, p=(0.76, 0.1, 0.07, 0.07)))]
    inputs = draw_inputs((Input(shape), Input(shape)), policy, seed)
    knowledge = (STATIC, BATCH, RANK)[int(choices.rng.choice(3, p=(0.3, 0.5, 0.2)))]
    mode = ("infer", "frozen", "train")[int(choices.rng.choice(3, p=(0.5, 0.2, 0.3)))]

    view = choices.pick("x", _VIEWS, "as it is", 0.7)
    viewed = tuple(int(s) for s in view(tf.zeros(shape)).shape)
    first = _norm(choices, 1, viewed)
    join = choices.pick("second norm", _SECOND, "none", 0.6)
    second = _norm(choices, 2, viewed)
    after = choices.pick("then", _AFTER, "nothing", 0.5)
    wide = policy.startswith("mixed_")

    def make(builder):
        one, two = first(builder), second(builder)

        def function(x, z):
            given = x.dtype
            if wide and given != tf.float64:
                x, z = tf.cast(x, tf.float32), tf.cast(z, tf.float32)
            x, z = view(x), view(z)
            outputs = join(one, two, x, z)
            return [tf.cast(y, given) for y in (after(outputs[0], x, z), *outputs[1:])]

        return function

    line = Line("fuzz", make, {}, (Input(shape), Input(shape)))
    return Graph(seed, tuple(choices.words), line, policy, knowledge, mode, tuple(inputs))


def used_twice(once: Graph) -> Graph:
    """The training of a graph whose function is called twice with one x, by two losses: norms share
    their moments, their gammas, and the sum that is dx."""

    def make(builder):
        function = once.line.make(builder)

        def both(*args):
            again = [0.5 * tf.sin(y) for y in tf.nest.flatten(function(*args))]
            return [*tf.nest.flatten(function(*args)), *again]

        return both

    line = dataclasses.replace(once.line, make=make)
    return dataclasses.replace(once, line=line, mode="train", words=(*once.words, "twice"))


def _proper(choices: _Choices, shape: tuple[int, ...]) -> Callable:
    """A norm with a gamma and a beta, mostly: builder -> x -> y."""
    rank = len(shape)
    kinds = {"layer": (rank - 1,), "instance": (*range(1, rank - 1),), "last": (*range(2, rank),)}
    axes = choices.pick("norm over", kinds)
    centered = choices.pick("centered", {"yes": True, "no": False}, "yes")
    last = axes if axes[-1] == rank - 1 else (rank - 1,)
    param = tuple(n if axis in last else 1 for axis, n in enumerate(shape))[min(last) :]
    given = choices.pick("with", {"gamma, beta": "gb", "gamma": "g", "beta": "b"}, "gamma, beta")

    def make(builder: Builder) -> Callable:
        gamma = builder.parameter("gamma", param) if "g" in given else None
        beta = builder.parameter("beta", param) if "b" in given else None

        def function(x):
            mean, variance = tf.nn.moments(x, axes, keepdims=True)
            if not centered:
                mean, variance = None, tf.reduce_mean(x * x, axes, keepdims=True)
            y = (x if mean is None else x - mean) * tf.math.rsqrt(variance + 1e-3)
            y = y if gamma is None else y * tf.cast(gamma, x.dtype)
            return y if beta is None else y + tf.cast(beta, x.dtype)

        return function

    return make


def modulated(seed: int) -> Graph:
    """A norm whose y is scaled and shifted by means of z: mostly by one for each sample and
    channel, and in training."""
    once = graph(seed)
    choices = _Choices(seed)
    shape = ((3, 5, 8), (4, 4, 4), (2, 3, 4, 6), (2, 4, 4, 4), (2, 6, 1, 4))[
        choices.rng.integers(5)
    ]
    rank = len(shape)
    norm = _proper(choices, shape)
    wide = once.policy.startswith("mixed_")
    axes = {
        "samples and channels": [*range(1, rank - 1)],
        "samples": [*range(1, rank)],
        "channels": [*range(rank - 1)],
        "all but the second": [a for a in range(rank) if a != 1],
        "elements": [],
    }
    of_scale = choices.pick("scale of", axes, "samples and channels", 0.85)
    of_offset = choices.pick("offset of", axes, "samples and channels", 0.85)
    steps: dict[str, Callable] = {
        "y * s + t": lambda y, s, t: y * s + t,
        "y * (1 + s) + t": lambda y, s, t: y * (1 + s) + t,
        "t + s * y": lambda y, s, t: t + s * y,
        "y * s": lambda y, s, t: y * s,
        "y + t": lambda y, s, t: y + t,
        "(y + t) * s": lambda y, s, t: (y + t) * s,
        "y * s - t": lambda y, s, t: y * s - t,
        "s from y": lambda y, s, t: y * (s + tf.reduce_mean(y, of_scale, keepdims=True)) + t,
    }
    step = choices.pick("modulated as", steps, "y * s + t", 0.4)
    read = choices.pick("reads y, too", {"nothing": 0, "a loss": 1, "the product": 2}, "nothing")
    mode = choices.pick("mode", {m: m for m in ("infer", "frozen", "train")}, "train", 0.5)
    after = choices.pick("then", _AFTER, "nothing", 0.6)

    def make(builder):
        inner = norm(builder)

        def function(x, z):
            narrow = wide and x.dtype != tf.float64
            y = tf.cast(inner(tf.cast(x, tf.float32)), x.dtype) if narrow else inner(x)
            s = tf.reduce_mean(z, of_scale, keepdims=True)
            t = tf.sin(tf.reduce_mean(3 * z, of_offset, keepdims=True))
            besides = [[], [tf.sin(y)], [tf.sin(y * s)]][read]
            return [after(step(y, s, t), x, z), *besides]

        return function

    inputs = (Input(shape), Input(shape))
    line = Line("fuzz", make, {}, inputs)
    arrays = tuple(draw_inputs(inputs, once.policy, seed))
    arguments = tuple(choices.words), line, once.policy, once.knowledge, mode, arrays
    return Graph(seed, *arguments, rounded_to=compute_dtype(once.policy))
