"""Functions that XLA compiles and nobody traces for it: loaded ones, and those traced before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved import elsewhere, holds_fused_ops
from traced import SHAPE, Layer, close, found, ops_in

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _trace_called

pytestmark = pytest.mark.usefixtures("every_norm")

OPEN = tf.TensorSpec([None, *SHAPE[1:]])


class Model(tf.Module):
    """Two functions around a layer norm, one of which XLA compiles, to be saved and loaded."""

    def __init__(self, layer: Layer, after: Any = tf.identity) -> None:
        self.layer, self.after = layer, after

    @tf.function(input_signature=[OPEN], autograph=False)
    def ordinary(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.after(self._inner(x)), "x": x}

    @tf.function(input_signature=[OPEN], autograph=False, jit_compile=True)
    def compiled(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.after(self._inner(x)), "x": x}

    @tf.function(autograph=False)
    def _inner(self, x: tf.Tensor) -> tf.Tensor:
        return self.layer(x)


def load(model: Model, folder: Path) -> Any:
    tf.saved_model.save(model, str(folder))
    nv_norms_rewriter.clear_report()
    return tf.saved_model.load(str(folder))


def compile_xla(function: Any) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def gradients_of(function: Any, variables: Any, x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
    """y, dx and those of the variables."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return [y, *tape.gradient(y, [x, *variables], output_gradients=dy)]


def close_gradients(layer: Layer, got: Any, x: tf.Tensor, dy: Any) -> None:
    close(got[0], layer.exact(x))
    for actual, exact in zip(got[1:], layer.exact_gradients(x, dy), strict=True):
        close(actual, exact)


@pytest.mark.parametrize("wrapped", [False, True])
def test_traced_before(layer: Layer, x: tf.Tensor, wrapped: bool) -> None:
    if wrapped:
        inner = before = tf.compat.v1.wrap_function(lambda x: layer(x), [OPEN])
    else:
        inner = tf.function(lambda x: layer(x), [OPEN], autograph=False)
        before = inner.get_concrete_function()
    outer = compile_xla(lambda x: 2.0 * inner(x))
    close(outer(x), 2.0 * layer.exact(x))
    assert found() == 1
    assert ops_in(outer.get_concrete_function(x).graph) == {"FusedLayerNorm"}
    assert not ops_in(before.graph), "others may call it"
    close(before(x), layer.exact(x))


def test_gradients_of_what_was_traced_before(layer: Layer, x: tf.Tensor, dy: tf.Tensor) -> None:
    inner = tf.function(lambda x: layer(x), [OPEN], autograph=False)
    inner(x)
    nv_norms_rewriter.clear_report()
    variables = [layer.gamma, layer.beta]
    outer = compile_xla(lambda x, dy: gradients_of(inner, variables, x, dy))
    close_gradients(layer, outer(x, dy), x, dy)
    assert (found(), found("backward")) == (1, 1)
    outside = gradients_of(compile_xla(lambda x: inner(x)), variables, x, dy)
    close_gradients(layer, outside, x, dy)
    close_gradients(layer, gradients_of(inner, variables, x, dy), x, dy)


@pytest.mark.parametrize("inside", [False, True])
def test_differentiated_before(layer: Layer, x: tf.Tensor, dy: tf.Tensor, inside: bool) -> None:
    """Then its graph has more outputs than the function, and a norm may be fused in it already."""
    variables = [layer.gamma, layer.beta]
    inner = tf.function(lambda x: layer(x), [OPEN], autograph=False)
    inner.get_concrete_function()

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        return gradients_of(inner, variables, x, dy)

    before = tf.function(step, autograph=False) if inside else step
    close_gradients(layer, before(x, dy), x, dy)
    nv_norms_rewriter.clear_report()
    close(compile_xla(lambda x: inner(x))(x), layer.exact(x))
    close_gradients(layer, compile_xla(step)(x, dy), x, dy)
    assert (found(), found("backward")) == ((2, 1) if inside else (0, 0))


