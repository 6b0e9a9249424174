"""Gradients that are the textbook's, that are nearly so, and that other terms are mixed with."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace, v1

import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _values(rng: np.random.Generator, shape: tuple[int, ...] = (3, 8)) -> dict[str, np.ndarray]:
    draw = {"x": rng.normal(1.0, 2.0, shape), "dy": rng.normal(size=shape)}
    draw |= {"gamma": rng.uniform(0.5, 2, shape[-1]), "beta": rng.normal(size=shape[-1])}
    return {name: value.astype(np.float32) for name, value in draw.items()}


def _check(values, norm, loss, expected, backward: bool, shape=(None, 8)) -> None:
    """The gradients of `loss` by x, gamma and beta are as expected, before and after."""

    def make() -> None:
        x, dy = placeholder("x", shape), placeholder("dy", shape)
        gamma, beta = placeholder("gamma", (shape[-1],)), placeholder("beta", (shape[-1],))
        y = norm(x, gamma, beta)
        total = tf.reduce_sum(loss(x, gamma, beta, y, dy))
        tf.identity(total, name="total")
        for name, gradient in zip("abc", tf.gradients(total, [x, gamma, beta]), strict=True):
            tf.identity(gradient, name=name)

    graph = trace(make)
    after, report = rewrite(graph, fetches=["total", "a", "b", "c"])
    for each in (graph, after):
        got = run(each, values, ["a:0", "b:0", "c:0"])
        for one, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)
    fused = [record for record in report.fused if record.direction == "backward"]
    assert bool(fused) == backward


def _layer(x, gamma, beta):
    return layer_norm(x, -1, EPSILON, gamma, beta)


def _textbook(values, dy=None):
    dy = values["dy"] if dy is None else dy
    return oracle.backward(dy, values["x"], values["gamma"], (-1,), (-1,), EPSILON)


def test_layer_norm(rng) -> None:
    values = _values(rng)
    _check(values, _layer, lambda x, g, b, y, dy: y * dy, _textbook(values), True)


def test_sizes_that_coincide(rng) -> None:
    values = _values(rng, (8, 8, 8))
    loss = lambda x, g, b, y, dy: y * dy  # noqa: E731
    _check(values, _layer, loss, _textbook(values), True, (8, 8, 8))


def test_residual_around_the_norm(rng) -> None:
    values = _values(rng)
    dx, dgamma, dbeta = _textbook(values)
    loss = lambda x, g, b, y, dy: (y + x) * dy  # noqa: E731
    _check(values, _layer, loss, (dx + values["dy"], dgamma, dbeta), True)


def test_gradient_that_comes_from_y_itself(rng) -> None:
    values = _values(rng)
    y = oracle.layer_norm(values["x"], values["gamma"], values["beta"], epsilon=EPSILON).y
    loss = lambda x, g, b, y, dy: y * y * dy  # noqa: E731
    _check(values, _layer, loss, _textbook(values, 2 * y * values["dy"]), True)


def test_gamma_and_beta_that_the_loss_reads_too(rng) -> None:
    values = _values(rng)
    dx, dgamma, dbeta = _textbook(values)
    g, b = (values[name].astype(np.float64) for name in ("gamma", "beta"))
    loss = lambda x, g, b, y, dy: tf.reduce_sum(y * dy) + tf.reduce_sum(g * g * b)  # noqa: E731
    _check(values, _layer, loss, (dx, dgamma + 2 * g * b, dbeta + g * g), True)


@pytest.mark.parametrize("stopped", ["mean", "variance", "xhat"])
def test_gradient_that_is_stopped_half_way(rng, stopped: str) -> None:
    """dx is another one than the textbook's; dgamma and dbeta are the same."""

    def norm(x, gamma, beta):
        stop = {stopped: tf.stop_gradient}
        mean = stop.get("mean", tf.identity)(tf.reduce_mean(x, -1, keepdims=True))
        squares = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        variance = stop.get("variance", tf.identity)(squares)
        xhat = stop.get("xhat", tf.identity)((x - mean) * tf.math.rsqrt(variance + EPSILON))
        return xhat * gamma + beta + x

    values = _values(rng)
    _, dgamma, dbeta = _textbook(values)
    xhat, _, rstd = oracle.normalize(values["x"], (-1,), EPSILON, True)
    w = values["dy"].astype(np.float64) * values["gamma"]
    along = (w * xhat).mean(-1, keepdims=True)
    dx = {
        "mean": rstd * (w - xhat * along),
        "variance": rstd * (w - w.mean(-1, keepdims=True)),
        "xhat": 0.0,
    }[stopped]
    expected = (dx + values["dy"], dgamma, dbeta)
    _check(values, norm, lambda x, g, b, y, dy: y * dy, expected, True)


