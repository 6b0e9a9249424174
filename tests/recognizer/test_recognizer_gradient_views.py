"""Gradients behind Transposes and slices, and those that alone tell the shape of x."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from recognizer_graphs import layer_norm, placeholder, run, trace

import oracle
from nv_norms_rewriter import rewrite

EPSILON = 1e-3


def _values(rng: np.random.Generator, shape: tuple[int, ...], channels: int) -> dict:
    draw = {"x": rng.uniform(0.1, 5.0, shape), "dy": rng.normal(size=shape)}
    draw |= {"gamma": rng.uniform(0.5, 2, channels), "beta": rng.normal(size=channels)}
    return {name: value.astype(np.float32) for name, value in draw.items()}


def _gradients(y: Callable, shape: tuple[int | None, ...], channels: int):
    """The graph of y(x, gamma, beta) and of its gradients a, b, c by these."""

    def make() -> None:
        x, dy = tf.nn.relu(placeholder("x", shape)), placeholder("dy", shape)
        gamma, beta = placeholder("gamma", (channels,)), placeholder("beta", (channels,))
        output = tf.identity(y(x, gamma, beta), name="y")
        for name, gradient in zip("abc", tf.gradients(output, [x, gamma, beta], dy), strict=True):
            tf.identity(gradient, name=name)

    graph = trace(make)
    return tf.compat.v1.graph_util.extract_sub_graph(graph, ["y", "a", "b", "c"])


def _add_constant(graph, name: str, values: tuple[int, ...]) -> None:
    constant = graph.node.add(name=name, op="Const")
    constant.attr["dtype"].type = tf.int32.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, tf.int32))


def _backward(graph) -> tuple:
    after, report = rewrite(graph, fetches=["y", "a", "b", "c"])
    return after, [record for record in report.fused if record.direction == "backward"]


def _moved(x, gamma, beta, back=(0, 3, 1, 2)):
    """Over the channels, which are moved to the end and back."""
    y = layer_norm(tf.transpose(x, (0, 2, 3, 1)), -1, EPSILON, gamma, beta)
    return tf.transpose(y, back)


def _moved_by_parts(x, gamma, beta):
    """The same, the orders joined of two parts as Keras' Dense has them on more than two axes."""
    y = layer_norm(tf.transpose(x, tf.concat([[0, 2, 3], [1]], 0)), -1, EPSILON, gamma, beta)
    return tf.transpose(y, tf.concat([[0], [3, 1, 2]], -1))


@pytest.mark.parametrize("norm", [_moved, _moved_by_parts])
@pytest.mark.parametrize(
    "shape", [(2, 6, 3, 5), (None, 6, 3, 5), (4, 4, 4, 4), (None, 4, None, None)]
)
def test_gradient_between_transposes(rng, shape: tuple[int | None, ...], norm: Callable) -> None:
    sizes = tuple(size or 4 for size in shape)
    values = _values(rng, sizes, sizes[1])
    graph = _gradients(norm, shape, sizes[1])
    assert {node.op for node in graph.node} >= {"Transpose", "InvertPermutation"}
    assert any(node.op == "ConcatV2" for node in graph.node) == (norm is _moved_by_parts)
    after, fused = _backward(graph)
    assert [len(record.outputs) for record in fused] == [3]
    assert not any(node.op == "RsqrtGrad" for node in after.node)
    expected = oracle.backward(*(values[n] for n in ("dy", "x", "gamma")), (1,), (1,), EPSILON)
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0", "c:0"]), expected, strict=True):
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


