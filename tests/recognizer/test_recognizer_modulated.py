"""Norms with a gamma and a beta that are then scaled and shifted for each sample, as guided
diffusion and FiLM do: one op, forward and backward. What only looks so stays beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import fused_nodes, placeholder, run, trace

from nv_norms_rewriter import rewrite

EPSILON = 1e-3
BATCH, ROWS, CHANNELS, GROUPS = 3, (5, 4), 8, 2
SHAPE, PARAM = (BATCH, *ROWS, CHANNELS), (BATCH, 1, 1, CHANNELS)
FIRST, PARAM_FIRST = (BATCH, CHANNELS, *ROWS), (BATCH, CHANNELS, 1, 1)
BOTH = ("scale", "offset")
AFFINE = ("gamma", "beta")

v1 = tf.compat.v1
Arrays = dict[str, np.ndarray]


def normalized(x: tf.Tensor, axes: list[int], center: bool = True) -> tf.Tensor:
    if not center:
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axes, keepdims=True) + EPSILON)
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON)


def layer_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-1])


def rms_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-1], center=False)


def instance_norm(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [1, 2])


def instance_norm_first(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [2, 3])


def group_norm(x: tf.Tensor) -> tf.Tensor:
    grouped = tf.reshape(x, [-1, *ROWS, GROUPS, CHANNELS // GROUPS])
    return tf.reshape(normalized(grouped, [1, 2, 4]), [-1, *ROWS, CHANNELS])


def layer_norm_of_two_axes(x: tf.Tensor) -> tf.Tensor:
    return normalized(x, [-2, -1])


NORMS = [layer_norm, rms_norm, instance_norm, instance_norm_first, group_norm]
OPS = {
    layer_norm: "FusedLayerNorm",
    layer_norm_of_two_axes: "FusedLayerNorm",
    rms_norm: "FusedRMSNorm",
    instance_norm: "FusedInstanceNorm",
    instance_norm_first: "FusedInstanceNorm",
    group_norm: "FusedGroupNorm",
}
Norm = Callable[[tf.Tensor], tf.Tensor]


def shapes(norm: Norm) -> dict[str, tuple[int, ...]]:
    x, param, of_all = SHAPE, PARAM, (CHANNELS,)
    if norm is instance_norm_first:
        x, param, of_all = FIRST, PARAM_FIRST, (CHANNELS, 1, 1)
    if norm is layer_norm_of_two_axes:
        param, of_all = (BATCH, 1, *SHAPE[2:]), SHAPE[2:]
    return {"x": x, "dy": x, "scale": param, "offset": param, "gamma": of_all, "beta": of_all}


def modulated(norm: Norm, x: tf.Tensor, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
    y = norm(x)
    for name, op in {"gamma": "*", "beta": "+", "scale": "*", "offset": "+"}.items():
        if name in given:
            y = y * given[name] if op == "*" else y + given[name]
    return y


def graph_of(norm: Norm, given: tuple[str, ...], batch: int | None = BATCH, dtype=tf.float32):
    """y and the gradients of all."""

    def make() -> None:
        def tensor(name: str) -> tf.Tensor:
            of_each = name not in AFFINE
            shape = shapes(norm)[name]
            return placeholder(name, (batch, *shape[1:]) if of_each else shape, dtype)

        x, dy = tensor("x"), tensor("dy")
        parameters = {name: tensor(name) for name in given}
        y = modulated(norm, x, parameters)
        tf.identity(y, name="y")
        gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *given], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    return trace(make)


def feeds(rng: np.random.Generator, norm: Norm, given: tuple[str, ...], dtype="f") -> Arrays:
    names = ["x", "dy", *given]
    return {name: rng.normal(0.5, 2.0, shapes(norm)[name]).astype(dtype) for name in names}


def statistics(norm: Norm, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable]:
    """xhat, rstd and how a mean is taken, from the formulas."""
    axes = {layer_norm: (3,), rms_norm: (3,), layer_norm_of_two_axes: (2, 3)}.get(norm, (1, 2))
    axes = (2, 3) if norm is instance_norm_first else axes

    def mean(values: np.ndarray) -> np.ndarray:
        if norm is not group_norm:
            return np.broadcast_to(values.mean(axes, keepdims=True), values.shape)
        grouped = values.reshape(len(values), *ROWS, GROUPS, -1)
        means = grouped.mean((1, 2, 4), keepdims=True)
        return np.broadcast_to(means, grouped.shape).reshape(values.shape)

    e = x - mean(x) if norm is not rms_norm else x
    rstd = 1 / np.sqrt(mean(e**2) + EPSILON)
    return e * rstd, rstd, mean


def exact(norm: Norm, values: Arrays) -> Arrays:
    v = {name: value.astype(np.float64) for name, value in values.items()}
    one, zero = np.ones(1), np.zeros(1)
    gamma, scale = v.get("gamma", one), v.get("scale", one)
    beta, offset = v.get("beta", zero), v.get("offset", zero)
    xhat, rstd, mean = statistics(norm, v["x"])
    dy = v["dy"]
    w = dy * scale * gamma
    dx = rstd * (w - xhat * mean(w * xhat) - (0 if norm is rms_norm else mean(w)))

    def summed(of: np.ndarray, name: str) -> np.ndarray:
        shape = shapes(norm)[name]
        full = (1,) * (of.ndim - len(shape)) + shape
        axes = tuple(a for a in range(of.ndim) if full[a] == 1)
        return of.sum(axes).reshape(shape)

    return {
        "y": (xhat * gamma + beta) * scale + offset,
        "dx": dx,
        "dgamma": summed(dy * scale * xhat, "gamma"),
        "dbeta": summed(dy * scale, "beta"),
        "dscale": summed(dy * (xhat * gamma + beta), "scale"),
        "doffset": summed(dy, "offset"),
    }


def compare(graph, after, values: Arrays, names: list[str], expected: Arrays, tolerance: float):
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape and got.dtype == stock.dtype, name
        largest = tolerance * np.abs(expected[name]).max()
        reference = expected[name].reshape(stock.shape)
        np.testing.assert_allclose(got.astype("d"), reference, tolerance, largest, err_msg=name)


def assert_taken_in(after, report, norm: Norm) -> None:
    assert sorted(r.direction for r in report.fused) == ["backward", "forward"], report
    assert not report.refused
    (node,) = fused_nodes(after)
    (gradient,) = (n for n in after.node if n.op == f"{OPS[norm]}Grad")
    assert node.op == OPS[norm] and node.attr["per_sample"].b and gradient.attr["per_sample"].b
    (forward,) = (r for r in report.fused if r.direction == "forward")
    (backward,) = (r for r in report.fused if r.direction == "backward")
    assert forward.outputs == (f"{node.name}:0",)
    assert backward.inputs[0] == f"{gradient.input[0]}:0"


def large_ops(after, names: list[str]) -> list[str]:
    """What the fetches still need of the ops that compute with as many numbers as x has."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(after, name="")
    needed = {tensor.split(":")[0].lstrip("^") for tensor in names}
    waiting = list(needed)
    while waiting:
        op = graph.get_operation_by_name(waiting.pop())
        new = {tensor.op.name for tensor in op.inputs} - needed
        needed |= new
        waiting += new
    large = []
    for op in map(graph.get_operation_by_name, needed):
        if op.type in ("Mul", "AddV2", "Sub", "Sum", "Rsqrt", "Mean"):
            sizes = [t.shape[1:-1].num_elements() for t in op.inputs if t.shape.rank == 4]
            large += [op.name] * any(size is None or size >= ROWS[0] for size in sizes)
    return large