@pytest.mark.parametrize("taken", [True, False])
def test_gradient_through_a_branch(rng, old_control_flow, taken: bool) -> None:
    values = _values(rng)

    def make() -> None:
        x, dy = placeholder("x", (None, 8)), placeholder("dy", (None, 8))
        p = placeholder("p", (), tf.bool)
        gamma = placeholder("gamma", (8,))
        y = v1.cond(p, lambda: layer_norm(x, gamma=gamma), lambda: x * gamma)
        tf.identity(tf.gradients(y, x, dy)[0], name="y")

    graph = trace(make)
    after, _ = rewrite(graph, fetches=["y"])
    feeds = {name: values[name] for name in ("x", "dy", "gamma")} | {"p": taken}
    expected = _textbook(values).dx if taken else values["dy"] * values["gamma"]
    for each in (graph, after):
        np.testing.assert_allclose(run(each, feeds), expected, 5e-5, 5e-5)


def _gradient_graph(make_loss, shape=(None, 8), outputs=("a", "b", "c"), norm=_layer):
    """Gradients of a loss of layer norms by x, gamma and beta, and nothing else."""

    def make() -> None:
        x, dy = placeholder("x", shape), placeholder("dy", shape)
        gamma, beta = placeholder("gamma", (shape[-1],)), placeholder("beta", (shape[-1],))
        total = tf.reduce_sum(make_loss(norm(x, gamma, beta), dy))
        for name, gradient in zip(outputs, tf.gradients(total, [x, gamma, beta]), strict=True):
            tf.identity(gradient, name=name)

    return trace(make)


def _rewritten(graph, fetches) -> tuple:
    after, report = rewrite(graph, fetches=list(fetches))
    return after, [record for record in report.fused if record.direction == "backward"]


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_gradient_without_the_output(rng, kind: str) -> None:
    """Nobody asks for the loss: the graph holds the gradient, y is not even computed."""

    def rms(x, gamma, beta):
        mean_square = tf.reduce_mean(tf.square(x), -1, keepdims=True)
        return x * tf.math.rsqrt(mean_square + EPSILON) * gamma + beta

    values = _values(rng)
    graph = _gradient_graph(lambda y, dy: y * dy, norm={"layer": _layer, "rms": rms}[kind])
    pruned = tf.compat.v1.graph_util.extract_sub_graph(graph, ["a", "b", "c"])
    after, fused = _rewritten(pruned, "abc")
    assert len(fused) == 1
    assert not any(node.op == "RsqrtGrad" for node in after.node)
    given = (values[name] for name in ("dy", "x", "gamma"))
    expected = oracle.backward(*given, (-1,), (-1,), EPSILON, subtract_mean=kind == "layer")
    for one, want in zip(run(after, values, ["a:0", "b:0", "c:0"]), expected, strict=True):
        np.testing.assert_allclose(one, want, 5e-5, 5e-5)


@pytest.mark.parametrize("part", [1.0, 1.5])
def test_gamma_inside_of_what_comes_back(rng, part: float) -> None:
    """dx of dy * gamma as (dy * gamma) * 3: no tensor is dy. It is one if all of it is there."""
    values = _values(rng)

    def make() -> None:
        x, dy, gamma = placeholder("x", (3, 8)), placeholder("dy", (3, 8)), placeholder("gamma", 8)
        rstd = tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + EPSILON)
        tf.identity(x * rstd * gamma, name="y")
        w = (dy * gamma) * 3.0
        along = tf.reduce_mean(w * x, -1, keepdims=True) * rstd * part
        tf.identity(rstd * (w - x * rstd * along), name="dx")

    graph = trace(make)
    after, fused = _rewritten(graph, ["y", "dx"])
    assert bool(fused) == (part == 1.0)
    x, w = values["x"].astype(np.float64), 3.0 * values["dy"] * values["gamma"]
    rstd = 1.0 / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
    want = rstd * (w - part * x * rstd * (w * x * rstd).mean(-1, keepdims=True))
    given = {name: values[name] for name in ("x", "dy", "gamma")}
    for each in (graph, after):
        np.testing.assert_allclose(run(each, given, "dx:0"), want, 5e-5, 5e-5)


