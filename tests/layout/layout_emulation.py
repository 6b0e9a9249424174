"""What TensorFlow makes of a model on a GPU, on a machine without: Grappler with a virtual GPU.

The passes that do not need a kernel run as they would there, the layout pass among them. The graph
that comes out holds convolutions in NCHW, which no CPU runs, so run() replaces each by its twin in
NHWC between Transposes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.python.grappler import cluster, tf_optimizer
from tensorflow.python.training import saver

import nv_norms_rewriter

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
GraphDef = tf.compat.v1.GraphDef


def training_step(model: Callable) -> Callable:
    """x -> [loss, gradients...]; each element of y has a weight of its own in the loss."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = tf.cast(model(x, training=True), tf.float32)
            weights = tf.sin(1.0 + tf.reshape(tf.range(tf.size(y), dtype=tf.float32), tf.shape(y)))
            loss = tf.reduce_sum(y * weights)
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    return step


def trace(
    function: Callable, shapes: Sequence[Sequence[int | None]], dtype: tf.DType = tf.float32
) -> tuple[GraphDef, list[str]]:
    """The function's graph on a GPU, and the names of its outputs.

    Arguments are read from variables, because Grappler forgets the shapes of what is fed.
    """
    signature = [tf.TensorSpec(shape, dtype) for shape in shapes]
    traced = tf.function(function, input_signature=signature, jit_compile=False)
    graph = traced.get_concrete_function().graph
    captured = {placeholder.op.name: tensor for tensor, placeholder in graph.captures}
    out = GraphDef()
    source = graph.as_graph_def()
    out.versions.CopyFrom(source.versions)
    out.library.CopyFrom(source.library)
    for node in source.node:
        if node.op != "Placeholder":
            out.node.add().CopyFrom(node)
        elif node.name in captured and captured[node.name].dtype == tf.resource:
            held = captured[node.name]._handle_data.shape_and_type[0]
            _add_variable(out, node.name, held.dtype, held.shape)
        else:
            tensor = graph.get_tensor_by_name(f"{node.name}:0")
            type_ = tensor.dtype.as_datatype_enum
            _add_variable(out, f"{node.name}_variable", type_, tensor.shape.as_proto())
            read = out.node.add(name=node.name, op="ReadVariableOp")
            read.input.append(f"{node.name}_variable")
            read.attr["dtype"].type = type_
    for node in out.node:
        node.device = GPU
    return out, [tensor.op.name for tensor in graph.outputs]


def _add_variable(graph: GraphDef, name: str, type_: int, shape) -> None:
    node = graph.node.add(name=name, op="VarHandleOp")
    node.attr["dtype"].type = type_
    node.attr["shape"].shape.CopyFrom(shape)
    node.attr["shared_name"].s = name.encode()
    node.attr["container"].s = b""


def _virtual_machine() -> cluster.Cluster:
    gpu = device_properties_pb2.DeviceProperties(
        type="GPU",
        vendor="NVidia",
        model="H200",
        frequency=1980,
        num_cores=132,
        bandwidth=4_800_000_000,
        memory_size=140 << 30,
        environment={"architecture": "9.0", "cuda": "12090", "cudnn": "9100"},
    )
    cpu = device_properties_pb2.DeviceProperties(
        type="CPU", frequency=3000, num_cores=16, memory_size=64 << 30
    )
    named = device_properties_pb2.NamedDevice
    return cluster.Cluster(
        devices=[
            named(name=GPU, properties=gpu),
            named(name=GPU.replace("GPU", "CPU"), properties=cpu),
        ]
    )


def grappler(graph: GraphDef, fetches: Sequence[str], first: bool) -> GraphDef:
    """One iteration of Grappler without plugins; the layout pass runs in the first one only."""
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(graph, name="")
    meta = saver.export_meta_graph(graph_def=imported.as_graph_def(), graph=imported)
    meta.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = 1
    options.min_graph_nodes = -1
    switch = rewriter_config_pb2.RewriterConfig
    options.layout_optimizer = switch.ON if first else switch.OFF
    options.use_plugin_optimizers = switch.OFF
    options.remapping = switch.OFF  # its fusions for the GPU have no kernel here
    return tf_optimizer.OptimizeGraph(
        config, meta, cluster=_virtual_machine(), strip_default_attributes=False
    )


def optimize(
    graph: GraphDef, fetches: Sequence[str]
) -> tuple[GraphDef, GraphDef, nv_norms_rewriter.Report]:
    """The graph after both iterations without us and with us, and what we found."""
    stock = grappler(graph, fetches, first=True)
    fused, report = nv_norms_rewriter.rewrite(stock, fetches=fetches)
    stock = grappler(stock, fetches, first=False)
    fused = grappler(fused, fetches, first=False)
    fused, second = nv_norms_rewriter.rewrite(fused, fetches=fetches)
    return stock, fused, type(report)([*report, *second])


def transposed_bytes(graph: GraphDef, unknown: int = 2) -> list[int]:
    """The size of each tensor that is transposed."""
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(_without_stale_shapes(graph), name="")
    found = [op.inputs[0] for op in imported.get_operations() if op.type == "Transpose"]
    return [
        int(np.prod([size or unknown for size in x.shape.as_list()])) * x.dtype.size
        for x in found
        if x.shape.rank is not None
    ]


def transposes(graph: GraphDef, at_least: int = 0) -> int:
    """How many Transposes the graph holds of tensors with so many bytes."""
    return sum(size >= at_least for size in transposed_bytes(graph))


def ops(graph: GraphDef) -> Counter[str]:
    return Counter(node.op for node in graph.node)