GIVEN = [
    (*AFFINE, *BOTH),
    ("gamma", *BOTH),
    ("beta", *BOTH),
    (*AFFINE, "scale"),
    (*AFFINE, "offset"),
]


@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("given", GIVEN, ids="-".join)
@pytest.mark.parametrize("norm", NORMS, ids=lambda n: n.__name__)
def test_norm_and_its_gradients_are_one_op_each(rng, norm, given, batch) -> None:
    graph = graph_of(norm, given, batch)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    if norm is not instance_norm_first:
        assert not large_ops(after, names)
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


def test_several_axes(rng) -> None:
    norm, given = layer_norm_of_two_axes, (*AFFINE, *BOTH)
    graph = graph_of(norm, given)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("norm", [layer_norm, group_norm], ids=lambda n: n.__name__)
def test_types(rng, norm: Norm, dtype) -> None:
    given = (*AFFINE, *BOTH)
    graph = graph_of(norm, given, dtype=dtype)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given, dtype.as_numpy_dtype)
    tolerance = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float64: 1e-12}[dtype]
    compare(graph, after, values, names, exact(norm, values), tolerance)


@pytest.mark.parametrize("one", ["x", "scale", "offset", "x scale", "scale offset"])
@pytest.mark.parametrize("norm", [layer_norm, instance_norm, group_norm], ids=lambda n: n.__name__)
def test_one_sample_that_stands_for_many(rng, norm: Norm, one: str) -> None:
    """Of a batch whose size is not known while tracing."""
    given = (*AFFINE, *BOTH)
    graph = graph_of(norm, given, None)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=names)
    assert_taken_in(after, report, norm)
    values = feeds(rng, norm, given)
    values |= {name: values[name][:1] for name in one.split()}
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape, name
        np.testing.assert_allclose(got, stock, 1e-4, 3e-5 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("wanted", ["y", "y dx", "y dscale dx", "y dx doffset", "dgamma dbeta y"])
@pytest.mark.parametrize("norm", [rms_norm, group_norm], ids=lambda n: n.__name__)
def test_some_of_the_gradients(rng, norm: Norm, wanted: str) -> None:
    given, names = (*AFFINE, *BOTH), wanted.split()
    graph = graph_of(norm, given)
    after, _ = rewrite(graph, fetches=names)
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    values = feeds(rng, norm, given)
    compare(graph, after, values, names, exact(norm, values), 2e-5)


@pytest.mark.parametrize(
    "activation", [tf.nn.relu, lambda y: y * tf.sigmoid(y)], ids=["relu", "silu"]
)
def test_activation_behind_it_goes_in_on_a_gpu(rng, activation) -> None:
    """What is rewritten for a GPU runs here on a CPU."""
    given = (*AFFINE, *BOTH)
    silu = activation is not tf.nn.relu

    def make() -> None:
        x, dy = (placeholder(name, (None, *SHAPE[1:])) for name in ("x", "dy"))
        parameters = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        parameters |= {name: placeholder(name, (None, *PARAM[1:])) for name in BOTH}
        y = activation(modulated(group_norm, x, parameters))
        tf.identity(y, name="y")
        if silu:  # whose gradient TensorFlow writes so only in Keras
            return
        gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *parameters], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    graph = trace(make)
    names = ["y"] if silu else ["y", "dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, "/device:GPU:0", names)
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert (node.attr["silu"].b, node.attr["negative_slope"].f) == (silu, float(silu))
    inside = {r.direction for r in report.fused if r.silu or r.negative_slope == 0}
    assert inside == ({"forward"} if silu else {"forward", "backward"})
    values = feeds(rng, group_norm, given)
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 3e-5 * np.abs(stock).max(), err_msg=name)