def _take_sums_apart(graph) -> int:
    """What TensorFlow's memory optimizer does to large sums; returns how many there were."""
    count = 0
    for node in list(graph.node):
        if node.op != "AddN":
            continue
        count += 1
        dtype = node.attr["T"]
        terms = list(node.input)
        variable = graph.node.add(name=f"{node.name}/tmp_var", op="TemporaryVariable")
        variable.attr["dtype"].CopyFrom(dtype)
        variable.attr["shape"].shape.unknown_rank = True
        variable.attr["var_name"].s = f"{node.name}/tmp_var".encode()
        zeros = graph.node.add(name=f"{node.name}/tmp_var_zeros", op="ZerosLike")
        zeros.attr["T"].CopyFrom(dtype)
        zeros.input.append(terms[0])
        assign = graph.node.add(name=f"{node.name}/tmp_var_initializer", op="Assign")
        assign.attr["T"].CopyFrom(dtype)
        assign.attr["use_locking"].b = False
        assign.attr["validate_shape"].b = False
        assign.input.extend([variable.name, zeros.name])
        node.op = "DestroyTemporaryVariable"
        del node.input[:]
        del node.attr["N"]
        node.attr["var_name"].s = variable.attr["var_name"].s
        node.input.append(assign.name)
        for number, term in enumerate(terms):
            add = graph.node.add(name=f"{node.name}/tmp_var_accum_{number}", op="AssignAdd")
            add.attr["T"].CopyFrom(dtype)
            add.attr["use_locking"].b = False
            add.input.extend([assign.name, term])
            node.input.append(f"^{add.name}")
    return count


def test_sum_that_the_memory_optimizer_took_apart(rng) -> None:
    values = _values(rng)
    graph = _gradient_graph(lambda y, dy: y * dy)
    assert _take_sums_apart(graph) >= 1
    after, fused = _rewritten(graph, "abc")
    assert len(fused) == 1
    assert not any("TemporaryVariable" in node.op for node in after.node)
    for each in (graph, after):
        got = run(each, values, ["a:0", "b:0", "c:0"])
        for one, want in zip(got, _textbook(values), strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)


def test_two_losses_of_one_norm(rng) -> None:
    values = _values(rng) | {"dy2": rng.normal(size=(3, 8)).astype(np.float32)}

    def make() -> None:
        x, dy, dy2 = (placeholder(name, (None, 8)) for name in ("x", "dy", "dy2"))
        gamma, beta = placeholder("gamma", (8,)), placeholder("beta", (8,))
        y = tf.identity(_layer(x, gamma, beta), name="y")
        for number, seed in enumerate((dy, dy2)):
            gradients = tf.gradients(y, [x, gamma, beta], seed)
            for name, gradient in zip("abc", gradients, strict=True):
                tf.identity(gradient, name=f"{name}{number}")

    graph = trace(make)
    names = [f"{name}{number}" for number in range(2) for name in "abc"]
    after, fused = _rewritten(graph, ["y", *names])
    assert len(fused) == 2
    expected = [*_textbook(values), *_textbook(values, values["dy2"])]
    for each in (graph, after):
        for one, want in zip(run(each, values, [f"{n}:0" for n in names]), expected, strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)


def test_several_norms_of_one_tensor_have_a_gradient_each(rng) -> None:
    values = _values(rng)

    def make() -> None:
        x, dy = placeholder("x", (None, 8)), placeholder("dy", (None, 8))
        gamma, beta = placeholder("gamma", (8,)), placeholder("beta", (8,))
        total = 0.0
        for factor in (1.0, -2.0, 3.0):
            total += factor * tf.reduce_sum(_layer(x, gamma * factor, beta) * dy)
        tf.identity(total, name="total")
        for name, gradient in zip("abc", tf.gradients(total, [x, gamma, beta]), strict=True):
            tf.identity(gradient, name=name)

    graph = trace(make)
    after, report = rewrite(graph, fetches=["total", "a", "b", "c"])
    assert [sum(r.direction == d for r in report.fused) for d in ("forward", "backward")] == [3, 3]
    # dy stands for 1 * dy with gamma, -2 * dy with -2 gamma, 3 * dy with 3 gamma.
    dx, dgamma, dbeta = _textbook(values)
    expected = (14 * dx, 14 * dgamma, 2 * dbeta)
    for each in (graph, after):
        got = run(each, values, ["a:0", "b:0", "c:0"])
        for one, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, want, 2e-4, 2e-4)


