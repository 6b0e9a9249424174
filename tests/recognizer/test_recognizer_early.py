"""The pass before TensorFlow's remapper, which keeps it from chains of ops that it would take.

What counts is the graph that runs: a Snapshot stays in a chain that is no normalization, goes with
one that is, and comes nowhere else.
"""

from __future__ import annotations

import numpy as np
import processes
import pytest
import tensorflow as tf
from early_graphs import EPSILON, ROOTS, as_the_formula, fused, run, truth
from recognizer_graphs import v1
from tensorflow.python.framework import function

import nv_norms_rewriter


@pytest.fixture(autouse=True)
def _fresh_report():
    nv_norms_rewriter.enable()
    nv_norms_rewriter.clear_report()


def spelled(mean_axes, variance_axes, gamma, beta, epsilon=EPSILON):
    """By moments, as tf.nn.batch_normalization writes it; gamma and beta are constants."""

    def norm(x):
        m = tf.reduce_mean(x, mean_axes, keepdims=True)
        v = tf.reduce_mean(tf.math.squared_difference(x, m), variance_axes, keepdims=True)
        w = tf.math.rsqrt(v + epsilon) * tf.constant(gamma)
        return x * w + (tf.constant(beta) - m * w)

    return norm


@pytest.fixture
def vectors(rng):
    return [rng.uniform(0.5, 2.0, 4).astype(np.float32) for _ in range(2)]


def images(rng):
    return rng.normal(size=(2, 4, 4, 4)).astype(np.float32)


NEAR = {"variance": ([1, 2], [1, 2, 3]), "gamma": ([2, 3], [2, 3])}


@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize(
    "way", ["function", "session", "nested", "noinline", "while", "cond", "dataset", "saved"]
)
def test_graph_that_tensorflow_would_miscompile_is_right(rng, vectors, near, way, tmp_path):
    axes, x = NEAR[near], images(rng)
    norm = spelled(*axes, *vectors)
    spec = [tf.TensorSpec((None, 4, 4, 4), tf.float32)]
    want = truth(x, *axes, *vectors)
    inner = tf.function(
        norm, input_signature=spec, experimental_attributes={"_noinline": way == "noinline"}
    )

    @tf.function(input_signature=spec)
    def outer(a):
        if way == "while":
            return tf.while_loop(lambda i, _: i < 1, lambda i, v: (i + 1, norm(v)), (0, a))[1]
        if way == "cond":
            return tf.cond(tf.size(a) > 0, lambda: norm(a), lambda: a)
        return inner(a)

    if way == "session":
        with tf.Graph().as_default():
            fed = v1.placeholder(tf.float32, (None, 4, 4, 4))
            y = norm(fed)
            with v1.Session() as session:
                got = session.run(y, {fed: x})
    elif way == "dataset":
        got = next(iter(tf.data.Dataset.from_tensors(x).map(norm)))
    elif way == "saved":
        module = tf.Module()
        module.serve = inner
        tf.saved_model.save(module, str(tmp_path), signatures=inner)
        served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
        (got,) = served(tf.constant(x)).values()
    else:
        got = (inner if way == "function" else outer)(tf.constant(x))
    assert "instance_norm" not in fused() or near == "gamma"
    np.testing.assert_allclose(got, want, 2e-5, 2e-5)


def test_without_the_pass_tensorflow_is_wrong(rng, vectors):
    """Else the tests above show nothing."""
    x = images(rng)
    for axes in NEAR.values():
        with nv_norms_rewriter.disabled(), tf.device("CPU"):  # a GPU has no kernel for it
            got, ops = run(tf.function(spelled(*axes, *vectors)), tf.constant(x))
        assert "_MklFusedInstanceNorm" in ops and "Snapshot" not in ops
        assert np.abs(got - truth(x, *axes, *vectors)).max() > 0.1


def test_snapshot_stays_only_where_nothing_is_fused(rng, vectors):
    x = tf.constant(images(rng))
    _, near = run(tf.function(spelled([1, 2], [1, 2, 3], *vectors)), x)
    _, ours = run(tf.function(spelled([1, 2], [1, 2], *vectors)), x)
    assert near.count("Snapshot") == 1 and "FusedInstanceNorm" not in near
    assert "Snapshot" not in ours and ours.count("FusedInstanceNorm") == 1
    assert not any(op.startswith("_Mkl") and "Norm" in op for op in near + ours)