@pytest.mark.parametrize("device", ["/device:GPU:0", "/device:CPU:0"])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("rows", [64, 4096])
def test_small_norms_that_are_trained_on_a_gpu_stay(rows: int, trained: bool, device: str) -> None:
    """The few numbers' ops would take longer there. What is rewritten does not run here."""

    def make() -> None:
        x = placeholder("x", (16, rows, 64))
        scale = placeholder("scale", (16, 1, 64))
        y = layer_norm(x) * placeholder("gamma", (64,)) * scale
        tf.identity(y, name="y")
        dy = placeholder("dy", (16, rows, 64))
        for name, value in zip("xs", tf.gradients(y, [x, scale], grad_ys=dy), strict=True):
            tf.identity(value, name=f"d{name}")

    after, _ = rewrite(trace(make), device, ["y", *["dx", "ds"] * trained])
    stays = device == "/device:GPU:0" and trained and rows == 64
    assert one_norm(after) is not stays


def one_norm(after) -> bool:
    """Whether the only norm has parameters of each sample."""
    (node,) = fused_nodes(after)
    return node.attr["per_sample"].b


BESIDE = {
    "of each sample and row": (BATCH, ROWS[0], 1, CHANNELS),
    "of each element": SHAPE,
    "of each sample": (BATCH, 1, 1, 1),
    "of each row of all samples, and channel": (1, ROWS[0], 1, CHANNELS),
    "of one sample": (1, 1, 1, CHANNELS),
    "without samples": (1, 1, CHANNELS),
}


