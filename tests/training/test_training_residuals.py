"""The gradient of a norm in a network: some terms of the sum that x's gradient is."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training_norms import CENTRED, FOUR, GROUP, LAYER, LLAMA, MOMENTS, RMS, TF_KERAS_LAYER, Norm
from training_steps import assert_as_close_as_stock, check, normal, run_both, spec, step_of

NORMS = pytest.mark.parametrize(
    "norm",
    [
        pytest.param(norm, id=norm.name, marks=[] if norm in (*FOUR, CENTRED) else pytest.mark.slow)
        for norm in (*FOUR, TF_KERAS_LAYER, MOMENTS, CENTRED, LLAMA)
    ],
)


def _check(rng, norm, layers, function, variables, arrays, exact, count=1, **options) -> None:
    """function(*arrays) is the loss; exact: gradients of the first array and of the variables."""

    def make():
        @tf.function(input_signature=[spec(array) for array in arrays])
        def step(x, *others):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = function(x, *others)
            return tape.gradient(loss, [x, *variables])

        return step

    check(make, arrays, exact, {norm.kind: count}, {norm.kind: count}, **options)


def _inputs(rng, norm: Norm):
    x, dy = normal(rng, *norm.shape, mean=1.0), normal(rng, *norm.shape)
    weight = (normal(rng, norm.shape[-1], norm.shape[-1]) / np.sqrt(norm.shape[-1])).astype("f")
    return x, dy, weight, norm.parameters(rng)


def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The gradient of W in a W, given that of the product: a^T b over all axes but the last."""
    axes = list(range(a.ndim - 1))
    return np.tensordot(np.float64(a), np.float64(b), (axes, axes))


@NORMS
def test_identity_beside_the_norm(rng, norm: Norm) -> None:
    """x + norm(x): y itself is only some terms of a sum, and dx too."""
    x, dy, _, values = _inputs(rng, norm)
    layer, variables = norm.build(values)
    dx, *rest = norm.backward(dy, x, values)

    def loss(x, dy):
        return tf.reduce_sum((x + layer(x)) * dy)

    _check(rng, norm, layer, loss, variables, [x, dy], [dx + dy, *rest])


@NORMS
def test_residual_around_norm_and_matmul(rng, norm: Norm) -> None:
    """x + norm(x) W, the block of a transformer with its norms before."""
    x, dy, weight, values = _inputs(rng, norm)
    layer, variables = norm.build(values)
    w = tf.Variable(weight)
    dx, *rest = norm.backward(np.float64(dy) @ weight.T, x, values)
    y = norm.forward(x, values)
    dw = outer(y, dy)

    def loss(x, dy):
        return tf.reduce_sum((x + layer(x) @ w) * dy)

    _check(rng, norm, layer, loss, [*variables, w], [x, dy], [dx + dy, *rest, dw])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_forty_blocks_around_norms(rng, norm: Norm, shared: bool) -> None:
    """x + tanh(norm(x)) again and again: each gradient is whole, however deep the network is, and
    though dgamma be one sum over all blocks."""
    x, dy = normal(rng, *norm.shape), normal(rng, *norm.shape)
    blocks = [norm.parameters(rng) for _ in range(1 if shared else 40)]
    built = [norm.build(values) for values in blocks]
    layers, variables = zip(*built, strict=True)
    repeated = 40 // len(blocks)
    blocks, layers = blocks * repeated, layers * repeated
    inputs = [np.float64(x)]
    for values in blocks:
        inputs.append(inputs[-1] + np.tanh(norm.forward(inputs[-1], values)))
    exact, dx = [], np.float64(dy)
    for x_of, values in zip(inputs[-2::-1], blocks[::-1], strict=True):
        behind = dx * (1 - np.tanh(norm.forward(x_of, values)) ** 2)
        more, *rest = norm.backward(behind, x_of, values)
        exact, dx = rest + exact, dx + more
    count = len(blocks[0])
    if shared:
        exact = [sum(exact[i::count]) for i in range(count)]

    def function(x):
        for layer in layers:
            x = x + tf.tanh(layer(x))
        return x

    make = step_of(function, [v for own in variables for v in own], x, dy)
    stock, fused, report = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, [inputs[-1], dx, *exact], units=32)
    found = [record.outputs for record in report if record.fused and record.direction == "backward"]
    assert [len(outputs) for outputs in found] == [1 + count] * 40