def test_epsilon_of_a_layer_norm_is_kept(rng):
    """TensorFlow's remapper makes an op with an epsilon of 0.001 of it."""
    x = rng.normal(0.0, 1e-3, (2, 3, 8)).astype(np.float32)
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    norm = spelled([2], [2], gamma, beta)
    want = truth(x, [2], [2], gamma, beta)
    with nv_norms_rewriter.disabled(), tf.device("CPU"):  # a GPU has no kernel for it
        assert np.abs(tf.function(norm)(tf.constant(x)) - want).max() > 0.1
    got, ops = run(tf.function(norm), tf.constant(x))
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    (record,) = nv_norms_rewriter.report()
    assert record.fused and np.isclose(record.epsilon, EPSILON, 1e-5)
    assert "FusedLayerNorm" in ops and "Snapshot" not in ops


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("shape", "of"), [((6, 8), (8,)), ((2, 3, 8), (8,)), ((6, 8), (1, 8))])
def test_epsilon_of_a_division_is_kept(rng, root, shape, of):
    """Over the last axis, counted from the first, by a gamma and beta that are no constants."""
    x = rng.normal(0.0, 1e-3, shape).astype(np.float32)
    gamma, beta = (rng.uniform(0.5, 2.0, of).astype(np.float32) for _ in range(2))
    axes = [len(shape) - 1]
    norm = as_the_formula(root, axes, axes, tf.Variable(gamma), tf.Variable(beta))
    got, ops = run(tf.function(norm), tf.constant(x))
    np.testing.assert_allclose(got, truth(x, axes, axes, gamma, beta), 1e-4, 1e-4)
    assert fused() == ["layer_norm"] and "Snapshot" not in ops


def test_stock_tensorflow_loses_the_epsilon_of_a_division(rng):
    """Else the tests around show nothing."""
    x = rng.normal(0.0, 1e-3, (6, 8)).astype(np.float32)
    ones = np.ones(8, np.float32)
    norm = as_the_formula("sqrt", [1], [1], tf.Variable(ones), tf.Variable(ones))
    with nv_norms_rewriter.disabled(), tf.device("CPU"):  # a GPU has no kernel for it
        got, ops = run(tf.function(norm), tf.constant(x))
    assert "_MklLayerNorm" in ops
    assert np.abs(got - truth(x, [1], [1], ones, ones)).max() > 0.1


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("near", NEAR)
def test_division_that_is_nearly_a_norm_is_right(rng, vectors, root, near):
    axes, x = NEAR[near], images(rng)
    norm = as_the_formula(root, *axes, *map(tf.constant, vectors))

    @tf.function
    def inside(a):  # where constants are constants
        return as_the_formula(root, *axes, *map(tf.constant, vectors))(a)

    for traced in (tf.function(norm), inside):
        got, ops = run(traced, tf.constant(x))
        np.testing.assert_allclose(got, truth(x, *axes, *vectors), 2e-5, 2e-5)
        assert not any(op.startswith("_Mkl") and "Norm" in op for op in ops)


@pytest.mark.parametrize("root", ROOTS)
def test_epsilon_is_kept_where_the_gradient_is_fused_first(rng, root):
    """Then nobody reads what is inside of what is left, when TensorFlow's passes run again."""
    c = 16
    gamma, beta = (rng.uniform(0.5, 2.0, c).astype(np.float32) for _ in range(2))
    w = tf.Variable(rng.normal(size=(c, c)).astype(np.float32))
    variables = [w, tf.Variable(gamma), tf.Variable(beta)]
    x = tf.constant(rng.normal(0.0, 0.05, (3, 7, c)).astype(np.float32))

    def step(x):
        with tf.GradientTape() as tape:
            rows = tf.reshape(x, [-1, c])
            y = as_the_formula(root, [1], [1], *variables[1:])(rows)
            y = tf.reshape(y, [3, 7, c])
            loss = tf.reduce_mean((y + tf.tanh(tf.tensordot(y, w, 1))) ** 2)
        return [y, loss, *tape.gradient(loss, variables)]

    want = step(x)  # op by op
    got, _ = run(tf.function(step), x)
    rows = x.numpy().reshape(-1, c)
    y = truth(rows, [1], [1], gamma, beta).reshape(3, 7, c)
    np.testing.assert_allclose(got[0], y, 1e-4, 1e-4)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)
    assert all(np.isclose(r.epsilon, EPSILON, 1e-5) for r in nv_norms_rewriter.report())


