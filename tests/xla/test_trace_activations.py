"""Activations behind norms are taken in when a function is traced for a GPU.

No GPU is needed: what is traced for one runs on a CPU, too.
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
from nv_norms_rewriter import _trace_where, _xla_rule

pytestmark = pytest.mark.usefixtures("every_norm", "enabled")

SLOPES = [0.0, 0.25]


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are traced as for a CPU."""
    monkeypatch.setattr(_trace_where, "device_type", lambda: "CPU")


@pytest.fixture
def x(rng: np.random.Generator) -> tf.Tensor:
    return tf.constant(rng.normal(1.0, 2.0, SHAPE), tf.float32)


def activation(y: tf.Tensor, slope: float) -> tf.Tensor:
    return tf.nn.relu(y) if slope == 0 else tf.nn.leaky_relu(y, slope)


def step(norm: Norm, da: tf.Tensor, way: Callable, slope: float, **options: Any) -> Any:
    @tf.function(autograph=False, **options)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = activation(way(norm, x), slope)
        return [a, *tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)]

    return function


def activations(graph: Any) -> int:
    return sum("Relu" in op.type for op in running(graph))


def slopes(graph: Any) -> list[float]:
    names = ("FusedInstanceNorm", "FusedInstanceNormGrad")
    return [op.get_attr("negative_slope") for op in running(graph) if op.type in names]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("way", WAYS)
def test_step(way: Callable, slope: float, norm: Norm, x: tf.Tensor, da: tf.Tensor) -> None:
    function = step(norm, da, way, slope, jit_compile=True)
    graph = function.get_concrete_function(x).graph
    assert activations(graph) == 0
    assert slopes(graph) == [slope, slope]
    close(function(x), norm.exact_step(x, da, slope))
    assert found() == found("backward") == (way is Norm.in_ops)
    records = nv_norms_rewriter.report()
    assert all(r.negative_slope == slope for r in records)
    if way is Norm.in_ops:
        (a,) = [r for r in records if r.direction == "forward"][0].outputs
        assert "Relu" in a


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "grappler"])
@pytest.mark.parametrize("slope", SLOPES)
def test_step_on_a_gpu(slope: float, compiled: bool, rng: np.random.Generator) -> None:
    with tf.device("/device:GPU:0"):
        norm = Norm(rng)
        x = tf.constant(rng.normal(1.0, 2.0, SHAPE), tf.float32)
        da = tf.constant(rng.normal(size=SHAPE), tf.float32)
        got = step(norm, da, Norm.in_ops, slope, jit_compile=compiled)(x)
    close(got, norm.exact_step(x, da, slope))
    records = nv_norms_rewriter.report().fused
    assert [(r.direction, r.negative_slope) for r in records] == [
        ("forward", slope), ("backward", slope)
    ]  # fmt: skip


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("way", WAYS)
def test_on_a_cpu_they_stay(way: Callable, norm: Norm, x: tf.Tensor, da: tf.Tensor) -> None:
    function = step(norm, da, way, 0.25, jit_compile=True)
    graph = function.get_concrete_function(x).graph
    assert slopes(graph) == [1.0, 1.0] and activations(graph) == 2
    assert all(r.negative_slope == 1.0 for r in nv_norms_rewriter.report())
    close(function(x), norm.exact_step(x, da, 0.25))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "function"])
@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("way", WAYS)
def test_tape_outside(
    way: Callable, slope: float, compiled: bool, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    function = tf.function(
        lambda x: activation(way(norm, x), slope), jit_compile=compiled, autograph=False
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        a = function(x)
    gradients = tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)
    close([a, *gradients], norm.exact_step(x, da, slope))
    if way is Norm.in_ops:
        records = nv_norms_rewriter.report()
        where = "xla" if compiled else "tape"
        assert [(r.direction, r.negative_slope) for r in records if r.where == where] == [
            ("forward", slope), ("backward", slope)
        ]  # fmt: skip


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("slope", SLOPES)
def test_loop_that_is_differentiated(slope: float, norm: Norm, x: tf.Tensor, da: tf.Tensor) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, x: (i + 1, activation(norm.in_ops(x), slope)),
            (0, x),
            maximum_iterations=3,
        )[1]

    def differentiated(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = loop(x)
        return [a, *tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)]

    with nv_norms_rewriter.disabled():
        expected = tf.function(differentiated, autograph=False)(x)
    got = tf.function(differentiated, autograph=False)(x)
    assert {r.negative_slope for r in nv_norms_rewriter.report().fused} == {slope}
    for a, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, e, 1e-3, 1e-4 * np.abs(e).max())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("what", ["y", "dy"])