@pytest.mark.parametrize("turned", ["forward", "dx", "dy"])
def test_gradient_between_transposes_of_another_order(rng, turned: str) -> None:
    """All axes but the batch change places: in y (and its gradient), in dx alone, in dy alone."""
    values = _values(rng, (4, 4, 4, 4), 4)
    norm = lambda x, g, b: _moved(x, g, b, (0, 3, 2, 1))  # noqa: E731
    graph = _gradients(norm if turned == "forward" else _moved, (4, 4, 4, 4), 4)
    if turned != "forward":
        gradients = [n for n in graph.node if n.op == "Transpose" and "gradients/" in n.name]
        (first,) = (node for node in gradients if "transpose_1_grad" in node.name)
        (last,) = (node for node in gradients if node is not first)
        _add_constant(graph, "order", (0, 3, 2, 1))
        (last if turned == "dx" else first).input[1] = "order"
    after, fused = _backward(graph)
    assert [(len(record.outputs), record.leaves_dx) for record in fused] == [(3, False)]
    before = run(graph, values, ["y:0", "a:0", "b:0", "c:0"])
    for one, want in zip(run(after, values, ["y:0", "a:0", "b:0", "c:0"]), before, strict=True):
        np.testing.assert_allclose(one, want, 1e-4, 1e-4)


@pytest.mark.parametrize("added", ["sliced", "expanded"])
@pytest.mark.parametrize("shape", [(3, 6, 8), (None, 6, 8)])
def test_gradient_of_an_axis_that_is_added_and_taken_away(rng, shape, added: str) -> None:
    """As where a layer sees one sample at a time: y has x's shape, its norm an axis of 1 more."""

    def of_one(x, gamma, beta):
        wide = x[:, None] if added == "sliced" else tf.expand_dims(x, 1)
        return layer_norm(wide, -1, EPSILON, gamma, beta)[:, 0]

    values = _values(rng, (3, 6, 8), 8)
    graph = _gradients(of_one, shape, 8)
    after, fused = _backward(graph)
    assert [len(record.outputs) for record in fused] == [3]
    expected = oracle.backward(*(values[n] for n in ("dy", "x", "gamma")), (-1,), (-1,), EPSILON)
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0", "c:0"]), expected, strict=True):
            assert one.shape == want.shape
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


def _forget(graph, *names: str):
    """The graph without the shapes of these placeholders."""
    for node in graph.node:
        if node.name in names:
            node.attr["shape"].shape.Clear()
            node.attr["shape"].shape.unknown_rank = True
        node.attr.pop("_output_shapes", None)
    return graph


def _with_known_root(graph, shape: tuple[int, ...]):
    """With a Reshape before RsqrtGrad, as there is where x came without a rank when it was made."""
    (root,) = (node for node in graph.node if node.op == "RsqrtGrad")
    _add_constant(graph, "root_shape", shape)
    reshape = graph.node.add(name="root", op="Reshape")
    reshape.attr["T"].CopyFrom(root.attr["T"])
    reshape.attr["Tshape"].type = tf.int32.as_datatype_enum
    reshape.input.extend([root.input[1], "root_shape"])
    root.input[1] = "root"
    return graph


@pytest.mark.parametrize("shape", [(3, 1, 1, 8), (1, 1, 1, 8), (3, 2, 4, 8)])
def test_shape_of_x_that_only_its_gradient_tells(rng, shape: tuple[int, ...]) -> None:
    """dbeta is a sum over the batch alone where images have one pixel."""
    values = _values(rng, shape, 8)
    graph = _gradients(lambda x, g, b: layer_norm(x, -1, EPSILON, g, b), shape, 8)
    graph = _with_known_root(_forget(graph, "x", "dy"), (*shape[:-1], 1))
    after, fused = _backward(graph)
    assert [len(record.outputs) for record in fused] == [3]
    given = (values[name] for name in ("dy", "x", "gamma"))
    expected = oracle.backward(*given, (-1,), (-1,), EPSILON)
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0", "c:0"]), expected, strict=True):
            assert one.shape == want.shape
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