def test_axes_counted_from_the_last_need_no_snapshot(rng):
    """TensorFlow's remapper looks for the last axis by its number."""
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    # Not a norm, so that a Snapshot would stay.
    norm = as_the_formula("sqrt", [-1], [0, 1], tf.Variable(gamma), tf.Variable(beta))
    x = rng.normal(size=(6, 8)).astype(np.float32)
    got, ops = run(tf.function(norm), tf.constant(x))
    np.testing.assert_allclose(got, truth(x, [1], [0, 1], gamma, beta), 2e-5, 2e-5)
    assert "Snapshot" not in ops


def batch_norm_form(pre_shape, gamma, beta):
    """As tf_keras writes a layer norm, for any shape that x is given."""

    def norm(x):
        shape = tf.shape(x)
        rows = tf.reshape(x, pre_shape(shape))
        ones = tf.fill([tf.shape(rows)[1]], 1.0)
        zeros = tf.fill([tf.shape(rows)[1]], 0.0)
        y = v1.nn.fused_batch_norm(rows, ones, zeros, epsilon=1e-4, data_format="NCHW")[0]
        return tf.reshape(y, shape) * gamma + beta

    return norm


@pytest.mark.parametrize("over", ["last", "both"])
@pytest.mark.parametrize("shape", [(8,), (1, 4, 8)])
def test_shape_that_a_batch_norm_is_given_is_not_lost(rng, over, shape):
    x = rng.normal(size=(3, 4, 8)).astype(np.float32)
    gamma, beta = (rng.uniform(0.5, 2.0, shape).astype(np.float32) for _ in range(2))

    def rows(sizes):
        batch, places, channels = sizes[0], sizes[1], sizes[2]
        if over == "last":
            return [1, batch * places, channels, 1]
        return [1, batch, places * channels, 1]

    norm = batch_norm_form(rows, tf.constant(gamma), tf.constant(beta))
    axes = [2] if over == "last" else [1, 2]
    traced = tf.function(norm, input_signature=[tf.TensorSpec((None, 4, 8))])
    got, _ = run(traced, tf.constant(x))
    np.testing.assert_allclose(got, truth(x, axes, axes, gamma, beta, 1e-4), 2e-5, 2e-5)
    assert fused() == ["group_norm" if over == "both" and len(shape) == 1 else "layer_norm"]


def test_training_is_not_touched(rng):
    """A gradient reads what is inside, which keeps TensorFlow's remapper from the chain."""
    x = tf.constant(rng.normal(size=(2, 3, 8)).astype(np.float32))
    gamma, beta = (rng.uniform(0.5, 2.0, 8).astype(np.float32) for _ in range(2))
    norm = spelled([2], [2, 1], gamma, beta)  # not ours either, so that a Snapshot would stay

    @tf.function
    def step(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            loss = tf.reduce_sum(norm(a) ** 3)
        return tape.gradient(loss, a)

    _, ops = run(step, x)
    assert "RsqrtGrad" in ops or ops.count("Rsqrt") + ops.count("Mul") > 3
    assert "Snapshot" not in ops


def test_other_fusions_of_tensorflow_are_made(rng):
    filters = tf.constant(rng.normal(size=(3, 3, 4, 4)).astype(np.float32))
    bias = tf.constant(rng.normal(size=4).astype(np.float32))
    norm = spelled([1, 2], [1, 2, 3], bias.numpy(), bias.numpy())

    @tf.function
    def block(x):
        return norm(tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, filters, 1, "SAME"), bias)))

    with tf.device("CPU"):
        _, ops = run(block, tf.constant(images(rng)))
    assert any("FusedConv2D" in op for op in ops), ops
    assert ops.count("Snapshot") == 1