def test_dy_that_is_transposed_once_for_each_reader(rng) -> None:
    """As TensorFlow's layout pass leaves a channels-last norm between NCHW convolutions."""
    values = _values(rng, (2, 3, 4, 8))
    shape = (2, 3, 4, 8)

    def make() -> None:
        x, dy = placeholder("x", shape), placeholder("dy", shape)
        gamma = placeholder("gamma", (8,))
        first = tf.transpose(x, (0, 3, 1, 2))
        mean = tf.reduce_mean(first, 1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(first, mean), 1, keepdims=True)
        y = (first - mean) * tf.math.rsqrt(variance + EPSILON) * tf.reshape(gamma, (1, 8, 1, 1))
        tf.identity(y, name="y")
        a, b = tf.gradients(y, [x, gamma], tf.transpose(dy, (0, 3, 1, 2), name="turned"))
        tf.identity(a, name="a")
        tf.identity(b, name="b")

    graph = trace(make)
    turned = next(node for node in graph.node if node.name == "turned")
    for number, node in enumerate(list(graph.node)):
        for slot, name in enumerate(node.input):
            if name == "turned":
                copy = graph.node.add()
                copy.CopyFrom(turned)
                copy.name = f"turned_{number}_{slot}"
                node.input[slot] = copy.name
    after, fused = _rewritten(graph, ["y", "a", "b"])
    assert len(fused) == 1 and len(fused[0].outputs) == 2
    expected = _textbook(values)[:2]
    del values["beta"]
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0"]), expected, strict=True):
            np.testing.assert_allclose(one, want, 5e-5, 5e-5)


def test_rows_that_are_a_matrix_where_the_rank_is_unknown(rng) -> None:
    """A dense layer behind the norm gives a matrix for dy; x has more axes."""
    values = _values(rng, (2, 3, 8))
    values["w"] = rng.normal(size=(8, 5)).astype(np.float32)
    values["dz"] = rng.normal(size=(6, 5)).astype(np.float32)

    def make() -> None:
        x = placeholder("x", None)
        gamma, w, dz = placeholder("gamma", (8,)), placeholder("w", (8, 5)), placeholder("dz", None)
        y = layer_norm(x, -1, EPSILON, gamma)
        z = tf.matmul(tf.reshape(y, (-1, 8)), w)
        tf.identity(z, name="z")
        a, b = tf.gradients(z, [x, gamma], dz)
        tf.identity(a, name="a")
        tf.identity(b, name="b")

    graph = trace(make)
    after, _ = _rewritten(graph, ["z", "a", "b"])
    dy = (values["dz"].astype(np.float64) @ values["w"].T.astype(np.float64)).reshape(2, 3, 8)
    expected = _textbook(values, dy)[:2]
    values = {name: values[name] for name in ("x", "gamma", "w", "dz")}
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0"]), expected, strict=True):
            assert one.shape == want.shape
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


def _fed(graph, values):
    names = {node.name for node in graph.node}
    return {name: value for name, value in values.items() if name in names}


@pytest.mark.parametrize(
    "terms,count",
    [
        ("abc def", 2),
        ("f d b a c e", 2),
        ("abc def z", 2),
        ("abc defd", 1),  # a term of the second twice: what is left of it goes on beside the first
        ("abc de", 1),
        ("abc dez", 1),
        ("ab ef", 0),
        ("abc ABC", 0),  # taken off again: 0, not what rounding leaves of it
        ("abc def DEF", 1),
        ("abc def abc", 1),  # likewise the second time
    ],
)
def test_two_losses_of_one_norm_in_one_sum(rng, terms: str, count: int) -> None:
    """a, b, c are the terms of one dx, d, e, f those of the other, z is somebody else's; capitals
    are taken off."""
    values = _values(rng) | {n: rng.normal(size=(3, 8)).astype(np.float32) for n in ("dy2", "z")}

    def make() -> None:
        x, dy, dy2, z = (placeholder(name, (None, 8)) for name in ("x", "dy", "dy2", "z"))
        gamma, beta = placeholder("gamma", (8,)), placeholder("beta", (8,))
        y = tf.identity(_layer(x, gamma, beta), name="y")
        every = []
        for number, seed in enumerate((dy, dy2)):
            dx, *rest = tf.gradients(y, [x, gamma, beta], seed)
            assert dx.op.type == "AddN" and len(dx.op.inputs) == 3
            every += dx.op.inputs
            for name, gradient in zip("bc", rest, strict=True):
                tf.identity(gradient, name=f"{name}{number}")
        named = dict(zip("abcdefz", [*every, z], strict=True))
        named |= {name.upper(): -term for name, term in named.items()}
        tf.add_n([named[name] for name in terms.replace(" ", "")], name="a")

    names = ["y", "a", "b0", "c0", "b1", "c1"]
    graph = v1.graph_util.extract_sub_graph(trace(make), names)
    after, fused = _rewritten(graph, names)
    assert sum(len(record.outputs) == 3 for record in fused) == count
    values = _fed(graph, values)
    fetches = [f"{name}:0" for name in names]
    for one, want in zip(run(after, values, fetches), run(graph, values, fetches), strict=True):
        np.testing.assert_allclose(one, want, 1e-4, 1e-4)