def test_rank_that_only_the_gradient_tells(rng) -> None:
    """Pixels are averaged over axes that inference does not follow; what comes before has four."""
    values = _values(rng, (4, 8), 8)
    values |= {"z": rng.normal(size=(4, 3, 3, 8)), "w": rng.uniform(0.5, 2, (1, 1, 1, 8))}
    values = {name: value.astype(np.float32) for name, value in values.items() if name != "x"}

    def make() -> None:
        z, w = placeholder("z", (4, 3, 3, 8)), placeholder("w", (1, 1, 1, 8))
        dy, gamma, beta = (placeholder(n, values[n].shape) for n in ("dy", "gamma", "beta"))
        x = tf.reduce_mean(z * w, tf.constant([1, 2], name="pixels"))
        y = tf.identity(layer_norm(x, -1, EPSILON, gamma, beta), name="y")
        for name, gradient in zip("abc", tf.gradients(y, [w, gamma, beta], dy), strict=True):
            tf.identity(gradient, name=name)

    graph = tf.compat.v1.graph_util.extract_sub_graph(trace(make), ["y", "a", "b", "c"])
    axes = next(node for node in graph.node if node.name == "pixels")
    axes.name = "pixels_as_given"
    mapped = graph.node.add(name="pixels", op="DataFormatDimMap", input=["pixels_as_given"])
    mapped.attr["T"].CopyFrom(axes.attr["dtype"])
    mapped.attr["src_format"].s = mapped.attr["dst_format"].s = b"NHWC"
    after, fused = _backward(graph)
    assert [len(record.outputs) for record in fused] == [3]
    fetches = ["y:0", "a:0", "b:0", "c:0"]
    for one, want in zip(run(after, values, fetches), run(graph, values, fetches), strict=True):
        np.testing.assert_allclose(one, want, 1e-4, 1e-4)


def _as_the_layout_pass_does(graph) -> dict[str, int]:
    """Runs each reduction and each BroadcastTo of four axes channels first, between Transposes;
    its axes or its shape are then permuted when the graph runs. Returns how many of each."""
    _add_constant(graph, "to_first", (0, 3, 1, 2))
    _add_constant(graph, "to_last", (0, 2, 3, 1))
    readers: dict[str, list[tuple]] = {}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, slot))
    turned = [n for n in graph.node if n.op in ("Mean", "Sum", "BroadcastTo")]
    turned = [n for n in turned if n.op == "BroadcastTo" or n.attr["keep_dims"].b]
    counts = {"DataFormatDimMap": 0, "DataFormatVecPermute": 0}
    for node in turned:
        op = "DataFormatVecPermute" if node.op == "BroadcastTo" else "DataFormatDimMap"
        counts[op] += 1
        integers = graph.node.add(name=f"{node.name}/permuted", op=op, input=[node.input[1]])
        integers.attr["T"].type = tf.int32.as_datatype_enum
        integers.attr["src_format"].s, integers.attr["dst_format"].s = b"NHWC", b"NCHW"
        before = graph.node.add(name=f"{node.name}/first", op="Transpose")
        before.input.extend([node.input[0], "to_first"])
        after = graph.node.add(name=f"{node.name}/last", op="Transpose")
        after.input.extend([node.name, "to_last"])
        for transpose in (before, after):
            transpose.attr["T"].type = tf.float32.as_datatype_enum
            transpose.attr["Tperm"].type = tf.int32.as_datatype_enum
        node.input[0], node.input[1] = before.name, integers.name
        for reader, slot in readers.get(node.name, []):
            reader.input[slot] = after.name
    return counts


@pytest.mark.parametrize("axes", [(1, 2), (3,), (1, 2, 3)], ids=["instance", "channels", "all"])
def test_axes_and_shapes_that_the_layout_pass_permutes(rng, axes: tuple[int, ...]) -> None:
    values = _values(rng, (2, 3, 4, 6), 6)
    norm = lambda x, g, b: layer_norm(x, list(axes), EPSILON, g, b)  # noqa: E731
    graph = _gradients(norm, (None, 3, 4, 6), 6)
    for node in graph.node:
        node.attr.pop("_output_shapes", None)
    counts = _as_the_layout_pass_does(graph)
    assert min(counts.values()) >= 2, counts
    after, fused = _backward(graph)
    assert [len(record.outputs) for record in fused] == [3]
    given = (values[name] for name in ("dy", "x", "gamma"))
    expected = oracle.backward(*given, axes, (3,), EPSILON)
    for each in (graph, after):
        for one, want in zip(run(each, values, ["a:0", "b:0", "c:0"]), expected, strict=True):
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