@pytest.mark.parametrize("option", ["remapping", "use_plugin_optimizers", "disable_meta_optimizer"])
def test_pass_is_off_where_a_switch_of_tensorflow_takes_its_sense(rng, vectors, option):
    config = v1.ConfigProto()
    rewriter = config.graph_options.rewrite_options
    setattr(rewriter, option, True if option == "disable_meta_optimizer" else rewriter.OFF)
    metadata = v1.RunMetadata()
    with tf.Graph().as_default(), tf.device("CPU"):  # a GPU has no kernel for stock's op
        x = v1.placeholder(tf.float32, (None, 4, 4, 4))
        y = spelled([1, 2], [1, 2, 3], *vectors)(x)
        with v1.Session(config=config) as session:
            session.run(y, {x: images(rng)}, v1.RunOptions(output_partition_graphs=True), metadata)
    assert "Snapshot" not in {n.op for g in metadata.partition_graphs for n in g.node}


def test_what_is_saved_and_written_out_holds_no_snapshot(rng, vectors, tmp_path):
    module = tf.Module()
    module.serve = tf.function(
        spelled([1, 2], [1, 2, 3], *vectors),
        input_signature=[tf.TensorSpec((None, 4, 4, 4), tf.float32)],
    )
    module.serve(tf.constant(images(rng)))  # it has run, with a Snapshot
    graph = module.serve.get_concrete_function().graph.as_graph_def()
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    assert "Snapshot" not in {n.op for n in graph.node}
    assert b"Snapshot" not in (tmp_path / "saved_model.pb").read_bytes()


def test_functions_that_xla_compiles_stay_as_they_are(rng, vectors):
    x = images(rng)
    inner = tf.function(spelled([1, 2], [1, 2, 3], *vectors), jit_compile=True)
    got, ops = run(tf.function(lambda a: inner(a) + 1.0), tf.constant(x))
    assert "Snapshot" not in ops
    np.testing.assert_allclose(got, truth(x, [1, 2], [1, 2, 3], *vectors) + 1.0, 2e-5, 2e-5)


def test_function_with_a_symbolic_gradient_still_has_it(rng, vectors):
    """It is differentiated in C++ when the graph is made, where a Snapshot has no gradient."""
    x = images(rng)
    with tf.Graph().as_default():

        @function.Defun(tf.float32)
        def norm(a):
            return spelled([1, 2], [1, 2, 3], *vectors)(a)

        fed = v1.placeholder(tf.float32, x.shape)
        (dx,) = tf.gradients(norm(fed) ** 2, [fed])
        assert "SymbolicGradient" in {op.type for op in fed.graph.get_operations()}
        with v1.Session() as session:
            got = session.run(dx, {fed: x})
    with tf.GradientTape() as tape:
        eager = tf.constant(x)
        tape.watch(eager)
        y = spelled([1, 2], [1, 2, 3], *vectors)(eager) ** 2
    np.testing.assert_allclose(got, tape.gradient(y, eager), 2e-4, 2e-4)


@pytest.mark.parametrize("switch", ["NV_NORMS_REWRITER=0", "TF_ENABLE_ONEDNN_OPTS=0"])
def test_pass_is_off_by_the_environment(switch):
    """Without oneDNN, TensorFlow's remapper takes none of these chains."""
    program = """
import numpy as np, tensorflow as tf, nv_norms_rewriter
from tensorflow.python.eager import context
from tensorflow.python.framework import function
def norm(x):
    m = tf.reduce_mean(x, [1, 2], keepdims=True)
    v = tf.reduce_mean(tf.math.squared_difference(x, m), [1, 2, 3], keepdims=True)
    w = tf.math.rsqrt(v + 1e-3) * tf.constant(np.arange(4, dtype="f"))
    return x * w + (tf.constant(np.ones(4, "f")) - m * w)
context.enable_run_metadata()
with tf.device("CPU"):  # a GPU has no kernel for stock's op
    tf.function(norm)(tf.ones((2, 4, 4, 4)))
graphs = context.export_run_metadata().function_graphs
print("ops", *{n.op for g in graphs for p in g.partition_graphs for n in p.node})
"""
    name, value = switch.split("=")
    process = processes.run(program, **{name: value})
    assert process.returncode == 0, process.stderr
    ops = process.stdout.split("ops", 1)[1].split()
    assert "Mean" in ops or "_MklFusedInstanceNorm" in ops
    assert "Snapshot" not in ops
