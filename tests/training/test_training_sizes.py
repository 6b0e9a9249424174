"""Norms behind layers that make TensorFlow lose the sizes of their input: unknown lengths."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import nv_norms_rewriter
import oracle

EPSILON = 1e-3
GROUPS = 4
LAYERS = keras.layers
FRONTS = {
    "conv1d": lambda: LAYERS.Conv1D(8, 5, 2, use_bias=False),
    "separable_conv1d": lambda: LAYERS.SeparableConv1D(8, 5, use_bias=False),
    "conv1d_transpose": lambda: LAYERS.Conv1DTranspose(8, 3, use_bias=False),
    "dense": lambda: LAYERS.Dense(8, use_bias=False),
    "up_sampling": lambda: LAYERS.UpSampling1D(2),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("norm", [GROUPS, -1, "layer"], ids=str)
def test_norm_behind_a_layer_without_bias(rng, front: str, norm: int | str) -> None:
    first = FRONTS[front]()
    layer = (
        LAYERS.LayerNormalization(epsilon=EPSILON)
        if norm == "layer"
        else LAYERS.GroupNormalization(norm, epsilon=EPSILON)
    )
    model = keras.Sequential([keras.Input((None, 8)), first, layer])
    weights = [layer.gamma, layer.beta]
    for weight in weights:
        weight.assign(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    x = rng.normal(1.0, 2.0, (2, 12, 8)).astype(np.float32)
    between = first(tf.constant(x)).numpy()
    dy = rng.normal(size=between.shape).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 8))] * 2)
    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, *(weight.value for weight in weights)])]

    with nv_norms_rewriter.disabled():
        stock = tf.function(step.python_function)(tf.constant(x), tf.constant(dy))
    nv_norms_rewriter.clear_report()
    y, dx, dgamma, dbeta = step(tf.constant(x), tf.constant(dy))
    kind = {GROUPS: "group_norm", -1: "instance_norm", "layer": "layer_norm"}[norm]
    report = nv_norms_rewriter.report()
    assert report.counts == {f"{kind} forward": 1, f"{kind} backward": 1}, report

    gamma, beta = (weight.numpy() for weight in weights)
    if norm == "layer":
        exact = oracle.layer_norm(between, gamma, beta, epsilon=EPSILON).y
    else:
        groups = 8 if norm == -1 else GROUPS
        exact = oracle.group_norm(between, gamma, beta, groups, -1, EPSILON).y
    np.testing.assert_allclose(y, exact, 1e-4, 1e-4)
    for got, same in zip((dx, dgamma, dbeta), stock[1:], strict=True):
        np.testing.assert_allclose(got, same, 1e-4, 1e-4 * np.abs(same).max())


SPATIAL = (6, 5, 3)


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("every_norm")
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("known", ["none", "one", "batch", "first", "all"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [GROUPS, -1])
@pytest.mark.parametrize("channels_first", [False, True], ids=["", "channels_first"])
def test_images_of_unknown_sizes(rng, channels_first, groups, rank, known, jit) -> None:
    """Grappler adds y's terms up in another order; the gradient still asks Keras' sum its sizes."""
    layer = LAYERS.GroupNormalization(groups, 1 if channels_first else -1, EPSILON)
    sizes = SPATIAL[:rank]
    order = (0, rank + 1, *range(1, rank + 1)) if channels_first else tuple(range(rank + 2))
    layer.build(tuple(np.take((None, *[None] * rank, 8), order)))
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    layer.set_weights([gamma, beta])
    batch = 1 if known == "one" else 2
    x = rng.normal(1.0, 2.0, (batch, *sizes, 8)).astype(np.float32)
    w = rng.normal(size=x.shape).astype(np.float32)
    static = {
        "none": (None, *[None] * rank),
        "one": (1, *[None] * rank),
        "batch": (2, *[None] * rank),
        "first": (None, sizes[0], *[None] * (rank - 1)),
        "all": (2, *sizes),
    }[known]
    spec = tf.TensorSpec(tuple(np.take(np.array([*static, 8], object), order)))

    @tf.function(input_signature=[spec] * 2, jit_compile=jit)
    def step(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.square(y) * w)
        return [y, *tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])]

    y, dx, dgamma, dbeta = step(*(tf.constant(v.transpose(order)) for v in (x, w)))
    backward = [r for r in nv_norms_rewriter.report().fused if r.direction == "backward"]
    assert [len(r.outputs) for r in backward] == [3] and not backward[0].leaves_dx

    count = 8 if groups == -1 else groups
    exact = oracle.group_norm(x, gamma, beta, count, -1, EPSILON).y
    np.testing.assert_allclose(y, exact.transpose(order), 1e-4, 1e-4)
    split = (batch, *sizes, count, 8 // count)
    dy = (2.0 * exact * w).reshape(split)
    axes = (*range(1, rank + 1), rank + 2)
    along = (rank + 1, rank + 2)
    wanted = oracle.backward(dy, x.reshape(split), gamma, axes, along, EPSILON)
    assert_close(dx, wanted.dx.reshape(x.shape).transpose(order))
    assert_close(dgamma, wanted.dgamma.reshape(8))
    assert_close(dbeta, wanted.dbeta.reshape(8))


def _over(x: tf.Tensor) -> tf.Tensor:
    """How many places along axis 1 are over: 2 of 6."""
    return tf.shape(x)[1] % 4


# The axes that stay as they are show in single entries of an operand.
PARTS = {
    "boolean_mask": lambda x: tf.boolean_mask(x, x[..., 0] > 0),
    "slice": lambda x: tf.slice(
        x, tf.stack([0, _over(x), 0, 0]), tf.stack([-1, tf.shape(x)[1] - _over(x), -1, -1])
    ),
    "central_crop": lambda x: tf.image.central_crop(x, 0.5),
    "pad": lambda x: tf.pad(x, [[0, 0], [0, _over(x)], [0, 0], [0, 0]]),
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("every_norm")
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("groups", [GROUPS, None], ids=["groups", "layer"])
@pytest.mark.parametrize("part", PARTS)
def test_part_of_a_tensor(rng, part: str, groups: int | None, jit: bool) -> None:
    """As tokens without padding, or images cropped or filled up to whole windows."""
    if part == "boolean_mask" and (jit or groups):
        pytest.skip("its size is not known to XLA, and there are no images left")
    layer = LAYERS.GroupNormalization(groups, epsilon=EPSILON) if groups else None
    layer = layer or LAYERS.LayerNormalization(epsilon=EPSILON)
    layer.build((None, None, None, 8))
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    layer.set_weights([gamma, beta])
    x = rng.normal(1.0, 2.0, (2, 6, 5, 8)).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 8))], jit_compile=jit)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            z = PARTS[part](1.0 * x)
            z.set_shape((*z.shape[:-1], 8))  # Keras asks for it
            tape.watch(z)
            y = layer(z)
            loss = tf.reduce_sum(tf.sin(y))
        return [z, y, *tape.gradient(loss, [z, layer.gamma.value, layer.beta.value])]

    z, y, dz, dgamma, dbeta = step(tf.constant(x))
    backward = [r for r in nv_norms_rewriter.report().fused if r.direction == "backward"]
    assert [len(r.outputs) for r in backward] == [3] and not backward[0].leaves_dx

    z = z.numpy()
    split = (*z.shape[:-1], groups, 8 // groups) if groups else z.shape
    rank = len(split)
    axes = (*range(1, rank - 2), rank - 1) if groups else (rank - 1,)
    along = (rank - 2, rank - 1) if groups else (rank - 1,)
    if groups:
        exact = oracle.group_norm(z, gamma, beta, groups, -1, EPSILON).y
    else:
        exact = oracle.layer_norm(z, gamma, beta, epsilon=EPSILON).y
    np.testing.assert_allclose(y, exact, 1e-4, 1e-4)
    dy = np.cos(exact).reshape(split)
    wanted = oracle.backward(dy, z.reshape(split), gamma, axes, along, EPSILON)
    assert_close(dz, wanted.dx.reshape(z.shape))
    assert_close(dgamma, wanted.dgamma.reshape(8))
    assert_close(dbeta, wanted.dbeta.reshape(8))


def assert_close(got: tf.Tensor, exact: np.ndarray) -> None:
    np.testing.assert_allclose(got, exact, 1e-4, 1e-5 * np.abs(exact).max())


def _attention(x: tf.Tensor, gammas: list[tf.Tensor], weights: list[tf.Tensor]) -> tf.Tensor:
    """Two heads, whose queries and keys are normalized."""
    shape = tf.shape(x)
    heads = [tf.reshape(x @ w, [shape[0], shape[1], 2, 4]) for w in weights]
    for i, gamma in enumerate(gammas):
        squares = tf.reduce_mean(tf.square(heads[i]), -1, keepdims=True)
        heads[i] = heads[i] * tf.math.rsqrt(squares + EPSILON) * gamma
    q, k, v = (tf.transpose(head, [0, 2, 1, 3]) for head in heads)
    y = tf.nn.softmax(tf.matmul(q, k, transpose_b=True)) @ v
    return tf.reshape(tf.transpose(y, [0, 2, 1, 3]), shape)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("every_norm")
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("batch", [1, 2, None])
def test_queries_and_keys_of_unknown_length(rng, batch: int | None, jit: bool) -> None:
    """One sample is known where Python asks, and only there."""
    x = rng.normal(1.0, 2.0, (batch or 3, 5, 8))
    gammas = [rng.uniform(0.5, 2.0, 4) for _ in range(2)]
    weights = [rng.normal(0.0, 0.5, (8, 8)) for _ in range(3)]

    def step(*arguments: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            y = _attention(3.0 * arguments[0], arguments[1:3], arguments[3:])
            loss = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(loss, arguments)]

    values = [x, *gammas, *weights]
    shapes = [(batch, None, 8), *(value.shape for value in values[1:])]
    function = tf.function(step, [tf.TensorSpec(shape) for shape in shapes], jit_compile=jit)
    got = function(*(tf.constant(value, tf.float32) for value in values))
    report = nv_norms_rewriter.report()
    assert report.counts == {"rms_norm forward": 2, "rms_norm backward": 2}, report
    for each, exact in zip(got, step(*map(tf.constant, values)), strict=True):  # in float64
        assert_close(each, exact.numpy())


# What makes twice as many rows of one, and the gradient of that one.
LARGER = {
    "tiled": (lambda x: tf.tile(x, [2, 1]), lambda d: d.sum(0, keepdims=True)),
    "joined": (lambda x: tf.concat([x, x], 0), lambda d: d.sum(0, keepdims=True)),
    "padded": (lambda x: tf.pad(x, [[0, 1], [0, 0]]), lambda d: d[:1]),
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("every_norm")
@pytest.mark.parametrize("jit", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("larger", LARGER)
def test_norm_of_one_row_beside_two(rng, larger: str, jit: bool) -> None:
    """The number of rows is unknown: whoever takes the two sums' sizes for one loses a sum."""
    more, back = LARGER[larger]
    x = rng.normal(1.0, 2.0, (1, 8)).astype(np.float32)
    gamma = tf.Variable(rng.uniform(0.5, 2.0, 8).astype(np.float32))
    w = rng.normal(size=(2, 8)).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, 8))] * 2, jit_compile=jit)
    def step(x: tf.Tensor, w: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            y = tf.nn.batch_normalization(x, mean, variance, None, gamma, EPSILON) + more(x)
            loss = tf.reduce_sum(tf.square(y) * w)
        return [y, *tape.gradient(loss, [x, gamma])]

    y, dx, dgamma = step(tf.constant(x), tf.constant(w))
    wide = x.astype(np.float64)
    exact = oracle.layer_norm(wide, gamma.numpy(), epsilon=EPSILON).y + more(wide).numpy()
    np.testing.assert_allclose(y, exact, 1e-4, 1e-4)
    dy = 2.0 * exact * w
    wanted = oracle.backward(dy.sum(0, keepdims=True), wide, gamma.numpy(), (1,), (1,), EPSILON)
    assert_close(dx, wanted.dx + back(dy))
    assert_close(dgamma, wanted.dgamma)


def test_gradient_that_two_read_in_its_own_shape(rng) -> None:
    """dx in groups of unknown sizes, which more than a Reshape reads: it stays, with a reason."""

    def step(x: tf.Tensor, dy: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            size = tf.shape(x)
            groups = tf.reshape(x, [size[0], size[1], 4, 2])
            tape.watch(groups)
            mean, variance = tf.nn.moments(groups, [1, 3], keepdims=True)
            y = tf.reshape((groups - mean) * tf.math.rsqrt(variance + EPSILON), size)
            loss = tf.reduce_sum(y * dy)
        return [y, *tape.gradient(loss, [x, groups])]

    x, dy = (rng.normal(size=(2, 5, 8)).astype(np.float32) for _ in range(2))
    results = []
    for mode in (nv_norms_rewriter.disable, nv_norms_rewriter.enable):
        mode()
        nv_norms_rewriter.clear_report()
        signature = [tf.TensorSpec((None, None, 8))] * 2
        results.append(tf.function(step, signature)(tf.constant(x), tf.constant(dy)))
    for got, want in zip(*reversed(results), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    reasons = {record.reason for record in nv_norms_rewriter.report().refused}
    assert reasons == {"sizes_unknown"}, nv_norms_rewriter.report()
