"""Norms beside convolutions get the layout that XLA gives the convolutions on a GPU.

No GPU is needed: what is traced for one runs on a CPU, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import result
from traced import EPSILON, found

import nv_norms
import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _trace_choice, _trace_layout

pytestmark = pytest.mark.usefixtures("every_norm")

FORMAT = "_nv_norms_call_format"
VOLUME = (2, 4, 3, 5, 6)
FORMATS = ["N...C", "NC..."]
GAMMA = np.linspace(0.5, 1.5, 6, dtype=np.float32)


@pytest.fixture
def other_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls get another format than their ops."""

    def flip(x: tf.Tensor, ys: Any, data_format: str, device_type: str) -> str:
        return FORMATS[data_format == FORMATS[0]]

    monkeypatch.setattr(_trace_layout, "call_format", flip)


def last(x: Any, data_format: str) -> Any:
    """x channels last."""
    return x if data_format == "N...C" else np.moveaxis(np.asarray(x), 1, -1)


def first(x: Any) -> Any:
    return np.moveaxis(np.asarray(x), -1, 1)


def conv(x: tf.Tensor, channels: int = 6) -> tf.Tensor:
    """A convolution channels last."""
    rank = x.shape.rank
    kernel = tf.ones((*[1] * (rank - 2), x.shape[-1] or 6, channels), x.dtype)
    return tf.nn.convolution(x, kernel)


def norm(x: tf.Tensor, axes: tuple[int, ...] = (1, 2, 3)) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON) * tf.cast(GAMMA, x.dtype)


def formats(graph: Any) -> list[str]:
    """What the graph's fused ops say."""
    return [
        op.get_attr(FORMAT).decode() if FORMAT in op.node_def.attr else ""
        for op in graph.get_operations()
        if op.type.startswith("Fused")
    ]


def traced(compute: Callable[..., Any], shape: Any = VOLUME, dtype: Any = tf.float32) -> Any:
    function = tf.function(compute, jit_compile=True, autograph=False)
    return function.get_concrete_function(tf.TensorSpec(shape, dtype)).graph


BESIDE = {
    "behind": lambda x: norm(conv(x)),
    "before": lambda x: conv(norm(x)),
    "behind a bias and a leaky relu": lambda x: norm(
        tf.nn.leaky_relu(tf.nn.bias_add(conv(x), GAMMA))
    ),
    "behind a sum": lambda x: norm(x + conv(x)),
    "behind a concatenation": lambda x: norm(tf.concat([x[..., :2], conv(x, 4)], -1)),
    "behind pooling": lambda x: norm(tf.nn.max_pool3d(conv(x), 2, 1, "SAME")),
    "behind another norm": lambda x: norm(tf.nn.relu(norm(conv(x)) + GAMMA)),
    "before silu": lambda x: conv(tf.nn.silu(norm(x))),
    "transposed": lambda x: norm(
        tf.nn.conv3d_transpose(x, tf.ones((1, 1, 1, 6, 6)), VOLUME, 1, "SAME")
    ),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("where", BESIDE)
def test_volumes_beside_convolutions_are_channels_first(where: str) -> None:
    said = formats(traced(BESIDE[where]))
    assert said and set(said) == {"NC..."}


NOT_BESIDE = {
    "alone": norm,
    "between products": lambda x: tf.nn.relu(norm(x @ tf.ones((6, 6)))) @ tf.ones((6, 6)),
    "behind a reshaped convolution": lambda x: norm(
        tf.reshape(conv(tf.reshape(x, (8, 3, 5, 6))), VOLUME)
    ),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("where", NOT_BESIDE)
def test_other_volumes_stay(where: str) -> None:
    assert set(formats(traced(NOT_BESIDE[where]))) == {""}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("shape", [(2, 8, 9, 6), (2, 9, 6)], ids=str)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32], ids=lambda t: t.name)
def test_images_and_lines_stay(shape: tuple[int, ...], dtype: tf.DType) -> None:
    """Since Hopper XLA has 2-D convolutions channels last."""
    graph = traced(lambda x: norm(conv(x), tuple(range(1, len(shape) - 1))), shape, dtype)
    assert set(formats(graph)) == {""}


