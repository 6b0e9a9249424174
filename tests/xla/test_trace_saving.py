"""What is saved loads where this package is not installed, and computes the same there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from traced import Layer, close, found, ops_in, result

import nv_norms_rewriter
import oracle
from nv_norms_rewriter import _process, _saving

pytestmark = pytest.mark.usefixtures("every_norm")

SIZE = 8


def ops_in_saved_model(folder: Path) -> set[str]:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    listed = {
        op.name for meta in saved.meta_graphs for op in meta.meta_info_def.stripped_op_list.op
    }
    ops = {op for meta in saved.meta_graphs for op in _ops(meta.graph_def)}
    assert listed <= ops
    return ops


def _ops(graph_def: Any) -> set[str]:
    functions = [node for f in graph_def.library.function for node in f.node_def]
    return {node.op for node in [*graph_def.node, *functions]}


def holds_fused_ops(folder: Path) -> bool:
    return any(op.startswith("Fused") and "Norm" in op for op in ops_in_saved_model(folder))


# Loads in another process, without the package if not with it, and calls a signature.
ELSEWHERE = """
import json, sys
import numpy as np
import tensorflow as tf
with_package = sys.argv[4] == "True"
if with_package:
    import nv_norms_rewriter
x = np.load(sys.argv[2])
signature = tf.saved_model.load(sys.argv[1]).signatures[sys.argv[3]]
y = signature(tf.constant(x))
assert ("nv_norms_rewriter" in sys.modules) == with_package
print(json.dumps({name: value.numpy().tolist() for name, value in y.items()}))
"""


def elsewhere(
    folder: Path, x: Any, signature: str = "serving_default", with_package: bool = False
) -> dict[str, np.ndarray]:
    np.save(folder / "x.npy", x)
    got, _ = result(ELSEWHERE, folder, folder / "x.npy", signature, with_package)
    return {name: np.asarray(value) for name, value in got.items()}


class Module(tf.Module):
    """Compiled functions around a layer norm, and what a program may do with them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layer = Layer(rng, SIZE)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], jit_compile=True, autograph=False)
    def compiled(self, x: tf.Tensor) -> tf.Tensor:
        return self.layer(x)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def gradients(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.compiled(x)
            loss = tf.reduce_sum(y**3)
        gamma, beta = self.layer.gamma, self.layer.beta
        dx, dgamma, dbeta = tape.gradient(loss, [x, gamma, beta])
        return {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}


@pytest.fixture
def module(rng: np.random.Generator) -> Module:
    return Module(rng)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(1.0, 2.0, (5, SIZE)).astype(np.float32)


def test_traced_again_while_saving(module: Module, x: np.ndarray, tmp_path: Path) -> None:
    close(module.compiled(x), module.layer.exact(x))
    assert found() == 1
    tf.saved_model.save(module, str(tmp_path))
    assert not holds_fused_ops(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    close(loaded.compiled(x), module.layer.exact(x))


def test_concrete_functions_that_were_traced_before(
    module: Module, x: np.ndarray, tmp_path: Path
) -> None:
    signatures = {
        "forward": module.compiled.get_concrete_function(),
        "backward": module.gradients.get_concrete_function(),
    }
    assert ops_in(signatures["forward"].graph) == {"FusedLayerNorm"}
    assert ops_in(signatures["backward"].graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}
    close(module.compiled(x), module.layer.exact(x))
    tf.saved_model.save(module, str(tmp_path), signatures)
    assert not holds_fused_ops(tmp_path)
    y = module.layer.exact(x)
    close(elsewhere(tmp_path, x, "forward")["output_0"], y)
    exact = module.layer.exact_gradients(x, 3.0 * y**2)
    got = elsewhere(tmp_path, x, "backward")
    for name, value in zip(("dx", "dgamma", "dbeta"), exact, strict=True):
        close(got[name], value)
    close(module.compiled(x), y)
    assert ops_in(signatures["forward"].graph) == {"FusedLayerNorm"}, "the program keeps its own"


def test_on_request(module: Module, x: np.ndarray, tmp_path: Path) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    concrete = module.compiled.get_concrete_function()
    tf.saved_model.save(module, str(tmp_path), concrete)
    assert holds_fused_ops(tmp_path)
    loaded = tf.saved_model.load(str(tmp_path))
    y = loaded.signatures["serving_default"](tf.constant(x))["output_0"]
    close(y, module.layer.exact(x))


def test_what_is_traced_while_saving_on_request(
    module: Module, x: np.ndarray, tmp_path: Path
) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    signatures = {"forward": module.compiled, "backward": module.gradients}
    tf.saved_model.save(module, str(tmp_path), signatures)
    assert {"FusedLayerNorm", "FusedLayerNormGrad"} <= ops_in_saved_model(tmp_path)
    y = module.layer.exact(x)
    close(elsewhere(tmp_path, x, "forward", with_package=True)["output_0"], y)
    exact = module.layer.exact_gradients(x, 3.0 * y**2)
    got = elsewhere(tmp_path, x, "backward", with_package=True)
    for name, value in zip(("dx", "dgamma", "dbeta"), exact, strict=True):
        close(got[name], value)


class Ordinary(tf.Module):
    """Functions that XLA does not compile, and tapes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layer = Layer(rng, SIZE)
        self.function = tf.function(self.layer, autograph=False)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def forward(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def gradients(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            once = self.function(x) ** 3
            _, y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, self.layer(y)), (0, x))
            twice = y**3
        return {"once": tape.gradient(once, x), "twice": tape.gradient(twice, x)}


def test_what_a_tape_differentiates_while_saving_on_request(
    rng: np.random.Generator, x: np.ndarray, tmp_path: Path
) -> None:
    nv_norms_rewriter.configure(saved_models="fused")
    module = Ordinary(rng)
    tf.saved_model.save(module, str(tmp_path), {"backward": module.gradients})
    assert {"FusedLayerNorm", "FusedLayerNormGrad"} <= ops_in_saved_model(tmp_path)
    exact, dx = module.layer.exact, lambda x, dy: module.layer.exact_gradients(x, dy)[0]
    y = exact(x)
    got = elsewhere(tmp_path, x, "backward", with_package=True)
    close(got["once"], dx(x, 3.0 * y**2))
    close(got["twice"], dx(x, dx(y, 3.0 * exact(y) ** 2)))


def test_ops_that_a_program_calls_itself_stay(x: np.ndarray, tmp_path: Path) -> None:
    from nv_norms_rewriter import _library

    op = _library.ops().fused_layer_norm

    class Own(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return op(x=x, scale=[], offset=[], out_type=tf.float32)[0]

    tf.saved_model.save(Own(), str(tmp_path))
    assert holds_fused_ops(tmp_path)


class Compiling(keras.layers.Layer):
    """A layer whose call XLA compiles, whatever its model does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.LayerNormalization()
        self.function = tf.function(lambda x: self.norm(x), jit_compile=True, autograph=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x)

    def compute_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape


def keras_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((4, SIZE)),
            keras.layers.Dense(SIZE),
            keras.layers.GroupNormalization(groups=2),
            keras.layers.RMSNormalization(),
            keras.layers.GroupNormalization(groups=-1),
            keras.layers.LayerNormalization(),
        ]
    )
    model.compile("adam", "mse", jit_compile=True)
    return model


