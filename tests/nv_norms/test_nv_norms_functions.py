"""nv_norms.fused_*_norm against the formulas: values, gradients, modes, types, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from nv_norms_cases import CASES, DTYPES, EPSILON, Case, assert_close

import nv_norms

Run = Callable[[Callable[..., Any]], Callable[..., Any]]


def _check(case: Case, run: Run, rng: np.random.Generator, dtype: str, device: str) -> None:
    x, scale, offset, dy = case.random(rng, dtype)

    @run
    def step(x: Any, scale: Any, offset: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            y, mean, rstd = case.call(x, scale, offset)
        gradients = tape.gradient(y, [x, scale, offset], output_gradients=dy)
        return [y, rstd, *gradients] + ([] if mean is None else [mean])

    with tf.device(device):
        y, rstd, dx, dscale, doffset, *mean = step(*map(tf.constant, (x, scale, offset, dy)))
    expected = case.forward(x, scale, offset)
    gradients = case.backward(dy, x, scale)
    statistics = "float64" if dtype == "float64" else "float32"
    assert y.dtype == dx.dtype == tf.as_dtype(dtype)
    assert rstd.dtype == tf.as_dtype(statistics)
    assert_close(y, expected.y, dtype, "y")
    assert_close(rstd, expected.rstd, statistics, "inv_std")
    for value in mean:
        assert_close(value, expected.mean, statistics, "mean", size=2)
    assert_close(dx, gradients.dx, dtype, "dx", 16)
    assert_close(dscale, gradients.dgamma, statistics, "dscale", 16)
    assert_close(doffset, gradients.dbeta, statistics, "doffset", 16)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_in_every_mode(
    case: Case, run: Run, rng: np.random.Generator, device: str
) -> None:
    _check(case, run, rng, "float32", device)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_values_and_gradients_of_every_type(
    case: Case, dtype: str, run: Run, rng: np.random.Generator, device: str
) -> None:
    _check(case, run, rng, dtype, device)


@pytest.mark.parametrize("parameters", list(DTYPES))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_types_of_parameters(
    dtype: str, parameters: str, rng: np.random.Generator, device: str
) -> None:
    case = Case("layer", (4, 24))
    x, scale, offset, dy = case.random(rng, dtype, parameters)
    with tf.device(device):
        tensors = [tf.constant(v) for v in (x, scale, offset)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = case.call(*tensors)[0]
        gradients = tape.gradient(y, tensors, output_gradients=tf.constant(dy))
    assert y.dtype == tf.as_dtype(dtype)
    assert [g.dtype for g in gradients] == [v.dtype for v in tensors]
    expected = case.backward(dy, x, scale)
    assert_close(y, case.forward(x, scale, offset).y, dtype, "y")
    # Through mean and inv_std, which are float32 here, whatever the parameters are.
    precision = "float32" if parameters == "float64" else parameters
    assert_close(gradients[1], expected.dgamma, precision, "dscale", 16)
    assert_close(gradients[2], expected.dbeta, precision, "doffset", 16)


@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("case", CASES[1::4], ids=str)
def test_scale_and_offset_are_optional(
    case: Case, with_scale: bool, with_offset: bool, run: Run, rng: np.random.Generator
) -> None:
    x, scale, offset, dy = case.random(rng)
    scale = scale if with_scale else None
    offset = offset if with_offset else None
    given = [tf.constant(v) for v in (x, scale, offset) if v is not None]

    @run
    def step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            rest = list(values[1:])
            y = case.call(
                values[0], rest.pop(0) if with_scale else None, rest[0] if with_offset else None
            )[0]
        return y, tape.gradient(y, values, output_gradients=tf.constant(dy))

    y, gradients = step(given)
    assert_close(y, case.forward(x, scale, offset).y, "float32", "y")
    expected = case.backward(dy, x, scale)
    wanted = [expected.dx] + [expected.dgamma] * with_scale + [expected.dbeta] * with_offset
    for got, want in zip(gradients, wanted, strict=True):
        assert_close(got, want, "float32", "a gradient", 16)


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[9], CASES[14]], ids=str)
def test_second_gradients(case: Case, rng: np.random.Generator) -> None:
    """The derivative of <dx, v> along w, against central differences of the formula's dx."""
    x, scale, offset, dy = case.random(rng, "float64")
    v, w = rng.normal(size=(2, *case.shape))
    given = tf.constant(x)
    with tf.GradientTape() as outer:
        outer.watch(given)
        with tf.GradientTape() as inner:
            inner.watch(given)
            y = case.call(given, scale, offset)[0]
        along_v = tf.reduce_sum(inner.gradient(y, given, output_gradients=tf.constant(dy)) * v)
    got = float(tf.reduce_sum(outer.gradient(along_v, given) * w))
    h = 1e-5
    sides = [np.sum(case.backward(dy, x + step * w, scale).dx * v) for step in (h, -h)]
    expected = (sides[0] - sides[1]) / (2 * h)
    assert abs(got - expected) <= 1e-6 * max(1, abs(expected))