@pytest.mark.parametrize("shape", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("norm", [rms_norm, group_norm], ids=lambda n: n.__name__)
def test_other_scales_stay_beside_the_op(rng, norm: Norm, shape: tuple[int, ...]) -> None:
    def make() -> None:
        x, scale = placeholder("x", SHAPE), placeholder("scale", shape)
        given = {name: placeholder(name, (CHANNELS,)) for name in AFFINE}
        tf.identity(modulated(norm, x, given | {"scale": scale}), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after)
    values = feeds(rng, norm, AFFINE)
    values["scale"] = rng.normal(0.5, 2.0, shape).astype("f")
    del values["dy"]
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def second_reader(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return tf.exp(-tf.square(y))


def second_scale(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return y * placeholder("other", PARAM)


def gate(y: tf.Tensor, product: tf.Tensor) -> tf.Tensor:
    return y * tf.sigmoid(product)


@pytest.mark.parametrize("other", [second_reader, second_scale, gate], ids=lambda f: f.__name__)
def test_y_that_others_read_stays(rng, other) -> None:
    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, "scale")}
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        product = y * given["scale"]
        tf.identity(product, name="y")
        tf.identity(other(y, product), name="z")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "z"])
    assert not one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, "scale"))
    del values["dy"]
    if other is second_scale:
        values["other"] = rng.normal(size=PARAM).astype("f")
    for name in "yz":
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def test_y_that_is_fetched_stays() -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(rms_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = rms_norm(x) * given["gamma"]
        y = tf.add(y, given["beta"], name="affine")
        tf.identity(y * given["scale"] + given["offset"], name="y")

    after, _ = rewrite(trace(make), fetches=["y", "affine"])
    assert not one_norm(after)


def test_product_that_others_read_is_the_result(rng) -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = modulated(group_norm, x, {name: given[name] for name in (*AFFINE, "scale")})
        tf.identity(y, name="product")
        tf.identity(y + given["offset"], name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "product"])
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    expected = exact(group_norm, values)["y"]
    del values["dy"]
    np.testing.assert_allclose(run(after, values), expected, 1e-4, 1e-4)
    product = expected - values["offset"]
    np.testing.assert_allclose(run(after, values, "product:0"), product, 1e-4, 1e-4)