def trained(rng: np.random.Generator) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """The model with a layer that compiles, an input and what it predicts of it."""
    model = keras_model()
    model.add(Compiling())
    model.compile("adam", "mse", jit_compile=True)
    x = rng.normal(size=(6, 4, SIZE)).astype(np.float32)
    model.fit(x, x, verbose=0)
    return model, x, model.predict(x, verbose=0)


def test_keras_export_after_training(rng: np.random.Generator, tmp_path: Path) -> None:
    model, x, y = trained(rng)
    assert found() == 2 * 4 + 1
    model.export(str(tmp_path), verbose=False)
    assert not holds_fused_ops(tmp_path)
    (got,) = elsewhere(tmp_path, x).values()
    np.testing.assert_allclose(got, y, 1e-4, 1e-5)


def test_keras_export_on_request(rng: np.random.Generator, tmp_path: Path) -> None:
    """Keras has XLA compile nothing of what it exports; the layer does, of itself."""
    nv_norms_rewriter.configure(saved_models="fused")
    model, x, y = trained(rng)
    model.export(str(tmp_path), verbose=False)
    fused = {op for op in ops_in_saved_model(tmp_path) if op.startswith("Fused")}
    assert fused == {"FusedLayerNorm"}
    (got,) = elsewhere(tmp_path, x, with_package=True).values()
    np.testing.assert_allclose(got, y, 1e-4, 1e-5)