def test_skip_beside_blocks_of_two_norms(rng) -> None:
    """x + a(x) + b(x) W, three times, and the first x added before the last: dx of each norm is
    some terms of a sum, and others hold the gradients of what comes later."""
    x, dy = normal(rng, *LAYER.shape), normal(rng, *LAYER.shape)
    weight = (normal(rng, LAYER.shape[-1], LAYER.shape[-1]) / LAYER.shape[-1]).astype("f")
    blocks = [(LAYER.parameters(rng), LAYER.parameters(rng)) for _ in range(3)]
    built = [(*LAYER.build(a), *LAYER.build(b)) for a, b in blocks]

    def function(first):
        x = first
        for number, (a, _, b, _) in enumerate(built):
            x = x + first if number == 2 else x
            x = x + a(x) + b(x) @ weight
        return x

    inputs, y = [], np.float64(x)
    for a, b in blocks:
        inputs.append(y + x if len(inputs) == 2 else y)
        y = inputs[-1] + LAYER.forward(inputs[-1], a) + LAYER.forward(inputs[-1], b) @ weight
    exact, dx, dskip = [], np.float64(dy), 0.0
    for before, (a, b) in zip(inputs[::-1], blocks[::-1], strict=True):
        da, *of_a = LAYER.backward(dx, before, a)
        db, *of_b = LAYER.backward(dx @ weight.T, before, b)
        dx, exact = dx + da + db, of_a + of_b + exact
        dskip = dx if before is inputs[-1] else dskip
    variables = [v for _, of_a, _, of_b in built for v in of_a + of_b]
    make = step_of(function, variables, x, dy)
    stock, fused, report = run_both(make, [x, dy])
    assert_as_close_as_stock(stock, fused, [y, dx + dskip, *exact], units=32)
    found = [record.outputs for record in report if record.direction == "backward"]
    assert [len(outputs) for outputs in found] == [3] * 6


@NORMS
def test_norm_after_a_residual(rng, norm: Norm) -> None:
    """norm(x + x W), the block of a transformer with its norms after."""
    x, dy, weight, values = _inputs(rng, norm)
    layer, variables = norm.build(values)
    w = tf.Variable(weight)
    inner = np.float64(x) + np.float64(x) @ weight
    ds, *rest = norm.backward(dy, inner, values)
    dw = outer(x, ds)

    def loss(x, dy):
        return tf.reduce_sum(layer(x + x @ w) * dy)

    _check(rng, norm, layer, loss, [*variables, w], [x, dy], [ds + ds @ weight.T, *rest, dw])


@NORMS
def test_several_norms_of_one_tensor(rng, norm: Norm) -> None:
    """They share their moments, and the sum that is x's gradient holds all their terms."""
    x, *dys = (normal(rng, *norm.shape) for _ in range(4))
    exact, layers, variables = 0.0, [], []
    parameters = []
    for dy in dys:
        values = norm.parameters(rng)
        layer, own = norm.build(values)
        layers.append(layer)
        variables += own
        dx, *rest = norm.backward(dy, x, values)
        exact = exact + dx
        parameters += rest

    def loss(x, *dys):
        outputs = [layer(x) * dy for layer, dy in zip(layers, dys, strict=True)]
        return tf.reduce_sum(tf.stack(outputs))

    _check(rng, norm, layers, loss, variables, [x, *dys], [exact, *parameters], count=3)