@pytest.mark.parametrize(
    "capability, dtype, expected",
    [
        ((8, 0), tf.float32, "NC..."), ((8, 0), tf.float16, "N...C"), ((9, 0), tf.float32, "N...C"),
        ((12, 0), tf.float32, "N...C"), ((9, 0), tf.float64, "NC..."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("data_format", FORMATS)
def test_images_as_the_gpu_has_convolutions(
    capability: tuple[int, int],
    dtype: tf.DType,
    expected: str,
    data_format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_trace_layout, "_oldest", lambda: capability)
    with tf.Graph().as_default():
        x = conv(tf.zeros((2, 5, 5, 6), dtype))
        got = _trace_layout.call_format(x, [tf.identity(x)], data_format, "GPU")
    assert got == expected


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "shape, dtype, told",
    [(VOLUME, tf.float16, True), (VOLUME, tf.float64, False), (VOLUME[1:], tf.float16, False)],
    ids=str,
)
def test_report_names_the_flag_for_volumes(
    shape: tuple[int, ...], dtype: tf.DType, told: bool
) -> None:
    axes = tuple(range(1, len(shape) - 1))

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(tf.nn.tanh(norm(conv(x), axes)), axes)
            loss = tf.reduce_sum(y**3)
        return y, tape.gradient(loss, x)

    nv_norms_rewriter.clear_report()
    traced(step, shape, dtype)
    report = nv_norms_rewriter.report()
    assert len(report.fused) == 4
    said = [n for n in report.notices if "so 2 normalizations run so" in n]
    assert len(said) == told == ("--xla_gpu_force_conv_nhwc=true" in str(report).replace("\n", ""))
    nv_norms_rewriter.clear_report()
    assert not any("conv_nhwc" in notice for notice in nv_norms_rewriter.report().notices)


FORCED = """
import json
import tensorflow as tf
import nv_norms_rewriter
from nv_norms_rewriter import _trace_layout

def format_behind(shape, dtype, data_format):
    with tf.Graph().as_default():
        kernel = tf.ones([1] * (len(shape) - 2) + [6, 6], dtype)
        x = tf.nn.convolution(tf.zeros(shape, dtype), kernel)
        return _trace_layout.call_format(x, [], data_format, "GPU")

print(json.dumps(["".join(sorted({
    format_behind(shape, dtype, data_format)
    for dtype in (tf.float16, tf.float32, tf.float64) for data_format in ("N...C", "NC...")
})) for shape in ((2, 4, 5, 6), (2, 4, 3, 5, 6))]))
"""
NCHW, NHWC = (f"--xla_gpu_force_conv_{name}=true" for name in ("nchw", "nhwc"))


@pytest.mark.parametrize(
    "flags, expected", [(NCHW, "NC..."), (NHWC, "N...C"), (f"{NHWC} {NCHW}", "NC...")]
)
def test_images_and_volumes_as_xlas_flags_say(flags: str, expected: str) -> None:
    assert result(FORCED, XLA_FLAGS=flags)[0] == [expected, expected]


def test_other_flags_say_nothing_of_it() -> None:
    formats = result(FORCED, XLA_FLAGS="--xla_gpu_autotune_level=0")[0]
    assert formats == ["N...CNC...", "NC..."]  # images in float64 as volumes


@pytest.mark.parametrize("shape", [None, (None, None, None, None, 6)], ids=str)
def test_unknown_shapes(shape: Any) -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, shape)
        y = tf.nn.relu(x)
        z = tf.nn.conv3d(y, tf.ones((1, 1, 1, 6, 6)), [1] * 5, "SAME")
        before = _trace_layout.call_format(x, [y], "N...C", "GPU")
        behind = _trace_layout.call_format(z, [], "N...C", "GPU")
    assert (before, behind) == ("NC..." if shape else "N...C", "NC...")


def test_on_a_cpu_they_stay() -> None:
    with tf.Graph().as_default():
        x = conv(tf.zeros(VOLUME))
        assert _trace_layout.call_format(x, [tf.identity(x)], "N...C", "CPU") == "N...C"


def test_many_ops_on_the_way_end_the_search() -> None:
    with tf.Graph().as_default():
        x = conv(tf.zeros(VOLUME))
        for _ in range(1000):
            x = x + 1.0
        assert _trace_layout.call_format(x, [], "N...C", "GPU") == "N...C"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("by_name", [False, True])
def test_step_is_close_to_the_formula(by_name: bool, rng: np.random.Generator) -> None:
    """Forward and gradient of a convolution and a norm, both traced for a GPU."""
    x, dy = (tf.constant(rng.normal(1.0, 2.0, VOLUME), tf.float32) for _ in range(2))
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 6), dtype=tf.float32)
    beta = tf.Variable(rng.normal(size=6), dtype=tf.float32)
    kernel = tf.constant(rng.normal(size=(1, 1, 1, 6, 6)), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        h = tf.nn.convolution(x, kernel)
        with tf.GradientTape() as tape:
            tape.watch(h)
            if by_name:
                y = nv_norms.fused_instance_norm(h, gamma, beta, "NDHWC", EPSILON).y
            else:
                y = norm(h) / GAMMA * gamma + beta
        return [h, y, *tape.gradient(y, [h, gamma, beta], output_gradients=dy)]

    assert formats(step.get_concrete_function(x).graph) == ["NC...", "NC..."]
    h, *got = step(x)
    y = oracle.instance_norm(h, gamma.numpy(), beta.numpy(), -1, EPSILON).y
    expected = [y, *oracle.backward(dy, h, gamma.numpy(), (1, 2, 3), (4,), EPSILON)]
    for a, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, e, 2e-5, 2e-5 * np.abs(e).max())