def test_keras_files_and_checkpoints(rng: np.random.Generator, tmp_path: Path) -> None:
    model = keras_model()
    x = rng.normal(size=(6, 4, SIZE)).astype(np.float32)
    model.fit(x, x, verbose=0)
    np.save(tmp_path / "x.npy", x)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    got, _ = result(
        """
import json, sys, keras, numpy as np, tensorflow as tf
folder, checkpoint = sys.argv[1:]
x = np.load(folder + "/x.npy")
model = keras.models.load_model(folder + "/model.keras")
ys = [model.predict(x, verbose=0)]
model.load_weights(folder + "/model.weights.h5")
ys.append(model.predict(x, verbose=0))
tf.train.Checkpoint(model=model).restore(checkpoint).assert_existing_objects_matched()
ys.append(model.predict(x, verbose=0))
assert "nv_norms_rewriter" not in sys.modules
print(json.dumps([y.tolist() for y in ys]))
""",
        tmp_path,
        checkpoint,
    )
    for y in got:
        np.testing.assert_allclose(y, model.predict(x, verbose=0), 1e-4, 1e-5)


KINDS = [
    ("layer", {"axis": [-1]}),
    ("layer", {"axis": [2, 1]}),
    ("layer", {"axis": [-1], "subtract_mean": False}),
    ("rms", {"axis": [1, -1]}),
    ("instance", {"data_format": "N...C"}),
    ("instance", {"data_format": "NC..."}),
    ("group", {"data_format": "N...C", "groups": 2}),
    ("group", {"data_format": "NC...", "groups": 3}),
    ("instance", {"data_format": "NC...", "negative_slope": -0.5}),
    ("group", {"data_format": "N...C", "groups": 2, "negative_slope": 0.0}),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("kind,attributes", KINDS)
def test_stock_functions_compute_what_the_ops_do(
    rng: np.random.Generator, ops: Any, kind: str, attributes: dict[str, Any], dtype: str
) -> None:
    """The stock functions stand for ops that other tests compare with the formula in float64."""
    shape = (2, 6, 5, 4)
    stat = tf.float64 if dtype == "float64" else tf.float32
    x, dy = (tf.constant(rng.normal(size=shape), dtype) for _ in range(2))
    axes = attributes.get("axis")
    count = (
        np.prod([shape[a] for a in axes])
        if axes
        else shape[-1 if attributes["data_format"] == "N...C" else 1]
    )
    gamma, beta = (tf.constant(rng.normal(size=count), dtype) for _ in range(2))

    def run(x: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> list[tf.Tensor]:
        forward = getattr(ops, f"fused_{kind}_norm")
        outputs = forward(
            x=x, scale=[gamma], offset=[beta], out_type=tf.float32, U=stat, **attributes
        )
        rest = {} if kind == "rms" else {"mean": outputs[1]}
        if kind in ("instance", "group"):
            rest["offset"] = [beta] if "negative_slope" in attributes else []
        dx, (dgamma,), (dbeta,) = getattr(ops, f"fused_{kind}_norm_grad")(
            dy=dy,
            x=x,
            scale=[gamma],
            rstd=outputs[-1],
            dx_type=dtype,
            param_type=tf.float32,
            num_dx=1,
            num_dscale=1,
            num_doffset=1,
            **rest,
            **attributes,
        )
        return [*outputs, *dx, dgamma, dbeta]

    concrete = tf.function(run, autograph=False).get_concrete_function(x, dy, gamma, beta)
    for op in concrete.graph.get_operations():
        if op.type.startswith("Fused"):
            op._set_attr(_saving.MARK, tf.compat.v1.AttrValue(b=True))
    graph_def = concrete.graph.as_graph_def()
    assert not any(op.startswith("Fused") for op in _ops(graph_def))
    names = [tensor.name for tensor in (*concrete.inputs, *concrete.outputs)]
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            arrays = (x.numpy(), dy.numpy(), gamma.numpy(), beta.numpy())
            stock = session.run(names[4:], dict(zip(names[:4], arrays, strict=True)))
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    for name, actual, expected in zip(names[4:], stock, run(x, dy, gamma, beta), strict=True):
        assert actual.shape == expected.shape and actual.dtype == expected.dtype.as_numpy_dtype
        np.testing.assert_allclose(
            actual, expected, tolerance, tolerance * np.abs(expected).max(), err_msg=name
        )


def test_failure_to_lower_is_said(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(_saving, "lower", broken)
    tf.saved_model.save(module, str(tmp_path), module.compiled.get_concrete_function())
    assert "holds fused normalizations" in caplog.text and "broken" in caplog.text


def test_frozen_graphs_hold_stock_ops(module: Module, x: np.ndarray) -> None:
    from tensorflow.python.framework import convert_to_constants

    concrete = module.compiled.get_concrete_function()
    frozen = convert_to_constants.convert_variables_to_constants_v2(concrete)
    assert ops_in(concrete.graph) == {"FusedLayerNorm"} and not ops_in(frozen.graph)
    close(frozen(tf.constant(x))[0], module.layer.exact(x))


@pytest.mark.parametrize("saved", ["stock", "fused"])
def test_frozen_graphs_that_name_a_device(rng: np.random.Generator, saved: str) -> None:
    """Then Grappler, which the converter asks, runs the plugin on all of the graph."""
    from tensorflow.python.framework import convert_to_constants

    layer = keras.layers.LayerNormalization()
    layer.build((None, SIZE))

    @tf.function(input_signature=[tf.TensorSpec((None, SIZE))])
    def on_the_cpu(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            return 2.0 * layer(x)

    nv_norms_rewriter.configure(saved_models=saved)
    try:
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            on_the_cpu.get_concrete_function()
        )
        ops = {node.op for node in frozen.graph.as_graph_def().node}
    finally:
        nv_norms_rewriter.configure(saved_models="stock")
    assert ("FusedLayerNorm" in ops) == (saved == "fused"), ops
    nv_norms_rewriter.clear_report()
    on_the_cpu(tf.constant(rng.normal(size=(3, SIZE)).astype(np.float32)))
    assert len(nv_norms_rewriter.report().fused) == 1  # what runs here is fused all the same


def test_graphs_hold_stock_ops_where_another_plugin_holds_the_cpu(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There every function is rewritten when it is traced; not those that stand for our ops."""
    monkeypatch.setitem(_process.state(), "held", {"CPU"})
    concrete = module.gradients.get_concrete_function()
    assert ops_in(concrete.graph) == {"FusedLayerNorm", "FusedLayerNormGrad"}
    assert not any(op.startswith("Fused") for op in _ops(concrete.graph.as_graph_def()))


def test_converters_find_stock_ops(module: Module, x: np.ndarray) -> None:
    concrete = module.compiled.get_concrete_function()
    assert ops_in(concrete.graph) == {"FusedLayerNorm"}
    assert not any(op.startswith("Fused") for op in _ops(concrete.graph.as_graph_def()))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    close(y, module.layer.exact(x))


@pytest.mark.parametrize("compiled", [True, False], ids=["xla", "tape"])
@pytest.mark.parametrize("v1", [True, False], ids=["v1", "function"])
def test_graph_def_imported_and_differentiated(compiled: bool, v1: bool, rng) -> None:
    """TensorFlow cannot take the gradient of each call in a graph that is imported."""
    x = tf.constant(rng.normal(1.0, 2.0, (4, 32)), tf.float32)

    def layer_norm(x):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    norm = tf.function(layer_norm, jit_compile=compiled)
    concrete = norm.get_concrete_function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(concrete(x) ** 3)
    tape.gradient(loss, x)
    assert "FusedLayerNorm" in ops_in(concrete.graph)
    graph_def = concrete.graph.as_graph_def()
    assert not any("Fused" in op for op in _ops(graph_def))

    def gradient(x):
        names = {concrete.inputs[0].op.name: x}
        (y,) = tf.graph_util.import_graph_def(graph_def, names, [concrete.outputs[0].name])
        return tf.gradients(tf.reduce_sum(y**3), x)[0]

    if v1:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            fed = tf.compat.v1.placeholder(tf.float32, x.shape)
            got = session.run(gradient(fed), {fed: x.numpy()})
    else:
        got = tf.function(gradient)(x)
    y = oracle.layer_norm(x, None, None, -1, 1e-3).y
    close(got, oracle.backward(3 * y**2, x, None, (1,), (1,), 1e-3).dx)