def test_copies_of_dy_and_who_waits_for_the_gradient(rng) -> None:
    """An Identity of dy for each of its readers, behind control edges from the forward, as
    Grappler leaves them; and somebody who waits for nodes that go."""
    values = _values(rng, (3, 8), 8)
    graph = _gradients(lambda x, g, b: layer_norm(x, -1, EPSILON, g, b), (None, 8), 8)
    (root,) = (node for node in graph.node if node.op == "Rsqrt")
    (of_root,) = (node for node in graph.node if node.op == "RsqrtGrad")
    copies = 0
    for node in list(graph.node):
        for slot, name in enumerate(node.input):
            if name != "gradients/grad_ys_0" or node.op == "Shape":
                continue
            copy = graph.node.add(name=f"copy_{copies}", op="Identity", input=["dy"])
            copy.attr["T"].type = tf.float32.as_datatype_enum
            if copies % 2:
                copy.input.append(f"^{root.name}")
            node.input[slot] = copy.name
            copies += 1
    assert copies >= 3
    graph.node.add(name="wait", op="NoOp", input=[f"^{of_root.name}", f"^{root.name}"])
    late = graph.node.add(name="late", op="Identity", input=["dy", "^wait"])
    late.attr["T"].type = tf.float32.as_datatype_enum
    after, report = rewrite(graph, fetches=["y", "a", "b", "c", "late"])
    fused = [record for record in report.fused if record.direction == "backward"]
    assert [len(record.outputs) for record in fused] == [3]
    names = {node.name for node in after.node}
    assert of_root.name not in names and root.name not in names
    (wait,) = (node for node in after.node if node.name == "wait")
    assert wait.input and all(name.lstrip("^") in names for name in wait.input)
    given = (values[name] for name in ("dy", "x", "gamma"))
    expected = [*oracle.backward(*given, (-1,), (-1,), EPSILON), values["dy"]]
    fetches = ["a:0", "b:0", "c:0", "late:0"]
    for each in (graph, after):
        for one, want in zip(run(each, values, fetches), expected, strict=True):
            np.testing.assert_allclose(one, want, 1e-4, 1e-4)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("shape", [(4, 6, 8), (6, 6, 6), (None, 6, 8), (None, 6, None)])
def test_dy_that_is_a_sum_in_the_order_behind_a_transpose(
    rng, shape: tuple[int | None, ...], order: tuple[int, ...]
) -> None:
    """x is taken for what comes before the Transpose, as both directions of a recurrent layer read
    one Transpose of y, and each gives dy through a Transpose of its own."""
    sizes = tuple(size or 6 for size in shape)
    channels = sizes[order[-1]]
    inverse = tuple(int(i) for i in np.argsort(order))

    def make() -> None:
        x = tf.nn.relu(placeholder("x", shape))
        gamma, beta = placeholder("gamma", (channels,)), placeholder("beta", (channels,))
        inner = layer_norm(tf.transpose(x, order), -1, EPSILON, gamma, beta)
        tf.identity(tf.transpose(inner, inverse), name="y")
        dys = [tf.transpose(placeholder(name, shape), order) for name in ("dy", "dy_2")]
        gradients = tf.gradients(inner, [x, gamma, beta], tf.add_n(dys))
        for name, gradient in zip("abc", gradients, strict=True):
            tf.identity(gradient, name=name)

    graph = tf.compat.v1.graph_util.extract_sub_graph(trace(make), ["y", "a", "b", "c"])
    after, backward = _backward(graph)
    assert len(backward) == 1
    values = _values(rng, sizes, channels)
    values["dy_2"] = rng.normal(size=sizes).astype(np.float32)
    dy = values["dy"].astype(np.float64) + values["dy_2"]
    axis = (order[-1],)
    expected = oracle.backward(dy, values["x"], values["gamma"], axis, axis, EPSILON)
    got = [run(after, values, f"{name}:0") for name in "abc"]
    for each, wanted in zip(got, (expected.dx, expected.dgamma, expected.dbeta), strict=True):
        np.testing.assert_allclose(each, wanted, 2e-4, 2e-4)