@pytest.mark.usefixtures("gpu")
def test_tape_outside_the_function(rng: np.random.Generator) -> None:
    x, dy = (tf.constant(rng.normal(1.0, 2.0, VOLUME), tf.float32) for _ in range(2))
    function = tf.function(lambda x: norm(conv(x)), jit_compile=True, autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    dx = tape.gradient(y, x, output_gradients=dy)
    h = np.repeat(np.asarray(x, np.float64).sum(-1, keepdims=True), 6, -1)  # a kernel of ones
    exact = oracle.instance_norm(h, GAMMA, np.zeros(6), -1, EPSILON).y
    np.testing.assert_allclose(y, exact, 2e-5, 2e-5)
    dh = oracle.backward(dy, h, GAMMA, (1, 2, 3), (4,), EPSILON)[0]
    expected = np.repeat(dh.sum(-1, keepdims=True), 6, -1)
    np.testing.assert_allclose(dx, expected, 2e-5, 2e-5 * np.abs(expected).max())
    assert found() == found("backward") == 1


@pytest.mark.usefixtures("gpu", "other_format")
@pytest.mark.parametrize("groups", [-1, 3])
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("spatial", [(7,), (3, 5), (2, 3, 4)], ids=str)
def test_either_format_inside_the_other(
    spatial: tuple[int, ...], data_format: str, groups: int, rng: np.random.Generator
) -> None:
    """Whatever the layout of the call, values are those of the op; both ways, any rank."""
    shape = (2, *spatial, 6)
    x, dy = (rng.normal(1.0, 2.0, shape).astype(np.float32) for _ in range(2))
    gamma, beta = (rng.uniform(0.5, 2.0, 6).astype(np.float32) for _ in range(2))

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        conv(x[..., :1])  # a function with explicit ops alone is not looked at
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            if groups == -1:
                y, *stats = nv_norms.fused_instance_norm(x, gamma, beta, data_format, EPSILON)
            else:
                y, *stats = nv_norms.fused_group_norm(
                    x, gamma, beta, groups, data_format=data_format, epsilon=EPSILON
                )
        return [y, *tape.gradient(y, [x, gamma, beta], output_gradients=dy), *stats]

    given = [x, dy] if data_format == "N...C" else [first(x), first(dy)]
    args = [tf.constant(a) for a in (*given, gamma, beta)]
    graph = step.get_concrete_function(*args).graph
    assert formats(graph) == [FORMATS[data_format == "N...C"]] * 2
    y, dx, dgamma, dbeta, mean, rstd = step(*args)
    n = 6 if groups == -1 else groups
    x64 = x.astype(np.float64).reshape(2, -1, n, 6 // n)
    exact_mean = x64.mean((1, 3))
    exact_rstd = 1 / np.sqrt(x64.var((1, 3)) + EPSILON)
    centered = x64 - exact_mean[:, None, :, None]
    xhat = centered * exact_rstd[:, None, :, None]
    d = dy.astype(np.float64).reshape(x64.shape)
    w = d * gamma.astype(np.float64).reshape(n, -1)
    means = w.mean((1, 3), keepdims=True), (w * xhat).mean((1, 3), keepdims=True)
    exact_dx = exact_rstd[:, None, :, None] * (w - means[0] - xhat * means[1])
    expected = [
        (last(y, data_format), (xhat.reshape(shape) * gamma + beta)),
        (last(dx, data_format), exact_dx.reshape(shape)),
        (dgamma, (d * xhat).sum((0, 1)).reshape(-1)),
        (dbeta, d.sum((0, 1)).reshape(-1)),
        (mean, exact_mean),
        (rstd, exact_rstd),
    ]
    for a, e in expected:
        np.testing.assert_allclose(a, e, 2e-5, 2e-5 * np.abs(e).max())


@pytest.mark.usefixtures("gpu", "other_format")
def test_dynamic_and_empty_tensors(rng: np.random.Generator) -> None:
    """Where the call cannot be made, the formulas are in the op's own format."""

    @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
    def function(x: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
        conv(x)
        return nv_norms.fused_instance_norm(tf.boolean_mask(x, keep), None, None).y

    x = rng.normal(size=(3, 4, 5, 6)).astype(np.float32)
    y = function(tf.constant(x), tf.constant([True, False, True]))
    expected = oracle.instance_norm(x[::2], np.ones(6), np.zeros(6), -1, EPSILON).y
    np.testing.assert_allclose(y, expected, 2e-5, 2e-5)
    assert function(tf.zeros((3, 0, 5, 6)), tf.constant([True] * 3)).shape == (3, 0, 5, 6)


@pytest.mark.usefixtures("gpu")
def test_the_call_has_the_layout_that_is_said(rng: np.random.Generator) -> None:
    x = tf.constant(rng.normal(size=VOLUME), tf.float32)
    function = tf.function(lambda x: norm(conv(x)), jit_compile=True, autograph=False)
    text = function.experimental_get_compiler_ir(x)(stage="hlo")
    (call,) = re.findall(r"\n.*custom_call_target=\"nv_norms_forward\".*", text)
    assert "(f32[2,6,4,3,5]{4,3,2,1,0}, " in call and "sizes = array<i64: 2, 6, 60>" in call


@pytest.mark.usefixtures("gpu")
def test_ops_by_name_are_placed_where_all_others_are_left() -> None:
    nv_norms_rewriter.configure(xla="none")
    graph = traced(lambda x: norm(conv(nv_norms.fused_instance_norm(x, None, None, "NDHWC").y)))
    assert found() == 0 and len(nv_norms_rewriter.report().refused) == 1
    assert formats(graph)[0] == "NC..."


@pytest.mark.usefixtures("gpu")
def test_nothing_of_it_leaves_the_process() -> None:
    graph = traced(lambda x: norm(conv(x)))
    assert formats(graph) == ["NC..."]
    written = graph.as_graph_def()
    ops = {node.op for node in written.node}
    assert "SquaredDifference" in ops and not any(op.startswith("Fused") for op in ops)
    assert b"nv_norms" not in written.SerializeToString()


@pytest.mark.usefixtures("gpu")
def test_rule_is_asked_about_the_layout_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(_trace_choice._xla_rule, "why_left", lambda n: asked.append(n) or "no")
    nv_norms_rewriter.configure(xla="auto")
    traced(lambda x: norm(conv(x)))
    traced(lambda x: norm(x))
    assert [(n.shape, n.data_format) for n in asked] == [
        ((2, 6, 4, 3, 5), "NC..."), (VOLUME, "N...C")
    ]  # fmt: skip


@pytest.mark.usefixtures("gpu")
def test_keras_model_trains_as_without_us(rng: np.random.Generator) -> None:
    def losses(on: bool) -> list[float]:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((6, 6, 6, 2))
        h = keras.layers.Conv3D(8, 3, padding="same", use_bias=False)(inputs)
        h = keras.layers.LeakyReLU(0.1)(keras.layers.GroupNormalization(-1)(h))
        h = keras.layers.Conv3D(8, 3, padding="same")(h)
        h = keras.layers.ReLU()(keras.layers.GroupNormalization(4)(h))
        model = keras.Model(inputs, keras.layers.Conv3D(1, 1)(h))
        model.compile("adam", "mse", jit_compile=True)
        (nv_norms_rewriter.enable if on else nv_norms_rewriter.disable)()
        try:
            return model.fit(x, target, 2, 4, verbose=0, shuffle=False).history["loss"]
        finally:
            nv_norms_rewriter.enable()

    x = rng.normal(size=(4, 6, 6, 6, 2)).astype(np.float32)
    target = rng.normal(size=(4, 6, 6, 6, 1)).astype(np.float32)
    stock = losses(on=False)
    assert found() == 0
    np.testing.assert_allclose(losses(on=True), stock, 1e-5)
    assert found() == found("backward") == 2
