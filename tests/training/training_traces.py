"""What a step really computes and keeps: TensorFlow's own record of a run, tensor by tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

v1 = tf.compat.v1
# Ops that hand on a buffer which another op has made.
VIEWS = frozenset(
    ["_Arg", "_Retval", "Placeholder", "Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze"]
)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One output of one op in a run."""

    node: str
    op: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Trace:
    """The tensors of a run in the order of their making, and the most memory that they held."""

    tensors: list[Tensor]
    peak_bytes: int

    def computed(self, num_elements: int) -> list[Tensor]:
        """Those of at least so many elements, without inputs and views."""
        return [
            tensor
            for tensor in self.tensors
            if np.prod(tensor.shape) >= num_elements and tensor.op not in VIEWS
        ]


def optimized(function, arrays: Sequence[np.ndarray]) -> v1.GraphDef:
    """The graph that TensorFlow runs for a concrete function, after all optimizers."""
    context.context().enable_graph_collection()
    try:
        function(*[tf.constant(array) for array in arrays])
    finally:
        metadata = context.context().export_run_metadata()
        context.context().disable_graph_collection()
    return max(metadata.partition_graphs, key=lambda graph: len(graph.node))


def _with_values_fed(graph: v1.GraphDef, values: list) -> tuple[v1.GraphDef, dict, list[str]]:
    """The graph with placeholders for arguments and variables, what to feed them, what to fetch."""
    arguments = {node.name: node.attr["index"].i for node in graph.node if node.op == "_Arg"}
    feeds, fetches = {}, []
    out = v1.GraphDef(versions=graph.versions, library=graph.library)
    for node in graph.node:
        value = None
        if node.op == "_Retval":
            fetches.append(node.input[0])
            continue
        if node.op == "ReadVariableOp":
            value = tf.raw_ops.ReadVariableOp(
                resource=values[arguments[node.input[0].partition(":")[0]]],
                dtype=node.attr["dtype"].type,
            )
        elif node.op == "_Arg":
            value = values[arguments[node.name]]
            if value.dtype == tf.resource:
                continue
        out.node.append(node)
        if value is not None:
            new = out.node[-1]
            new.op = "Placeholder"
            new.ClearField("attr")
            del new.input[:]
            new.attr["dtype"].type = value.dtype.as_datatype_enum
            feeds[f"{node.name}:0"] = value.numpy()
    return out, feeds, fetches


def trace(step: Callable[..., object], arrays: Sequence[np.ndarray]) -> Trace:
    """What a tf.function's optimized graph computes, run by a session of one thread as it is."""
    function = step.get_concrete_function()
    values = [tf.constant(array) for array in arrays] + list(function.captured_inputs)
    graph_def, feeds, fetches = _with_values_fed(optimized(function, arrays), values)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    metadata = v1.RunMetadata()
    with v1.Session(graph=graph, config=config) as session:
        session.run(fetches, feeds)
        session.run(fetches, feeds, options=options, run_metadata=metadata)
    tensors, records = [], []
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            # "[where 0.2MB 0.2MB] name = Op(inputs)"
            op = node.timeline_label.rpartition(" = ")[2].partition("(")[0]
            for output in node.output:
                shape = tuple(dim.size for dim in output.tensor_description.shape.dim)
                tensors.append(Tensor(node.node_name, op, shape))
            for memory in node.memory:
                records += [(r.alloc_micros, r.alloc_bytes) for r in memory.allocation_records]
    held = np.cumsum([size for _, size in sorted(records, key=lambda record: record[0])])
    return Trace(tensors, int(held.max(initial=0)))