def test_tape_outside_of_the_function(rng: np.random.Generator) -> None:
    case = CASES[2]
    x, scale, offset, dy = case.random(rng)
    variables = [tf.Variable(v) for v in (x, scale, offset)]
    call = tf.function(lambda: case.call(*variables)[0])
    with tf.GradientTape() as tape:
        y = call()
    got = tape.gradient(y, variables, output_gradients=tf.constant(dy))
    for value, want, name in zip(got, case.backward(dy, x, scale), ["x", "s", "o"], strict=True):
        assert_close(value, want, "float32", name, 16)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("known", ["channels", "rank", "nothing"])
def test_shapes_unknown_while_tracing(case: Case, known: str, rng: np.random.Generator) -> None:
    x, scale, offset, dy = case.random(rng)
    rank = len(case.shape)
    sizes = [n if a in case.parameter_axes else None for a, n in enumerate(case.shape)]
    shape = {"channels": sizes, "rank": [None] * rank, "nothing": None}[known]
    spec = tf.TensorSpec(shape, tf.float32)
    if known == "nothing":
        spec = tf.TensorSpec(None, tf.float32)

    @tf.function(input_signature=[spec, spec])
    def step(x: tf.Tensor, dy: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _, rstd = case.call(x, scale, offset)
        return y, rstd, tape.gradient(y, x, output_gradients=dy)

    structured = step.get_concrete_function().structured_outputs
    assert structured[0].shape.is_compatible_with(case.shape)
    y, rstd, dx = step(x, dy)
    expected = case.forward(x, scale, offset)
    assert structured[1].shape.is_compatible_with(expected.rstd.shape)
    assert_close(y, expected.y, "float32", "y")
    assert_close(rstd, expected.rstd, "float32", "inv_std")
    assert_close(dx, case.backward(dy, x, scale).dx, "float32", "dx", 16)


@pytest.mark.parametrize(
    "case",
    [
        Case("layer", (0, 0)),
        Case("layer", (0, 8)),
        Case("layer", (3, 0)),
        Case("rms", (0, 4)),
        Case("instance", (0, 0, 0, 0, 0), data_format="NC..."),
        Case("instance", (0, 3, 3, 4)),
        Case("group", (0, 3, 3, 4), groups=2),
    ],
    ids=str,
)
def test_empty_tensors(case: Case, device: str) -> None:
    x = np.zeros(case.shape, np.float32)
    scale = np.ones(case.parameter_shape, np.float32)
    with tf.device(device):
        tensors = [tf.constant(v) for v in (x, scale, scale)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y, mean, rstd = case.call(*tensors)
        dx, dscale, doffset = tape.gradient(y, tensors)
    channels = case.shape[case.channel_axis]
    statistics = {
        "layer": (case.shape[0],),
        "rms": (case.shape[0],),
        "instance": (case.shape[0], channels),
        "group": (case.shape[0], case.groups),
    }[case.kind]
    assert y.shape == dx.shape == case.shape
    assert rstd.shape == statistics and (mean is None or mean.shape == statistics)
    assert dscale.shape == doffset.shape == case.parameter_shape
    np.testing.assert_array_equal(dscale, 0)


def test_flat_parameters_and_those_with_axes_of_size_one(rng: np.random.Generator) -> None:
    case = Case("layer", (2, 3, 4), (1, 2))
    x, scale, offset, _ = case.random(rng)
    expected = case.forward(x, scale, offset).y
    for shape in [(12,), (3, 4), (1, 3, 4)]:
        y = case.call(x, scale.reshape(shape), offset.reshape(shape))[0]
        assert_close(y, expected, "float32", str(shape))


@pytest.mark.parametrize("axis", [np.array([1, 2]), np.array(-1), (np.int64(1),), range(1, 3)])
def test_axis_as_numpy_has_it(axis: Any, rng: np.random.Generator) -> None:
    case = Case("layer", (2, 3, 4), tuple(np.atleast_1d(axis)))
    x, scale, offset, _ = case.random(rng)
    y = nv_norms.fused_layer_norm(x, scale, offset, axis, EPSILON).y
    assert_close(y, case.forward(x, scale, offset).y, "float32", "y")


def test_axis_follows_the_shape_of_scale(rng: np.random.Generator) -> None:
    case = Case("layer", (5, 3, 3, 4), (1, 2, 3))
    x, scale, offset, _ = case.random(rng)
    y, mean, inv_std = nv_norms.fused_layer_norm(x, scale, offset)
    expected = case.forward(x, scale, offset)
    assert_close(y, expected.y, "float32", "y")
    assert_close(mean, expected.mean, "float32", "mean", size=2)
    assert_close(inv_std, expected.rstd, "float32", "inv_std")


def test_epsilon_is_kept_in_float64(rng: np.random.Generator) -> None:
    case = Case("layer", (4, 8))
    x = rng.normal(0, 1e-6, case.shape)
    for epsilon in (1e-12, 0.1, 1 / 3):
        y = case.call(x, None, None, epsilon)[0]
        assert_close(y, case.forward(x, None, None, epsilon).y, "float64", f"epsilon {epsilon}")


@pytest.mark.parametrize("epsilon", [0, np.finfo(np.float32).tiny, 1e-30, 1e38])
def test_the_ends_of_epsilon(epsilon: float, run: Run, rng: np.random.Generator) -> None:
    case = Case("rms", (4, 8))
    x = rng.normal(0, np.sqrt(float(epsilon)) or 1, case.shape)
    y = run(lambda x: case.call(x, None, None, epsilon)[0])(tf.constant(x))
    # float32's precision: the second part of a small epsilon is subnormal.
    assert_close(y, case.forward(x, None, None, float(epsilon)).y, "float32", "y", 1)


def test_large_means_and_constant_rows(rng: np.random.Generator, device: str) -> None:
    x = (1e6 + rng.integers(-8, 8, (6, 1000))).astype(np.float32)
    x[0] = 1e6
    with tf.device(device):
        y, mean, _ = nv_norms.fused_layer_norm(tf.constant(x))
    expected = Case("layer", x.shape).forward(x, None, None)
    assert_close(y, expected.y, "float32", "y", 16)
    assert_close(mean, expected.mean, "float32", "mean", size=2)
    np.testing.assert_array_equal(y[0], 0)


def test_a_nan_stays_in_its_row(rng: np.random.Generator, device: str) -> None:
    x = rng.normal(size=(4, 300)).astype(np.float32)
    x[1, 7] = np.nan
    with tf.device(device):
        y = nv_norms.fused_layer_norm(tf.constant(x)).y.numpy()
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2, 3]]).all()


def test_the_same_input_gives_the_same_bits(rng: np.random.Generator, device: str) -> None:
    case = Case("instance", (2, 33, 35, 7))
    x, scale, offset, dy = case.random(rng)

    def step() -> list[bytes]:
        with tf.device(device):
            tensors = [tf.constant(v) for v in (x, scale, offset)]
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = case.call(*tensors)[0]
            gradients = tape.gradient(y, tensors, output_gradients=tf.constant(dy))
        return [value.numpy().tobytes() for value in [y, *gradients]]

    assert step() == step()


def test_variables_of_keras_and_lists(rng: np.random.Generator) -> None:
    import keras

    case = Case("layer", (4, 8))
    x, scale, offset, _ = case.random(rng)
    expected = case.forward(x, scale, offset).y
    for given in (keras.Variable, tf.Variable, list, np.asarray):
        assert_close(case.call(x, given(scale), given(offset))[0], expected, "float32", str(given))