@pytest.mark.parametrize(
    "forward,backward,whole",
    [
        (lambda g, h: 0.5 * g, lambda y, g, h: 0.5 * y(g), True),
        (lambda g, h: g * h, lambda y, g, h: h * y(g), True),
        # The gradient of another norm of the same x, and no other forward is in the graph: it is
        # the gradient of a norm all the same, by what dy there is.
        (lambda g, h: 0.5 * g, lambda y, g, h: 0.25 * y(g), True),
        (lambda g, h: 0.5 * g, lambda y, g, h: 0.5 * y(tf.roll(g, 1, 0)), False),
        (lambda g, h: 0.5 * g, lambda y, g, h: 0.5 * y(g * g), False),
        (lambda g, h: g * h, lambda y, g, h: y(g + h), False),
    ],
    ids=["half", "vector", "quarter", "rolled", "square", "sum"],
)
def test_gamma_of_the_gradient_that_is_a_factor_of_the_forward_s(
    rng, forward, backward, whole: bool
) -> None:
    """Grappler moves a factor of y to gamma, and in the gradient to dy."""
    values = _values(rng) | {"h": rng.uniform(0.5, 2, 8).astype(np.float32)}
    del values["beta"]

    def make() -> None:
        x, dy = placeholder("x", (None, 8)), placeholder("dy", (None, 8))
        gamma, h = placeholder("gamma", (8,)), placeholder("h", (8,))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        xhat = (x - mean) * tf.math.rsqrt(variance + EPSILON)
        tf.multiply(xhat, forward(gamma, h), name="y")
        y = backward(lambda g: xhat * g, gamma, h)
        for name, gradient in zip("ab", tf.gradients(y, [x, gamma], dy), strict=True):
            tf.identity(gradient, name=name)

    graph = v1.graph_util.extract_sub_graph(trace(make), ["y", "a", "b"])
    after, fused = _rewritten(graph, "yab")
    assert any(len(record.outputs) == 2 for record in fused) == whole
    values = _fed(graph, values)
    fetches = ["y:0", "a:0", "b:0"]
    for one, want in zip(run(after, values, fetches), run(graph, values, fetches), strict=True):
        np.testing.assert_allclose(one, want, 1e-4, 1e-4)


@pytest.mark.parametrize("of", ["x", "a copy of x", "another", "x, epsilon of another"])
def test_batch_norm_gradient_from_the_moments_of_another_forward(rng, of: str) -> None:
    """The op takes the saved moments as they are."""
    shape = (1, 5, 7, 3)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name in ("x", "dy")}
    feeds["other"] = (4.0 * rng.normal(size=shape) - 3.0).astype(np.float32)
    epsilon = 0.25 if "epsilon" in of else EPSILON

    def make() -> None:
        x, dy, other = (placeholder(name, shape) for name in ("x", "dy", "other"))
        norm = lambda a, epsilon=EPSILON: tf.raw_ops.FusedBatchNormV3(  # noqa: E731
            x=a, scale=tf.ones(3), offset=tf.zeros(3), mean=[], variance=[], epsilon=epsilon
        )
        y = norm(x)
        saved = {"another": other, "a copy of x": tf.identity(x)}.get(of, x)
        saved = y if of == "x" else norm(saved, epsilon)
        reserves = {f"reserve_space_{i}": getattr(saved, f"reserve_space_{i}") for i in (1, 2, 3)}
        dx = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=tf.ones(3), epsilon=EPSILON, **reserves
        )
        tf.identity(y.y, name="y")
        tf.identity(dx.x_backprop, name="a")

    graph = trace(make)
    after, report = rewrite(graph, fetches=["y", "a"])
    stock, got = (run(each, feeds, ["y:0", "a:0"]) for each in (graph, after))
    for one, want in zip(got, stock, strict=True):
        np.testing.assert_allclose(one, want, 5e-5, 5e-5)
    # The forward's y and dx are both instance norms of the one image.
    fused = [record for record in report.fused if record.direction == "backward"]
    assert len(fused) == (of in ("x", "a copy of x"))