def test_second_derivative_of_what_was_traced_before(layer: Layer, x: tf.Tensor) -> None:
    loss_of = lambda x: tf.reduce_sum(layer(x) ** 3)  # noqa: E731
    inner = tf.function(loss_of, [OPEN], autograph=False)

    def second(x: tf.Tensor, loss_of: Any = inner) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = loss_of(x)
            norm = tf.reduce_sum(tape.gradient(loss, x) ** 2)
        return outer.gradient(norm, x)

    inner.get_concrete_function()
    with nv_norms_rewriter.disabled():
        expected = second(x, loss_of)
    got = compile_xla(lambda x: second(x))(x)
    assert found() == 1
    np.testing.assert_allclose(got, expected, 1e-3, 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["ordinary", "compiled"])
def test_loaded(layer: Layer, x: tf.Tensor, dy: tf.Tensor, tmp_path: Path, name: str) -> None:
    loaded = load(Model(layer), tmp_path)
    function = getattr(loaded, name)
    variables = [loaded.layer.gamma, loaded.layer.beta]
    calls = function if name == "compiled" else compile_xla(lambda x: function(x))
    got = calls(x)
    close(got["y"], layer.exact(x))
    np.testing.assert_array_equal(got["x"], x)
    assert found() == (1 if name == "compiled" else 2)
    got = compile_xla(lambda x, dy: gradients_of(lambda x: calls(x)["y"], variables, x, dy))(x, dy)
    close_gradients(layer, got, x, dy)
    close_gradients(layer, gradients_of(lambda x: calls(x)["y"], variables, x, dy), x, dy)
    assert found("backward") > 0


def test_loaded_signature_that_xla_compiles(layer: Layer, x: tf.Tensor, tmp_path: Path) -> None:
    model = Model(layer)
    tf.saved_model.save(model, str(tmp_path), {"serving_default": model.compiled})
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert found() == 1
    got = serve(x)
    close(got["y"], layer.exact(x))
    np.testing.assert_array_equal(got["x"], x)


def test_what_calls_a_loaded_function_is_saved(layer: Layer, x: tf.Tensor, tmp_path: Path) -> None:
    loaded = load(Model(layer), tmp_path / "first")

    class Around(tf.Module):
        def __init__(self) -> None:
            self.inner = loaded

        @tf.function(input_signature=[OPEN], autograph=False, jit_compile=True)
        def serve(self, x: tf.Tensor) -> tf.Tensor:
            return 2.0 * self.inner.ordinary(x)["y"] + self.inner.compiled(x)["y"]

    around = Around()
    concrete = around.serve.get_concrete_function()
    assert ops_in(concrete.graph) == {"FusedLayerNorm"}
    tf.saved_model.save(around, str(tmp_path / "second"), {"serve": concrete})
    assert not holds_fused_ops(tmp_path / "second")
    close(elsewhere(tmp_path / "second", x, "serve")["output_0"], 3.0 * layer.exact(x))


@pytest.mark.parametrize("after", [tf.nn.silu, tf.nn.relu])
def test_gradients_that_a_program_gives(
    layer: Layer, x: tf.Tensor, dy: tf.Tensor, tmp_path: Path, after: Any
) -> None:
    """silu has one of its own, which reads tensors of the graph in which it was traced."""
    model = Model(layer, after)
    model.ordinary.get_concrete_function()
    y = layer.exact(x)
    sigmoid = 1 / (1 + np.exp(-y))
    values = y * sigmoid if after is tf.nn.silu else np.maximum(y, 0)
    slope = sigmoid * (1 + y * (1 - sigmoid)) if after is tf.nn.silu else y > 0
    exact = [values, *layer.exact_gradients(x, dy * slope)]
    loaded = load(model, tmp_path)
    for owner, name in [(model, "ordinary"), (loaded, "ordinary"), (loaded, "compiled")]:
        variables = [owner.layer.gamma, owner.layer.beta]
        function = getattr(owner, name)
        calls = lambda x, function=function: function(x)["y"]  # noqa: E731
        close(compile_xla(calls)(x), values)
        step = compile_xla(lambda x, dy: gradients_of(calls, variables, x, dy))  # noqa: B023
        for actual, wanted in zip(step(x, dy), exact, strict=True):
            close(actual, wanted)
        symbolic = compile_xla(lambda x, dy: tf.gradients(calls(x), x, dy))  # noqa: B023
        close(symbolic(x, dy)[0], exact[1])
        for actual, wanted in zip(gradients_of(calls, variables, x, dy), exact, strict=True):
            close(actual, wanted)


