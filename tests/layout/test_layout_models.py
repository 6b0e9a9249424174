"""Whole models as the layout pass leaves them: after ours, the Transposes of the net without norms.

The layout pass runs here with a virtual GPU (layout_emulation.py); numbers are compared with
TensorFlow's own graph, with the convolutions run channels last on the CPU.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from layout_emulation import optimize, run, trace, training_step, transposes

import nv_norms
import nv_norms_rewriter
import oracle

CORPUS = Path(__file__).parent.parent / "corpus" / "captured"
LARGE = 1200  # bytes: more than any parameter here, fewer than any activation


def convolutional(norm, activation, spatial: int, batch, blocks: int = 2) -> keras.Model:
    """Conv, norm, activation, blocks times; global pooling; Dense."""
    conv = layers.Conv2D if spatial == 2 else layers.Conv3D
    pool = layers.GlobalAveragePooling2D if spatial == 2 else layers.GlobalAveragePooling3D
    x = image = keras.Input((*[6] * spatial, 4), batch_size=batch)
    for _ in range(blocks):
        x = conv(8, 3, padding="same")(x)
        if norm is not None:
            x = norm()(x)
        x = activation()(x)
    return keras.Model(image, layers.Dense(3)(pool()(conv(8, 3, padding="same")(x))))


def residual(norm, activation, spatial: int, batch) -> keras.Model:
    """Norm first, activation, conv, twice, beside the identity; pooling; Dense."""
    conv = layers.Conv2D if spatial == 2 else layers.Conv3D
    x = image = keras.Input((*[6] * spatial, 4), batch_size=batch)
    x = conv(8, 3, padding="same")(x)
    for _ in range(2):
        y = x
        for _ in range(2):
            if norm is not None:
                y = norm()(y)
            y = conv(8, 3, padding="same")(activation()(y))
        x = layers.Add()([x, y])
    pool = layers.GlobalAveragePooling2D if spatial == 2 else layers.GlobalAveragePooling3D
    return keras.Model(image, layers.Dense(3)(pool()(x)))


NORMS = {
    "instance": lambda: layers.GroupNormalization(groups=-1),
    "group": lambda: layers.GroupNormalization(groups=4),
    "layer": layers.LayerNormalization,
    "rms": layers.RMSNormalization,
    "explicit_instance": nv_norms.InstanceNormalization,
    "explicit_group": lambda: nv_norms.GroupNormalization(groups=4),
    "explicit_layer": nv_norms.LayerNormalization,
}
ACTIVATIONS = {
    "relu": layers.ReLU,
    "leaky_relu": layers.LeakyReLU,
    "silu": lambda: layers.Activation("silu"),
    "gelu": lambda: layers.Activation("gelu"),
}
CASES = [
    (convolutional, "instance", "relu", 2, 3),
    (convolutional, "group", "silu", 2, None),
    (convolutional, "layer", "gelu", 2, 3),
    (convolutional, "rms", "leaky_relu", 2, 3),
    (convolutional, "group", "leaky_relu", 2, 3),
    (convolutional, "instance", "leaky_relu", 3, None),
    (convolutional, "group", "gelu", 3, 3),
    (convolutional, "layer", "relu", 3, None),
    (residual, "group", "silu", 2, 3),
    (residual, "layer", "relu", 2, None),
    (residual, "instance", "relu", 3, 3),
    (convolutional, "explicit_instance", "relu", 3, None),
    (convolutional, "explicit_layer", "silu", 2, 3),
    (residual, "explicit_group", "gelu", 2, 3),
]


def assert_close(stock, fused, tolerance: float) -> None:
    """Gradients relative to the largest: that of a bias before a norm is 0 but for rounding."""
    scale = max(np.abs(value).max() for value in stock)
    for a, b in zip(stock, fused, strict=True):
        np.testing.assert_allclose(b / scale, a / scale, atol=tolerance, rtol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("build", "norm", "activation", "spatial", "batch"), CASES)
def test_norms_cost_no_transposes(build, norm, activation, spatial, batch):
    keras.utils.set_random_seed(0)
    shape = [batch, *[6] * spatial, 4]
    counts = []
    for kind in (NORMS[norm], None):
        model = build(kind, ACTIVATIONS[activation], spatial, batch)
        graph, fetches = trace(training_step(model), [shape])
        counts.append(optimize(graph, fetches) if kind else optimize(graph, fetches)[0])
        if kind:
            names = fetches
    (stock, fused, report), without = counts
    assert not report.refused, report
    assert transposes(fused) <= transposes(stock)
    assert transposes(fused, LARGE) <= transposes(without, LARGE), report
    assert_close(run(stock, names), run(fused, names), 3e-5)
    again, report = nv_norms_rewriter.rewrite(fused, fetches=names)
    assert again == fused and not report.fused


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("norm", ["instance", "layer", "rms", "explicit_layer"])
def test_norm_before_the_first_convolution(norm, batch):
    """A generator's: its forward stays channels last, its gradient does not."""
    keras.utils.set_random_seed(0)
    x = noise = keras.Input((10,), batch_size=batch)
    x = layers.Reshape((7, 7, 8))(layers.Dense(7 * 7 * 8)(x))
    x = layers.LeakyReLU()(NORMS[norm]()(x))
    x = layers.Conv2DTranspose(8, 3, 2, padding="same")(x)
    x = layers.Conv2D(3, 3)(layers.ReLU()(NORMS[norm]()(x)))
    graph, fetches = trace(training_step(keras.Model(noise, x)), [(batch, 10)])
    stock, fused, report = optimize(graph, fetches)
    assert not report.refused, report
    explicit = norm.startswith("explicit")
    assert sum(r.direction == "backward" for r in report.fused) == (0 if explicit else 2), report
    assert transposes(fused) <= transposes(stock)
    assert_close(run(stock, fetches), run(fused, fetches), 3e-5)