@pytest.mark.parametrize("one", ["", "x", "scale"])
@pytest.mark.parametrize("batch", [BATCH, None])
def test_shapes_of_what_goes_stay_readable(rng, batch: int | None, one: str) -> None:
    def make() -> None:
        x = placeholder("x", (batch, *SHAPE[1:]))
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        given |= {name: placeholder(name, (batch, *PARAM[1:])) for name in BOTH}
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        product = y * given["scale"]
        tf.identity(product + given["offset"], name="y")
        tf.identity(tf.raw_ops.Shape(input=y), name="of_y")
        tf.identity(tf.raw_ops.Shape(input=product), name="of_product")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "of_y", "of_product"])
    assert one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    del values["dy"]
    if batch is None and one:
        values[one] = values[one][:1]
    for name in ("y", "of_y", "of_product"):
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_beta_that_an_optimizer_writes_in_place_stays(trained: bool, resource: bool) -> None:
    """The scale's gradient would read beta later than the graph did."""

    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in ("gamma", *BOTH)}
        with v1.variable_scope("", use_resource=resource):
            given["beta"] = v1.get_variable("beta", (CHANNELS,))
        y = modulated(group_norm, x, given)
        tf.identity(y, name="y")
        if trained:
            dy = placeholder("dy", SHAPE)
            dx, dscale = tf.gradients(y, [x, given["scale"]], grad_ys=dy)
            tf.identity(dx, name="dx")
            tf.identity(dscale, name="dscale")

    after, _ = rewrite(trace(make), fetches=["y", *["dx", "dscale"] * trained])
    assert one_norm(after) is (resource or not trained)


def test_scale_that_is_computed_from_y_stays_beside(rng) -> None:
    """By what reads the norm's statistics alone: its gradient."""

    def make() -> None:
        x, dy = placeholder("x", SHAPE), placeholder("dy", SHAPE)
        gamma = placeholder("gamma", (CHANNELS,))
        y = layer_norm(x) * gamma
        (dx,) = tf.gradients(y, [x], grad_ys=dy)
        scale = tf.reduce_mean(dx, [1, 2], keepdims=True)
        tf.identity(y * scale, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after)
    values = feeds(rng, layer_norm, ("gamma",))
    stock, got = (run(each, values) for each in (graph, after))
    np.testing.assert_allclose(got, stock, 1e-4, 1e-4)


def test_gradients_of_two_losses(rng) -> None:
    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        y = modulated(group_norm, x, given)
        tf.identity(y, name="y")
        for i in range(2):
            dy = placeholder(f"dy{i}", SHAPE)
            gradients = tf.gradients(y, [x, *given.values()], grad_ys=dy)
            for name, value in zip(["x", *given], gradients, strict=True):
                tf.identity(value, name=f"d{name}{i}")

    graph = trace(make)
    given = (*AFFINE, *BOTH)
    names = ["y", *(f"d{name}{i}" for i in range(2) for name in ("x", *given))]
    after, report = rewrite(graph, fetches=names)
    assert [r.direction for r in report.fused].count("backward") == 2
    assert one_norm(after)
    values = feeds(rng, group_norm, given)
    values |= {f"dy{i}": rng.normal(size=SHAPE).astype("f") for i in range(2)}
    del values["dy"]
    for i in range(2):
        one = {name: value for name, value in values.items() if name[:2] != "dy"}
        expected = exact(group_norm, one | {"dy": values[f"dy{i}"]})
        for name in ("x", *given):
            got = run(after, values, f"d{name}{i}:0")
            largest = 2e-5 * np.abs(expected[f"d{name}"]).max()
            np.testing.assert_allclose(got, expected[f"d{name}"], 2e-5, largest, err_msg=name)


@pytest.mark.parametrize("batch", [BATCH, None])
def test_sums_over_other_axes_stay(rng, batch) -> None:
    """A sum of dy * y over the samples, too, is the gradient of something else."""

    def make() -> None:
        x, dy = placeholder("x", SHAPE), placeholder("dy", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, "scale")}
        affine = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        y = affine * given["scale"]
        tf.identity(y, name="y")
        (dx,) = tf.gradients(y, [x], grad_ys=dy)
        tf.identity(dx, name="dx")
        tf.reduce_sum(affine * dy, [0, 1, 2], name="sums")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y", "dx", "sums"])
    assert not one_norm(after)
    values = feeds(rng, group_norm, (*AFFINE, "scale"))
    for name in ("y", "dx", "sums"):
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        np.testing.assert_allclose(got, stock, 1e-4, 1e-4 * np.abs(stock).max())