def _without_stale_shapes(graph: GraphDef) -> GraphDef:
    copy = GraphDef()
    copy.CopyFrom(graph)
    for node in copy.node:
        node.attr.pop("_output_shapes", None)
        node.attr.pop("_class", None)
        node.ClearField("device")
    return copy


_TO_LAST = {4: [0, 2, 3, 1], 5: [0, 2, 3, 4, 1]}
_TO_FIRST = {4: [0, 3, 1, 2], 5: [0, 4, 1, 2, 3]}
# Which inputs and outputs of an op that has a data_format are in that format, and which input holds
# the sizes of such a tensor.
_FORMATTED = {
    "Conv2D": ((0,), True, None),
    "Conv3D": ((0,), True, None),
    "DepthwiseConv2dNative": ((0,), True, None),
    "Conv2DBackpropInput": ((2,), True, 0),
    "Conv3DBackpropInputV2": ((2,), True, 0),
    "DepthwiseConv2dNativeBackpropInput": ((2,), True, 0),
    "Conv2DBackpropFilter": ((0, 2), False, None),
    "Conv3DBackpropFilterV2": ((0, 2), False, None),
    "DepthwiseConv2dNativeBackpropFilter": ((0, 2), False, None),
    "MaxPool": ((0,), True, None),
    "AvgPool": ((0,), True, None),
    "MaxPoolGrad": ((0, 1, 2), True, None),
    "AvgPoolGrad": ((1,), True, 0),
    "MaxPool3D": ((0,), True, None),
    "MaxPool3DGrad": ((0, 1, 2), True, None),
}


def runnable(graph: GraphDef) -> GraphDef:
    """The same graph with channels-last twins of what a CPU cannot run channels first."""
    out = GraphDef()
    out.versions.CopyFrom(graph.versions)
    out.library.CopyFrom(graph.library)
    for node in _without_stale_shapes(graph).node:
        format_ = node.attr["data_format"].s if "data_format" in node.attr else b""
        if node.op not in _FORMATTED or format_ not in (b"NCHW", b"NCDHW"):
            out.node.add().CopyFrom(node)
            continue
        rank = len(format_)
        inputs, formatted_output, sizes = _FORMATTED[node.op]
        type_ = node.attr["T"].type
        twin = tf.compat.v1.NodeDef()
        twin.CopyFrom(node)
        twin.attr["data_format"].s = b"NHWC" if rank == 4 else b"NDHWC"
        for attr in ("strides", "dilations", "ksize"):
            if attr in node.attr:
                old = list(node.attr[attr].list.i)
                twin.attr[attr].list.i[:] = [old[axis] for axis in _TO_LAST[rank]]
        if "explicit_paddings" in node.attr and node.attr["explicit_paddings"].list.i:
            pairs = np.array(node.attr["explicit_paddings"].list.i).reshape(rank, 2)
            twin.attr["explicit_paddings"].list.i[:] = pairs[_TO_LAST[rank]].ravel().tolist()
        for slot in inputs:
            twin.input[slot] = _transpose(
                out, f"{node.name}/run{slot}", node.input[slot], _TO_LAST[rank], type_
            )
        if sizes is not None:
            twin.input[sizes] = _gather(
                out, f"{node.name}/sizes", node.input[sizes], _TO_LAST[rank]
            )
        if formatted_output:
            twin.name = f"{node.name}/run"
            _transpose(out, node.name, twin.name, _TO_FIRST[rank], type_)
        out.node.add().CopyFrom(twin)
    return out


def _constant(graph: GraphDef, name: str, values: Sequence[int]) -> str:
    node = graph.node.add(name=name, op="Const")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, tf.int32))
    return name


def _transpose(graph: GraphDef, name: str, x: str, order: Sequence[int], type_: int) -> str:
    permutation = _constant(graph, f"{name}/perm", order)
    node = graph.node.add(name=name, op="Transpose", input=[x, permutation])
    node.attr["T"].type = type_
    node.attr["Tperm"].type = tf.int32.as_datatype_enum
    return name


def _gather(graph: GraphDef, name: str, x: str, order: Sequence[int]) -> str:
    indices = _constant(graph, f"{name}/order", order)
    axis = _constant(graph, f"{name}/axis", 0)
    node = graph.node.add(name=name, op="GatherV2", input=[x, indices, axis])
    for attr in ("Tparams", "Tindices", "Taxis"):
        node.attr[attr].type = tf.int32.as_datatype_enum
    return name


def run(
    graph: GraphDef, fetches: Sequence[str], unknown: int = 2, seed: int = 0
) -> list[np.ndarray]:
    """Runs the graph as it is. A variable holds random numbers that depend on its name only."""
    plain = runnable(graph)
    handles = {node.name: node for node in plain.node if node.op == "VarHandleOp"}
    for node in plain.node:
        if node.op != "ReadVariableOp":
            continue
        handle = handles[node.input[0]]
        shape = [unknown if d.size < 0 else d.size for d in handle.attr["shape"].shape.dim]
        dtype = tf.as_dtype(handle.attr["dtype"].type)
        random = np.random.default_rng([seed, zlib.crc32(handle.name.encode())])
        value = random.normal(size=shape) / np.sqrt(max(1, np.prod(shape[:-1])))
        if len(shape) == 1:
            value = 1 + 0.1 * value
        name, controls = node.name, [i for i in node.input if i.startswith("^")]
        node.Clear()
        node.name, node.op = name, "Const"
        node.input.extend(controls)
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype, shape))
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=1)
    options = config.graph_options
    options.rewrite_options.disable_meta_optimizer = True
    options.optimizer_options.opt_level = config_pb2.OptimizerOptions.L0
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(plain, name="")
        with tf.compat.v1.Session(graph=imported, config=config) as session:
            return session.run([f"{name}:0" for name in fetches])