@pytest.mark.parametrize("loaded", [False, True])
def test_loop_and_branch(
    layer: Layer, x: tf.Tensor, dy: tf.Tensor, tmp_path: Path, loaded: bool
) -> None:
    """Whose gradients TensorFlow makes of the graphs that it has of them: they stay."""

    def compute(x: tf.Tensor) -> tf.Tensor:
        step = lambda i, y: (i + 1, layer(y))  # noqa: E731
        y = tf.while_loop(lambda i, y: i < 2, step, (0, layer(x)), maximum_iterations=2)[1]
        return tf.cond(tf.reduce_sum(x) > 1e9, lambda: y, lambda: layer(y))

    inner = tf.function(compute, [OPEN], autograph=False)
    inner.get_concrete_function()
    if loaded:
        module = tf.Module()
        module.layer, module.inner = layer, inner
        tf.saved_model.save(module, str(tmp_path))
        module = tf.saved_model.load(str(tmp_path))
        inner = module.inner
    values = [x.numpy().astype(np.float64)]
    for _ in range(4):
        values.append(layer.exact(values[-1]))
    dx = np.asarray(dy, np.float64)
    for value in reversed(values[:-1]):
        dx = layer.exact_gradients(value, dx)[0]
    close(compile_xla(lambda x: inner(x))(x), values[-1])
    assert found() == 0
    if loaded:  # TensorFlow has no gradient of a loaded branch inside XLA
        return
    y, got = compile_xla(lambda x, dy: gradients_of(inner, [], x, dy))(x, dy)
    close(y, values[-1])
    np.testing.assert_allclose(got, dx, 1e-4, 1e-4 * np.abs(dx).max())
    close(compile_xla(lambda x: inner(x))(x), values[-1])
    assert found() == 0


@pytest.mark.parametrize("loaded", [False, True])
def test_compiled_function_inside(
    layer: Layer, x: tf.Tensor, dy: tf.Tensor, tmp_path: Path, loaded: bool
) -> None:
    """As Keras has one around a convolution of each channel: it stays a call."""
    sin = compile_xla(lambda y: tf.sin(y))
    model = Model(layer, lambda y: layer(sin(y)))
    model.ordinary.get_concrete_function()
    inner = layer.exact(x)
    y = layer.exact(np.sin(inner))
    of_sin, dgamma, dbeta = layer.exact_gradients(np.sin(inner), dy)
    dx, *more = layer.exact_gradients(x, of_sin * np.cos(inner))
    owner = load(model, tmp_path) if loaded else model
    nv_norms_rewriter.clear_report()
    calls = lambda x: owner.ordinary(x)["y"]  # noqa: E731
    variables = [owner.layer.gamma, owner.layer.beta]
    step = lambda x, dy: gradients_of(calls, variables, x, dy)  # noqa: E731
    before = tf.function(step, autograph=False)(x, dy)  # which gives its call more outputs
    for got in (before, compile_xla(step)(x, dy)):
        for actual, exact in zip(got, [y, dx, dgamma + more[0], dbeta + more[1]], strict=True):
            np.testing.assert_allclose(actual, exact, 1e-4, 1e-4 * np.abs(exact).max())
    close(compile_xla(lambda x: calls(x))(x), y)
    assert (found(), found("backward")) == (4, 2)


def test_effects_stay_in_order(layer: Layer, x: tf.Tensor) -> None:
    state = tf.Variable(1.0)

    @tf.function(autograph=False)
    def twice() -> None:
        state.assign(state * 2.0)

    @tf.function(input_signature=[OPEN], autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        state.assign_add(1.0)
        twice()
        y = layer(x) + state
        twice()
        state.assign_add(1.0)
        return y

    inner.get_concrete_function()

    @tf.function(jit_compile=True, autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        state.assign(3.0)
        y = inner(x)
        twice()
        return y

    close(outer(x), layer.exact(x) + 8.0)
    assert state.numpy() == 2.0 * (2 * 8.0 + 1.0)
    assert found() == 1


def test_arguments_beside_the_norm(layer: Layer, x: tf.Tensor) -> None:
    """One that nobody reads, one that is handed on, a number, a sparse tensor."""

    @tf.function(autograph=False)
    def inner(x, unread, sparse, scale=2.0):
        return {"y": (layer(x) * scale, None, [x, sparse])}

    sparse = tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])
    inner(x, unread=x, sparse=sparse, scale=3.0)
    nv_norms_rewriter.clear_report()

    @tf.function(jit_compile=True, autograph=False)
    def outer(x, values):
        given = tf.SparseTensor(sparse.indices, values, sparse.dense_shape)
        y, none, (same, handed_on) = inner(x, unread=x, sparse=given, scale=3.0)["y"]
        assert none is None
        return y, same, handed_on.values

    y, same, values = outer(x, sparse.values)
    close(y, 3.0 * layer.exact(x))
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(values, [1.0, 2.0])
    assert found() == 1