def test_what_goes_out_of_the_function_stays(
    what: str, norm: Norm, x: tf.Tensor, da: tf.Tensor
) -> None:
    @tf.function(jit_compile=True, autograph=False)
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = norm.in_ops(x)
            a = activation(y, 0.25)
        found = [a, *tape.gradient(a, [x, norm.gamma, norm.beta], output_gradients=da)]
        return [*found, y if what == "y" else tape.gradient(a, y, output_gradients=da)]

    graph = function.get_concrete_function(x).graph
    assert set(slopes(graph)) == {1.0} and activations(graph) > 0
    *got, last = function(x)
    close(got, norm.exact_step(x, da, 0.25))
    y = norm.exact(x, 1.0)
    close([last], [y if what == "y" else np.where(y > 0, da, 0.25 * da.numpy())])


@pytest.mark.usefixtures("gpu")
def test_second_derivatives(norm: Norm, x: tf.Tensor) -> None:
    def penalty(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                a = activation(norm.in_ops(x), 0.25)
                loss = tf.reduce_sum(tf.sin(a) * x)
            squares = tf.reduce_sum(tf.square(tape.gradient(loss, x)))
        return outer.gradient(squares, x)

    with nv_norms_rewriter.disabled():
        expected = penalty(x)
    got = tf.function(penalty, jit_compile=True, autograph=False)(x)
    np.testing.assert_allclose(got, expected, 1e-3, 2e-4 * np.abs(expected).max())


@pytest.mark.usefixtures("gpu")
def test_norm_left_to_xla_keeps_its_activation(norm: Norm, x: tf.Tensor, da: tf.Tensor) -> None:
    nv_norms_rewriter.configure(xla="none")
    with nv_norms_rewriter.disabled():
        stock = step(norm, da, Norm.in_ops, 0.25, jit_compile=True).get_concrete_function(x).graph
    graph = step(norm, da, Norm.in_ops, 0.25, jit_compile=True).get_concrete_function(x).graph
    assert [op.type for op in graph.get_operations()] == [op.type for op in stock.get_operations()]
    assert found() == 0
    assert {r.reason for r in nv_norms_rewriter.report()} == {"left_to_xla"}


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("left", [(), (0,), (1,), (2,), (0, 2), (1, 2)])
def test_some_are_left_to_xla(
    left: tuple[int, ...],
    x: tf.Tensor,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norms = [Norm(rng) for _ in range(3)]
    asked: list[_xla_rule.Norm] = []

    def why_left(norm: _xla_rule.Norm) -> str:
        asked.append(norm)
        return "It does not pay." if len(asked) - 1 in left else ""

    monkeypatch.setattr(_xla_rule, "why_left", why_left)
    nv_norms_rewriter.configure(xla="auto")

    def run(x: tf.Tensor) -> list[tf.Tensor]:
        variables = [v for norm in norms for v in (norm.gamma, norm.beta)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = activation(norms[0].in_ops(x), 0.0)
            a = activation(norms[1].in_ops(a), 0.25) + tf.tanh(a)
            a = norms[2].in_ops(a)
            loss = tf.reduce_sum(tf.sin(a))
        return [a, *tape.gradient(loss, [x, *variables])]

    with nv_norms_rewriter.disabled():
        expected = run(x)
    function = tf.function(run, jit_compile=True, autograph=False)
    got = function(x)
    for actual, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, other, 1e-3, 5e-5 * np.abs(other).max())
    assert [norm.activation_inside for norm in asked] == [True, True, False]
    assert [norm.gradient for norm in asked] == ["fused"] * 3
    assert "ReluGrad" not in asked[0].readers and "Tanh" in asked[0].readers
    inside = [slope for i, slope in enumerate((0.0, 0.25, 1.0)) if i not in left]
    graph = function.get_concrete_function(x).graph
    assert sorted(slopes(graph)) == sorted(inside * 2)
    assert activations(graph) == 2 * len({0, 1} & set(left))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("way", WAYS)
def test_saved_model(way: Callable, norm: Norm, x: tf.Tensor, tmp_path: Any) -> None:
    module = tf.Module()
    module.norm = norm
    module.call = tf.function(
        lambda x: activation(way(norm, x), 0.25),
        [tf.TensorSpec(SHAPE)],
        jit_compile=True,
        autograph=False,
    )
    exact = [norm.exact(x, 0.25)]
    concrete = module.call.get_concrete_function()
    assert slopes(concrete.graph) == [0.25]
    graph_def = concrete.graph.as_graph_def()
    ops = {n.op for n in graph_def.node} | {
        n.op for f in graph_def.library.function for n in f.node_def
    }
    assert ("FusedInstanceNorm" in ops) == (way is Norm.by_name)
    with nv_norms_rewriter.disabled():
        imported = tf.compat.v1.wrap_function(
            lambda *inputs: tf.import_graph_def(
                graph_def,
                dict(zip([t.name for t in concrete.inputs], inputs, strict=True)),
                [t.name for t in concrete.outputs],
            ),
            [tf.TensorSpec(t.shape, t.dtype) for t in concrete.inputs],
        )
        close(imported(x, *(t for t, _ in concrete.graph.captures)), exact)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    close([loaded.call(x)], exact)
    text = (tmp_path / "saved_model.pb").read_bytes()
    assert (b"FusedInstanceNorm" in text) == (way is Norm.by_name)


def small_model(policy: str, layer: Callable[[], Any], groups: int) -> keras.Model:
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((8, 8, 4))
    for filters in (8, 8):
        x = keras.layers.Conv2D(filters, 3, padding="same", dtype=policy)(x)
        x = keras.layers.GroupNormalization(groups, dtype=policy)(x)
        x = layer()(x)
    x = keras.layers.Conv2D(1, 3, dtype="float32")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=True)
    return model


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("slope", "policy", "groups"),
    [
        (0.0, "float32", -1),
        (0.25, "float32", 2),
        (0.0, "mixed_float16", 2),
        (0.25, "mixed_float16", -1),
    ],
)
def test_keras_model(slope: float, policy: str, groups: int, rng: np.random.Generator) -> None:
    def layer() -> Any:
        if slope == 0:
            return keras.layers.ReLU(dtype=policy)
        return keras.layers.LeakyReLU(slope, dtype=policy)

    x = rng.normal(size=(4, 8, 8, 4)).astype(np.float32)
    y = rng.normal(size=(4, 6, 6, 1)).astype(np.float32)
    losses, weights = [], []
    for fused in (False, True):
        with nv_norms_rewriter.disabled():
            model = small_model(policy, layer, groups)
        nv_norms_rewriter.enable() if fused else nv_norms_rewriter.disable()
        history = model.fit(x, y, 2, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
        weights.append(model.get_weights())
    tolerance = 2e-5 if policy == "float32" else 5e-3
    np.testing.assert_allclose(*losses, tolerance)
    for stock, ours in zip(*weights, strict=True):
        np.testing.assert_allclose(stock, ours, 20 * tolerance, tolerance)
    records = nv_norms_rewriter.report().fused
    assert {r.direction for r in records} == {"forward", "backward"}
    assert {r.negative_slope for r in records} == {slope}, str(nv_norms_rewriter.report())
    assert len(records) == 4


@pytest.mark.usefixtures("cpu")
def test_nothing_is_taken_in_of_a_model_on_a_cpu(rng: np.random.Generator) -> None:
    model = small_model("float32", keras.layers.ReLU, -1)
    x = rng.normal(size=(4, 8, 8, 4)).astype(np.float32)
    model.fit(x, x[:, 1:-1, 1:-1, :1], 2, verbose=0)
    records = nv_norms_rewriter.report().fused
    assert len(records) == 4 and {r.negative_slope for r in records} == {1.0}
