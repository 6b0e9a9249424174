"""A FuncGraph as the recognizer reads it: a GraphDef that tells the shapes that Python knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from . import _saving

GraphDef = Any
NodeDef = Any

FORWARD_OPS = frozenset({"FusedLayerNorm", "FusedRMSNorm", "FusedInstanceNorm", "FusedGroupNorm"})
FUSED_OPS = FORWARD_OPS | {f"{op}Grad" for op in FORWARD_OPS}

# Marks the fused ops of a described graph that no trace has put there: a program calls them.
BY_NAME = "_nv_norms_by_name"

# Names of the nodes that stand for the outputs of ops whose shapes, or values, only Python knows.
OUTPUT = "/nv_norms_output_"

# They read a variable, whose handle tells the shape.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
# The types of ops that has_functions() has been asked about, and what it said.
_HAS_FUNCTIONS: dict[str, bool] = {}
# Which of their inputs are sizes, axes or places.
_TAKE_INTEGERS = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "Mean": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Reshape": (1,),
    "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,),
    "Slice": (1, 2),
    "StridedSlice": (1, 2, 3),
    "Sum": (1,),
    "Tile": (1,),
    "Transpose": (1,),
}


def describe(graph: tf.Graph) -> GraphDef:
    """What outputs and effects of the graph need, each variable's or call's tensor with its shape.

    TensorFlow's shape inference gets these from the variables' handles and from the library, which
    Python keeps and a GraphDef lacks. Nor does it follow all that computes sizes and axes.
    """
    with _saving.raw():
        graph_def = graph.as_graph_def()
    graph_def.ClearField("library")
    needed = {op.name for op in _needed(graph)}
    if len(needed) < len(graph_def.node):  # vectorized_map leaves what it was given in the graph
        nodes = [node for node in graph_def.node if node.name in needed]
        graph_def.ClearField("node")
        graph_def.node.extend(nodes)
    for node in graph_def.node:
        # Where an op shall be, which may be beside one of another graph: the library drops such a
        # place, and every node would count as changed.
        node.attr.pop("_class", None)
        if node.op in FUSED_OPS and _saving.MARK not in node.attr:
            node.attr[BY_NAME].b = True
    _pass_plain_casts(graph_def, kept_nodes(graph))
    _tell_integers(graph_def, graph)
    _keep_arguments(graph_def, graph)
    _drop_idle_checks(graph_def, graph)
    opaque = {op.name: op for op in graph.get_operations() if is_opaque(op)}
    if not opaque:
        return graph_def
    first = _first_reads(opaque.values())
    read = set()
    for node in graph_def.node:
        if node.name in opaque and opaque[node.name].type not in _READS:
            _make_sink(node, opaque[node.name])
        for i, name in enumerate(node.input):
            source, port = split(name)
            if source in opaque and port >= 0:
                source = first.get(source, source)
                node.input[i] = f"{source}{OUTPUT}{port}"
                read.add((source, port))
    for source, port in sorted(read):
        tensor = opaque[source].outputs[port]
        node = graph_def.node.add(name=f"{source}{OUTPUT}{port}", op="Placeholder")
        node.input.append(f"^{source}")
        node.device = opaque[source].device
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    return graph_def


def _pass_plain_casts(graph_def: GraphDef, kept: Collection[str]) -> None:
    """Has what reads a Cast to the type that its operand has read the operand, as Grappler does.

    With NumPy's behaviour switched on (tf.experimental.numpy) each operand of an operator has one.
    """
    casts = {node.name: node.input[0] for node in graph_def.node if _is_plain_cast(node)}
    if not casts:
        return
    read = set(kept)
    for node in graph_def.node:
        for i, name in enumerate(node.input):
            while name in casts:
                name = casts[name]
            node.input[i] = name
            read.add(name.lstrip("^"))
    nodes = [node for node in graph_def.node if node.name not in casts or node.name in read]
    graph_def.ClearField("node")
    graph_def.node.extend(nodes)


def _is_plain_cast(node: NodeDef) -> bool:
    return (
        node.op == "Cast"
        and node.attr["SrcT"].type == node.attr["DstT"].type
        and len(node.input) == 1
        and "_gradient_op_type" not in node.attr
    )


def _first_reads(ops: Iterable[tf.Operation]) -> dict[str, str]:
    """Of a variable that is read several times, before all assignments, the first read's name.

    A read that waits for nothing comes before all of them: gamma may be read for each use.
    """
    firsts: dict[str, str] = {}
    return {
        op.name: firsts.setdefault(op.inputs[0].name, op.name)
        for op in ops
        if op.type == "ReadVariableOp" and not op.control_inputs
    }


def _needed(graph: tf.Graph) -> set[tf.Operation]:
    stateful = (op for op in graph.get_operations() if op.op_def.is_stateful)
    return with_sources([*_kept(graph), *stateful])


def with_sources(ops: Iterable[tf.Operation]) -> set[tf.Operation]:
    """These ops and all that they need."""
    found = set(ops)
    waiting = list(found)
    while waiting:
        op = waiting.pop()
        new = {tensor.op for tensor in op.inputs}.union(op.control_inputs) - found
        found |= new
        waiting += new
    return found


def reading_order(graph: tf.Graph) -> dict[tf.Operation, int]:
    """The graph's ops, what reads a tensor behind the op that gives it. Of a graph that was edited
    before that is not the order in which they were made."""
    order: dict[tf.Operation, int] = {}
    begun: set[tf.Operation] = set()
    for last in graph.get_operations():
        waiting = [last]
        while waiting:
            op = waiting[-1]
            sources = [t.op for t in op.inputs if t.op not in begun] if op not in begun else []
            begun.add(op)
            if sources:
                waiting += sources
            else:
                waiting.pop()
                order.setdefault(op, len(order))
    return order


def _tell_integers(graph_def: GraphDef, graph: tf.Graph) -> None:
    """Has Reshapes, slices and reductions read constants in place of sizes, places and axes that
    are computed, where Python knows them."""
    nodes = {node.name: node for node in graph_def.node}
    for op in graph.get_operations():
        if op.name not in nodes:
            continue
        for slot in _TAKE_INTEGERS.get(op.type, ()):
            computed = op.inputs[slot]
            if computed.op.type == "Const" or is_opaque(computed.op):
                continue
            known = _known_sizes(op.outputs[0]) if op.type == "Reshape" else _known(computed)
            if known is None:
                continue
            value = tf.make_tensor_proto(known, computed.dtype, np.shape(known))
            name = f"{computed.op.name}{OUTPUT}{computed.value_index}"
            if name not in nodes:
                nodes[name] = graph_def.node.add(name=name, op="Const", device=computed.op.device)
                nodes[name].attr["dtype"].type = computed.dtype.as_datatype_enum
                nodes[name].attr["value"].tensor.CopyFrom(value)
            if nodes[name].attr["value"].tensor == value:
                nodes[op.name].input[slot] = name


def _keep_arguments(graph_def: GraphDef, graph: tf.Graph) -> None:
    """Has captured numbers be arguments, as they are: a tape may watch one at any time, and a
    program give another in its place (ConcreteFunction.set_external_captures)."""
    inner = [inner for _, inner in getattr(graph, "captures", ())]
    inner += tf.nest.flatten(
        getattr(graph, "deferred_internal_captures", ()), expand_composites=True
    )
    captured = {each.op.name: each for each in inner if each.dtype.is_floating}
    for node in graph_def.node:
        tensor = captured.get(node.name)
        if tensor is None or node.op != "Const":
            continue
        node.op = "Placeholder"
        node.attr.clear()
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())


def _drop_idle_checks(graph_def: GraphDef, graph: tf.Graph) -> None:
    """Makes what checks a shape that Python knows anyway an op that does nothing."""
    for node in graph_def.node:
        if node.op != "EnsureShape":
            continue
        op = graph.get_operation_by_name(node.name)
        wanted, known = tf.TensorShape(op.get_attr("shape")), op.inputs[0].shape
        if known.is_subtype_of(wanted):
            node.op = "Identity"
            del node.attr["shape"]


def _known_sizes(tensor: tf.Tensor) -> list[int] | None:
    shape = tensor.shape
    if shape.rank is None or shape.as_list().count(None) > 1:
        return None
    return [-1 if size is None else size for size in shape.as_list()]


def _known(tensor: tf.Tensor) -> Any:
    """The integers of a tensor, computed if they follow from what is known; None if not."""
    value = tf.get_static_value(tensor)
    return tensor_util.try_evaluate_constant(tensor) if value is None else value


def is_opaque(op: tf.Operation) -> bool:
    """Whether it reads a variable, or calls functions."""
    return op.type in _READS or has_functions(op)


def has_functions(op: tf.Operation) -> bool:
    """Whether it calls functions: once, in a loop or in a branch."""
    has = _HAS_FUNCTIONS.get(op.type)
    if has is None:  # an op_def is long to make
        has = any(attr.type in ("func", "list(func)") for attr in op.op_def.attr)
        _HAS_FUNCTIONS[op.type] = has
    return has


def are_one_read(a: tf.Operation, b: tf.Operation) -> bool:
    """Whether both read one variable, and wait for nothing."""
    return (
        a.type == b.type == "ReadVariableOp"
        and a.inputs[0] is b.inputs[0]
        and not a.control_inputs
        and not b.control_inputs
    )


def _make_sink(node: NodeDef, op: tf.Operation) -> None:
    """Makes a call, whose function the graph lacks, an op that reads the same."""
    types = [tensor.dtype.as_datatype_enum for tensor in op.inputs]
    node.op = "IdentityN" if types else "NoOp"
    node.attr.clear()
    if types:
        node.attr["T"].list.type.extend(types)


def split(name: str) -> tuple[str, int]:
    """ "node:2" as ("node", 2), "node" as ("node", 0), a control input "^node" as ("node", -1)."""
    if name.startswith("^"):
        return name[1:], -1
    node, _, port = name.partition(":")
    return node, int(port or 0)


def original_name(tensor: str) -> str:
    """The FuncGraph's name of a tensor of the graph that describe() gave."""
    source, mark, rest = tensor.rpartition(OUTPUT)
    return f"{source}:{rest.partition(':')[0]}" if mark else tensor


def kept_nodes(graph: Any) -> list[str]:
    """Names of the ops that must keep their values: inputs, outputs, control outputs, calls."""
    return list(dict.fromkeys(op.name for op in _kept(graph)))


def _kept(graph: Any) -> list[tf.Operation]:
    tensors = [*graph.inputs, *(t for t in graph.outputs if t is not None)]
    ops = [tensor.op for tensor in tensors if tensor.graph is graph]
    return [*ops, *graph.control_outputs, *filter(is_opaque, graph.get_operations())]