def waits_for(after, name: str, check: str) -> bool:
    nodes = {node.name: node for node in after.node}
    waiting, seen = [name], {name}
    while waiting:
        sources = {i.lstrip("^").split(":")[0] for i in nodes[waiting.pop()].input} - seen
        seen |= sources
        waiting += sources
    return check in seen


@pytest.mark.parametrize("batch", [BATCH, None])
def test_gradients_still_wait_for_what_they_waited_for(rng, batch) -> None:
    given = (*AFFINE, *BOTH)

    def make() -> None:
        def tensor(name: str) -> tf.Tensor:
            shape = shapes(group_norm)[name]
            return placeholder(name, shape if name in AFFINE else (batch, *shape[1:]))

        x, dy = tensor("x"), tensor("dy")
        parameters = {name: tensor(name) for name in given}
        y = modulated(group_norm, x, parameters)
        tf.identity(y, name="y")
        with tf.control_dependencies([tf.no_op(name="check")]):
            gradients = tf.gradients(y, [x, *parameters.values()], grad_ys=dy)
        for name, value in zip(["x", *parameters], gradients, strict=True):
            tf.identity(value, name=f"d{name}")

    graph = trace(make)
    gradients = ["dx", *(f"d{name}" for name in given)]
    after, report = rewrite(graph, fetches=["y", *gradients])
    assert_taken_in(after, report, group_norm)
    assert [waits_for(after, name, "check") for name in ["y", *gradients]] == [False] + [True] * 5
    values = feeds(rng, group_norm, given)
    compare(graph, after, values, ["y", *gradients], exact(group_norm, values), 2e-5)


def test_norm_that_waits_less_than_its_modulation_stays(rng) -> None:
    def make() -> None:
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in (*AFFINE, *BOTH)}
        x = placeholder("x", SHAPE)
        y = modulated(group_norm, x, {name: given[name] for name in AFFINE})
        with tf.control_dependencies([tf.no_op(name="check")]):
            y = y * given["scale"] + given["offset"]
        tf.identity(y, name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    assert not one_norm(after) and waits_for(after, "y", "check")


@pytest.mark.parametrize("samples", [0, 1])
def test_few_samples(rng, samples: int) -> None:
    given = (*AFFINE, *BOTH)
    graph = graph_of(group_norm, given, None)
    names = ["y", "dx", *(f"d{name}" for name in given)]
    after, _ = rewrite(graph, fetches=names)
    values = feeds(rng, group_norm, given)
    values |= {name: values[name][:samples] for name in ("x", "dy", *BOTH)}
    for name in names:
        stock, got = (run(each, values, f"{name}:0") for each in (graph, after))
        assert got.shape == stock.shape, name
        largest = 3e-5 * np.abs(stock).max(initial=0)
        np.testing.assert_allclose(got, stock, 1e-4, largest, err_msg=name)


def test_casts_beside_it_go_in(rng) -> None:
    """The norm in float32, scale and offset in float16, behind that float32 again."""

    def make() -> None:
        x = placeholder("x", SHAPE)
        given = {name: placeholder(name, shapes(group_norm)[name]) for name in AFFINE}
        y = tf.cast(modulated(group_norm, x, given), tf.float16)
        scale, offset = (placeholder(name, PARAM, tf.float16) for name in BOTH)
        tf.identity(tf.cast(y * scale + offset, tf.float32), name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    (node,) = fused_nodes(after)
    assert node.attr["per_sample"].b
    assert node.attr["T"].type == node.attr["out_type"].type == tf.float32
    values = feeds(rng, group_norm, (*AFFINE, *BOTH))
    values |= {name: values[name].astype(np.float16) for name in BOTH}
    expected = exact(group_norm, values)["y"]
    del values["dy"]
    np.testing.assert_allclose(run(after, values), expected, 1e-4, 1e-4)