def test_function_without_norms_is_the_one_that_was_given(x: tf.Tensor) -> None:
    inner = tf.function(lambda x: tf.sqrt(tf.abs(x)), [OPEN], autograph=False)
    name = inner.get_concrete_function().function_def.signature.name
    graph = compile_xla(lambda x: inner(x)).get_concrete_function(x).graph
    assert name in {op.node_def.attr["f"].func.name for op in graph.get_operations()}


def test_switched_off(layer: Layer, x: tf.Tensor, tmp_path: Path) -> None:
    inner = tf.function(lambda x: layer(x), [OPEN], autograph=False)
    inner.get_concrete_function()
    with nv_norms_rewriter.disabled():
        tf.saved_model.save(Model(layer), str(tmp_path))
        loaded = tf.saved_model.load(str(tmp_path))
        close(compile_xla(lambda x: inner(x))(x), layer.exact(x))
        close(loaded.compiled(x)["y"], layer.exact(x))
    nv_norms_rewriter.configure(xla="none")
    close(compile_xla(lambda x: inner(x))(x), layer.exact(x))
    assert found() == 0


def test_copy_that_cannot_be_made(
    layer: Layer, x: tf.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what was there runs, and the report says so."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("cannot be copied today")

    tf.saved_model.save(Model(layer), str(tmp_path))
    inner = tf.function(lambda x: layer(x), [OPEN], autograph=False)
    inner.get_concrete_function()
    monkeypatch.setattr(_trace_called, "_copy", fail)
    close(compile_xla(lambda x: inner(x))(x), layer.exact(x))
    loaded = tf.saved_model.load(str(tmp_path))
    close(loaded.compiled(x)["y"], layer.exact(x))
    assert "cannot be copied today" in str(nv_norms_rewriter.report())
    assert found() == 0


@pytest.mark.parametrize("how", ["function", "trace", "keras"])
def test_errors_of_a_program_end_where_they_do_without_us(how: str) -> None:
    """TensorFlow and Keras leave their own frames out, and so ours between these."""

    def refuse(x: Any) -> None:
        raise ValueError("no number")

    check = keras.layers.Lambda(lambda x: tf.debugging.check_numerics(x, "no number"))
    model = keras.Sequential([keras.Input((2,)), check])
    model.compile(jit_compile=False)  # in XLA nothing is checked
    calls = {
        "function": tf.function(lambda x: tf.debugging.check_numerics(x, "no number")),
        "trace": tf.function(refuse),
        "keras": model.predict,
    }
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="no number") as caught:
        calls[how](tf.fill((3, 2), float("nan")))
    folder = Path(nv_norms_rewriter.__file__).parent
    assert not [frame for frame in caught.traceback if folder in Path(frame.path).parents]


def test_compiled_function_that_was_traced_while_switched_off(layer: Layer, x: tf.Tensor) -> None:
    inner = compile_xla(lambda x: layer(x))
    with nv_norms_rewriter.disabled():
        inner(x)
    close(compile_xla(lambda x: inner(x))(x), layer.exact(x))
    assert found() == 0


def test_keras_layer_of_a_saved_model(rng: np.random.Generator, tmp_path: Path) -> None:
    x = rng.normal(size=(6, 8)).astype(np.float32)
    inner = keras.Sequential([keras.Input((8,)), keras.layers.LayerNormalization()])
    gamma, beta = rng.uniform(0.5, 2, 8), rng.normal(size=8)
    inner.set_weights([gamma, beta])
    inner.export(str(tmp_path), verbose=False)
    nv_norms_rewriter.clear_report()
    served = keras.layers.TFSMLayer(str(tmp_path), call_endpoint="serve")
    model = keras.Sequential([keras.Input((8,)), served])
    model.compile(jit_compile=True)
    close(model.predict(x, verbose=0), oracle.layer_norm(x, gamma, beta, -1, 1e-3).y)
    assert found() == 1