def test_norms_of_two_kinds_of_one_tensor(rng) -> None:
    x, dy = normal(rng, *LAYER.shape, mean=0.5), normal(rng, *LAYER.shape)
    values, others = LAYER.parameters(rng), RMS.parameters(rng)
    layer, variables = LAYER.build(values)
    rms, more = RMS.build(others)
    dx, *rest = LAYER.backward(dy, x, values)
    dx2, *rest2 = RMS.backward(dy, x, others)

    def make():
        @tf.function(input_signature=[spec(x), spec(dy)])
        def step(x, dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum((layer(x) + rms(x)) * dy)
            return tape.gradient(loss, [x, *variables, *more])

        return step

    both = {"layer_norm": 1, "rms_norm": 1}
    check(make, [x, dy], [dx + dx2, *rest, *rest2], both, both)


@pytest.mark.parametrize("norm", [LAYER, RMS, GROUP], ids=lambda norm: norm.name)
def test_a_chain_of_norms(rng, norm: Norm) -> None:
    """y of one is x of the next, and dx of the next is dy of the first.

    (Of two instance norms in a row the first has no gradient: they cancel.)
    """
    x, dy, _, values = _inputs(rng, norm)
    others = norm.parameters(rng)
    first, variables = norm.build(values)
    second, more = norm.build(others)
    inner = norm.forward(x, values)
    dinner, *rest2 = norm.backward(dy, inner, others)
    dx, *rest = norm.backward(dinner, x, values)

    def loss(x, dy):
        return tf.reduce_sum(second(first(x)) * dy)

    exact = [dx, *rest, *rest2]
    _check(rng, norm, None, loss, [*variables, *more], [x, dy], exact, count=2, units=64)


@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_a_layer_that_is_called_twice(rng, norm: Norm) -> None:
    """Shared weights: the gradients of gamma and beta are sums over both calls."""
    x, dy, _, values = _inputs(rng, norm)
    layer, variables = norm.build(values)
    other = normal(rng, *norm.shape)
    dx, *rest = norm.backward(dy, x, values)
    _, *rest2 = norm.backward(dy, other, values)

    def loss(x, other, dy):
        return tf.reduce_sum((layer(x) + layer(other)) * dy)

    exact = [dx, *(a + b for a, b in zip(rest, rest2, strict=True))]
    _check(rng, norm, layer, loss, variables, [x, other, dy], exact, count=2)


@pytest.mark.parametrize("norm", FOUR, ids=lambda norm: norm.name)
def test_activation_after_the_norm(rng, norm: Norm) -> None:
    """relu's gradient reads y, which is beside the fused op's gradient."""
    x, dy, _, values = _inputs(rng, norm)
    layer, variables = norm.build(values)
    positive = norm.forward(x, values) > 0

    def loss(x, dy):
        return tf.reduce_sum(tf.nn.relu(layer(x)) * dy)

    _check(rng, norm, layer, loss, variables, [x, dy], norm.backward(dy * positive, x, values))


def test_group_norm_and_silu_in_a_residual_block(rng) -> None:
    """The block of a diffusion model: x + conv(silu(group_norm(x)))."""
    x, dy = normal(rng, *GROUP.shape), normal(rng, *GROUP.shape)
    values = GROUP.parameters(rng)
    layer, variables = GROUP.build(values)
    kernel = tf.Variable(normal(rng, 1, 1, 8, 8))
    y = GROUP.forward(x, values)
    gate = 1 / (1 + np.exp(-y))
    dinner = np.float64(dy) @ kernel.numpy()[0, 0].T
    dx, *rest = GROUP.backward(dinner * (gate + y * gate * (1 - gate)), x, values)
    dkernel = outer(y * gate, dy)[None, None]

    def loss(x, dy):
        return tf.reduce_sum((x + tf.nn.conv2d(tf.nn.silu(layer(x)), kernel, 1, "SAME")) * dy)

    _check(rng, GROUP, layer, loss, [*variables, kernel], [x, dy], [dx + dy, *rest, dkernel])