def test_mixed_precision_channels_first():
    """The other way round: float16 convolutions go from NCHW to NHWC."""
    keras.utils.set_random_seed(0)
    policy = keras.mixed_precision.global_policy()
    counts = []
    for kind in (lambda: layers.GroupNormalization(groups=4, axis=1), None):
        keras.mixed_precision.set_global_policy("mixed_float16")
        try:
            x = image = keras.Input((4, 6, 6), batch_size=2)
            for _ in range(2):
                x = layers.Conv2D(8, 3, padding="same", data_format="channels_first")(x)
                x = layers.ReLU()(kind()(x) if kind else x)
            model = keras.Model(image, layers.GlobalAveragePooling2D("channels_first")(x))
        finally:
            keras.mixed_precision.set_global_policy(policy)
        graph, fetches = trace(training_step(model), [[2, 4, 6, 6]])
        counts.append((*optimize(graph, fetches), fetches))
    (stock, fused, report, names), without = counts[0], counts[1][0]
    assert transposes(fused, LARGE // 2) < transposes(stock, LARGE // 2)
    assert transposes(fused, LARGE // 2) <= transposes(without, LARGE // 2), report
    assert_close(
        [value.astype(np.float32) for value in run(stock, names)],
        [value.astype(np.float32) for value in run(fused, names)],
        1e-2,
    )


@pytest.mark.parametrize("explicit", [False, True], ids=["recognized", "explicit"])
def test_while_a_function_runs(explicit, rng):
    """Both iterations of Grappler in this process, forward and backward, against NumPy."""
    x, r = (rng.normal(size=(2, 8, 5, 3)).astype(np.float32) for _ in range(2))
    gamma = (1 + 0.1 * rng.normal(size=8)).astype(np.float32)

    @tf.function
    def step(x, r, gamma):
        with tf.GradientTape() as tape:
            tape.watch([x, gamma])
            last = tf.transpose(x, [0, 2, 3, 1])
            if explicit:
                y = nv_norms.fused_instance_norm(last, gamma, None, data_format="N...C")[0]
            else:
                mean, variance = tf.nn.moments(last, [1, 2], keepdims=True)
                y = (last - mean) * tf.math.rsqrt(variance + 1e-3) * gamma
            loss = tf.reduce_sum(tf.transpose(tf.tanh(y), [0, 3, 1, 2]) * r)
        return loss, *tape.gradient(loss, [x, gamma])

    nv_norms_rewriter.clear_report()
    got = [value.numpy() for value in step(*map(tf.constant, (x, r, gamma)))]
    records = [record for record in nv_norms_rewriter.report() if record.kind == "layout"]
    assert len(records) == 1 and records[0].fused and records[0].transposes[1] == 0, records
    y = oracle.instance_norm(x, gamma, None, channel_axis=1).y
    dy = r * (1 - np.tanh(y) ** 2)
    back = oracle.backward(dy, x, gamma, (2, 3), (1,), 1e-3)
    expected = (np.sum(np.tanh(y) * r), back.dx, back.dgamma)
    for value, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize(("iteration", "before", "after"), [(0, 17, 4), (1, 10, 3)])
def test_captured_on_an_h200(iteration, before, after):
    """What is left: the image (twice in iteration 0), and what the last norm's Flatten reads and
    gives, which is in NHWC."""
    path = CORPUS / f"h200_convnet_train_{iteration}.pb"
    graph = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    fetches = [node.name for node in graph.node if node.op == "_Retval"]
    rewritten, report = nv_norms_rewriter.rewrite(graph, fetches=fetches)
    assert sum(node.op == "Transpose" for node in graph.node) == before
    assert sum(node.op == "Transpose" for node in rewritten.node) == after
    assert any(record.kind == "layout" and record.fused for record in report)
    again, report = nv_norms_rewriter.rewrite(rewritten, fetches=fetches)
    assert not report.fused and again == rewritten
