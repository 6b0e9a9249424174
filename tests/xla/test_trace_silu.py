"""silu behind a norm, in functions that are traced for XLA on a GPU.

tf.nn.silu has a gradient of its own, for which an IdentityN reads what goes into it. No GPU is
needed: what is traced for one runs on a CPU, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import found, running
from traced_activations import SHAPE, WAYS, Norm, close

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _xla_rule

pytestmark = pytest.mark.usefixtures("every_norm", "enabled", "gpu")


@pytest.fixture
def x(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(1.0, 2.0, SHAPE), tf.float32)


def by_hand(y: tf.Tensor) -> tf.Tensor:
    return y * tf.sigmoid(y)


def exact(norm: Norm, x: Any) -> np.ndarray:
    y = norm.exact(x, 1.0)
    return y / (1 + np.exp(-y))


def exact_step(norm: Norm, x: Any, da: Any) -> list[np.ndarray]:
    """a, dx, dgamma, dbeta in float64."""
    y = norm.exact(x, 1.0)
    s = 1 / (1 + np.exp(-y))
    dy = np.asarray(da) * s * (1 + y * (1 - s))
    gradients = oracle.backward(dy, x, norm.gamma.numpy(), (1, 2), (3,), 1e-3)
    return [exact(norm, x), *gradients]


def silus(graph: Any) -> list[bool]:
    """Of the fused ops that the outputs need, but for what goes into an IdentityN and ends there:
    XLA drops it."""
    names = ("FusedInstanceNorm", "FusedInstanceNormGrad")
    there = set(running(graph))
    outputs = {id(tensor) for tensor in graph.outputs}

    def is_read(tensor: tf.Tensor) -> bool:
        readers = set(tensor.consumers()) & there
        if id(tensor) in outputs or any(reader.type != "IdentityN" for reader in readers):
            return True
        pairs = [(i, o) for r in readers for i, o in zip(r.inputs, r.outputs, strict=True)]
        return any(is_read(o) for i, o in pairs if i is tensor)

    made = [op for op in there if op.type in names]
    return [op.get_attr("silu") for op in made if any(map(is_read, op.outputs))]


def sigmoids(graph: Any) -> int:
    return sum(op.type == "Sigmoid" for op in running(graph))


@pytest.mark.parametrize("way", WAYS)
def test_step(way: Callable, norm: Norm, x: tf.Tensor, da: tf.Tensor) -> None:
    @tf.function(autograph=False, jit_compile=True)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = tf.nn.silu(way(norm, x))
        return [a, *tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)]

    graph = step.get_concrete_function(x).graph
    assert silus(graph) == [True, True] and sigmoids(graph) == 0
    close(step(x), exact_step(norm, x, da))
    assert found() == found("backward") == (way is Norm.in_ops)
    assert all(r.silu and r.negative_slope == 1.0 for r in nv_norms_rewriter.report())
    if way is Norm.in_ops:
        assert "fused with silu" in str(nv_norms_rewriter.report())


@pytest.mark.parametrize("function", [tf.nn.silu, by_hand, keras.activations.silu])
@pytest.mark.parametrize("way", WAYS)
def test_forward_alone(way: Callable, function: Callable, norm: Norm, x: tf.Tensor) -> None:
    run = tf.function(lambda x: 2.0 * function(way(norm, x)), jit_compile=True, autograph=False)
    graph = run.get_concrete_function(x).graph
    assert silus(graph) == [True] and sigmoids(graph) == 0
    close([run(x)], [2.0 * exact(norm, x)])


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "function"])
@pytest.mark.parametrize("function", [tf.nn.silu, by_hand])
@pytest.mark.parametrize("way", WAYS)
def test_tape_outside(
    way: Callable, function: Callable, compiled: bool, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    run = tf.function(lambda x: function(way(norm, x)), jit_compile=compiled, autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a = run(x)
    gradients = tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)
    close([a, *gradients], exact_step(norm, x, da))


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "function"])
def test_a_gradient_that_is_not_silus(
    compiled: bool, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    """Somebody's own gradient of the same function is what a tape gets, inside and outside."""

    @tf.custom_gradient
    def straight(y: tf.Tensor) -> tuple:
        return y * tf.sigmoid(y), lambda da: 3.0 * da

    dx, dgamma, dbeta = oracle.backward(3.0 * da.numpy(), x, norm.gamma.numpy(), (1, 2), (3,), 1e-3)
    expected = [exact(norm, x), dx, dgamma, dbeta]
    variables = [norm.gamma, norm.beta]
    run = tf.function(lambda x: straight(norm.in_ops(x)), jit_compile=compiled, autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a = run(x)
    close([a, *tape.gradient(a, [x, *variables], output_gradients=da)], expected)

    @tf.function(jit_compile=compiled, autograph=False)
    def inside(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = straight(norm.in_ops(x))
        return [a, *tape.gradient(a, [x, *variables], output_gradients=da)]

    close(inside(x), expected)


@pytest.mark.parametrize("what", ["y", "dy", "sigmoid"])
def test_what_goes_out_of_the_function_stays(
    what: str, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = norm.in_ops(x)
            a = tf.nn.silu(y)
        found = [a, *tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)]
        if what == "dy":
            return [*found, tape.gradient(a, y, output_gradients=da)]
        return [*found, y if what == "y" else tf.sigmoid(y)]

    graph = step.get_concrete_function(x).graph
    assert set(silus(graph)) == {False} and sigmoids(graph) > 0
    *got, last = step(x)
    close(got, exact_step(norm, x, da))
    y = norm.exact(x, 1.0)
    s = 1 / (1 + np.exp(-y))
    close([last], [{"y": y, "sigmoid": s, "dy": da * s * (1 + y * (1 - s))}[what]])


@pytest.mark.parametrize("function", [tf.nn.silu, by_hand])
def test_second_derivatives(function: Callable, norm: Norm, x: tf.Tensor) -> None:
    def penalty(x: tf.Tensor) -> list[tf.Tensor]:
        wanted = [x, norm.gamma, norm.beta]
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                a = function(norm.in_ops(x))
                loss = tf.reduce_sum(tf.sin(a) * x)
            first = tape.gradient(loss, wanted)
            squares = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
        return outer.gradient(squares, wanted)

    with nv_norms_rewriter.disabled():
        expected = penalty(x)
    got = tf.function(penalty, jit_compile=True, autograph=False)(x)
    for actual, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, other, 1e-3, 2e-4 * np.abs(other).max())


@pytest.mark.parametrize("training", [True, False])
def test_norm_left_to_xla_keeps_its_silu(
    training: bool, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    def run(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = tf.nn.silu(norm.in_ops(x))
        return [a, tape.gradient(a, x, output_gradients=da)] if training else [a]

    nv_norms_rewriter.configure(xla="none")
    traced = tf.function(run, jit_compile=True, autograph=False).get_concrete_function(x)
    ops = [op.type for op in running(traced.graph)]
    assert not any(op.startswith("Fused") for op in ops) and "Sigmoid" in ops
    assert {r.reason for r in nv_norms_rewriter.report()} == {"left_to_xla"}
    close(traced(x)[:1], [exact(norm, x)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("left", [(), (0,), (1,), (0, 1)])
def test_some_are_left_to_xla(
    left: tuple[int, ...], x: tf.Tensor, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = [Norm(rng) for _ in range(2)]
    asked: list[_xla_rule.Norm] = []

    def why_left(norm: _xla_rule.Norm) -> str:
        asked.append(norm)
        return "It does not pay." if len(asked) - 1 in left else ""

    monkeypatch.setattr(_xla_rule, "why_left", why_left)
    nv_norms_rewriter.configure(xla="auto")

    def run(x: tf.Tensor, training: bool) -> list[tf.Tensor]:
        variables = [v for norm in norms for v in (norm.gamma, norm.beta)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = tf.nn.silu(norms[0].in_ops(x))
            a = tf.nn.silu(norms[1].in_ops(a)) + tf.tanh(a)
            loss = tf.reduce_sum(tf.sin(a))
        return [a, *tape.gradient(loss, [x, *variables])] if training else [a]

    for training in (True, False):
        asked.clear()
        with nv_norms_rewriter.disabled():
            expected = run(x, training)
        function = tf.function(run, jit_compile=True, autograph=False)
        got = function(x, training)
        for actual, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(actual, other, 1e-3, 5e-5 * np.abs(other).max())
        assert [norm.activation_inside for norm in asked] == [True, True]
        graph = function.get_concrete_function(x, training).graph
        made = silus(graph)
        assert made == [True] * ((2 - len(left)) * (2 if training else 1))


def test_saved_model(norm: Norm, x: tf.Tensor, tmp_path: Any) -> None:
    module = tf.Module()
    module.norm = norm
    module.call = tf.function(
        lambda x: tf.nn.silu(norm.in_ops(x)), [tf.TensorSpec(SHAPE)], jit_compile=True,
        autograph=False,
    )  # fmt: skip
    concrete = module.call.get_concrete_function()
    assert silus(concrete.graph) == [True]
    graph_def = concrete.graph.as_graph_def()
    ops = {n.op for n in graph_def.node}
    ops |= {n.op for f in graph_def.library.function for n in f.node_def}
    assert not any(op.startswith("Fused") for op in ops)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    close([module.call(x), loaded.call(x)], [exact(norm, x)] * 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_keras_model(policy: str, rng: np.random.Generator) -> None:
    """fit, which has its tape inside, and predict."""

    def model() -> keras.Model:
        keras.utils.set_random_seed(5)
        inputs = keras.Input((6, 6, 4))
        y = inputs
        for _ in range(2):
            y = keras.layers.Conv2D(8, 3, padding="same", dtype=policy)(y)
            y = keras.layers.GroupNormalization(4, dtype=policy)(y)
            y = keras.layers.Activation("silu", dtype=policy)(y)
        out = keras.Model(inputs, keras.layers.Conv2D(1, 3, dtype="float32")(y))
        out.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=True)
        return out

    x = rng.normal(size=(8, 6, 6, 4)).astype(np.float32)
    target = rng.normal(size=(8, 4, 4, 1)).astype(np.float32)

    def trained(model: keras.Model) -> tuple:
        history = model.fit(x, target, batch_size=8, epochs=3, verbose=0)
        return history.history["loss"], model.predict(x, verbose=0)

    with nv_norms_rewriter.disabled():
        losses, y = trained(model())
    nv_norms_rewriter.clear_report()
    fused_losses, fused_y = trained(model())
    report = nv_norms_rewriter.report()
    assert len(report.fused) == 6 and not report.refused
    assert all(r.silu for r in report)
    tolerance = 1e-4 if policy == "float32" else 1e-2
    np.testing.assert_allclose(fused_losses, losses, tolerance)
    np.testing.assert_allclose(fused_y, y, tolerance, tolerance * np.abs(y).max())
