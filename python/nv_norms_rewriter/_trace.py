"""Fuses normalizations when TensorFlow traces a function: what XLA compiles, Grappler never sees.

TensorFlow calls a list of Python functions with every function graph that it has traced, before
anything is made of it. Ours gives the graph to the recognizer that also serves Grappler, and makes
the edits in the function graph. Functions that Grappler will see are left to Grappler, unless
another plugin holds the device type.

A trace must never fail because of us: whatever is not as expected leaves the graph as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _library, _options, _process, _saving, _xla_rule

# One of these takes the inverse root in every normalization.
_ROOTS = frozenset({"Rsqrt", "Sqrt", "Pow", "FusedBatchNormV3"})
# Ops that only hand their first input on, in another type or shape.
_VIEWS = frozenset({"Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient"})

# Devices for which the fused ops have kernels inside XLA.
_SERVED = frozenset({"CPU", "GPU"})

# Set on graphs that have been looked at.
_LOOKED_AT = "_nv_norms_looked_at"

LEFT = "left_to_xla"
STOPS = "stops_a_gradient"
FAILED = "cannot_be_edited"


def install() -> None:
    """Adds the transform to TensorFlow's list, once per process."""
    memory = _process.state()
    if memory["hooked"]:
        return
    try:
        transforms = _transforms()
        _saving.install()  # the last thing that may fail
    except (ImportError, AttributeError) as error:
        _say_other_parts("in functions that XLA compiles", error)
        return
    transforms.append(_transform)
    memory["hooked"] = True
    try:
        from . import _tape

        _tape.install()
    except (ImportError, AttributeError) as error:
        _say_other_parts("in functions that a tape outside of them differentiates", error)


def _transforms() -> list[Callable[[Any], None]]:
    """TensorFlow's list; an error if anything else that we need of its inner parts is missing."""
    from tensorflow.python.eager.polymorphic_function import transform
    from tensorflow.python.framework import func_graph, ops
    from tensorflow.python.ops import control_flow_ops
    from tensorflow.python.saved_model import save_context

    for owner, name in (
        (save_context, "in_save_context"),
        (ops, "executing_eagerly_outside_functions"),
        (control_flow_ops, "XLAControlFlowContext"),
        (func_graph, "FuncGraph"),
        (ops.Graph, "_create_op_internal"),
        (ops.Operation, "_update_input"),
        (ops.Operation, "_add_control_inputs"),
        (ops.Operation, "_remove_all_control_inputs"),
    ):
        getattr(owner, name)
    return transform.FUNC_GRAPH_TRANSFORMS


def _say_other_parts(which: str, error: Exception) -> None:
    _process.say_once(
        f"normalizations {which} stay as they are: this TensorFlow has other inner parts than the "
        f"one that this was built for ({error})"
    )


def _transform(graph: Any) -> None:
    """What TensorFlow calls with each function graph that it has traced."""
    _look(graph, _where)


def before_gradient(graph: Any) -> None:
    """To be called before TensorFlow makes a function of its own of an ordinary graph's gradient.

    From that one alone no gradient can be recognized; of a fused op it is one op.
    """
    if not getattr(graph, _LOOKED_AT, False):
        _look(graph, lambda graph: "tape" if _may_be_edited(graph) else None)


def _look(graph: Any, where_of: Callable[[Any], str | None]) -> None:
    try:
        core = _library.core()
        if not core.is_enabled():
            return
        types = {op.type for op in graph.get_operations()}
        # The trace in which variables are created is thrown away.
        if not _is_of_interest(types) or "VarIsInitializedOp" in types:
            return
        where = where_of(graph)
        if where is not None:
            setattr(graph, _LOOKED_AT, True)
            _rewrite(core, graph, where)
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's trace must go on)
        name = getattr(graph, "name", "a function")
        _process.say_once(
            f"the normalizations in {name} stay as they are: {type(error).__name__}: {error}"
        )


def _is_of_interest(types: set[str]) -> bool:
    """Whether ops of these types may be a normalization, or a fused one with Casts beside it."""
    return not types.isdisjoint(_ROOTS) or ("Cast" in types and not types.isdisjoint(_fused_ops()))


def _fused_ops() -> frozenset[str]:
    from . import _trace_graph

    return _trace_graph.FUSED_OPS


def _where(graph: Any) -> str | None:
    """ "xla" in a function that XLA will compile, "trace" in one that Grappler will not bring to
    us, None in all others."""
    if not _may_be_edited(graph):
        return None
    if _is_compiled(graph):
        return "xla"
    held = _process.state()["held"]
    return "trace" if held and _device_type() in held else None


def _may_be_edited(graph: Any) -> bool:
    from tensorflow.python.framework import func_graph, ops
    from tensorflow.python.saved_model import save_context

    if not isinstance(graph, func_graph.FuncGraph):
        return False
    # What is traced there is to hold TensorFlow's own ops.
    if save_context.in_save_context() or _saving.is_raw():
        return False
    # A v1 graph is written out with the functions in it.
    return ops.executing_eagerly_outside_functions()


def _is_compiled(graph: Any) -> bool:
    """Whether the function is traced for XLA on a CPU or GPU.

    Its ops then stand in an XLA context, and so does the graph around it while it is traced. (In
    the graph around it the call does, too, which is why only certain ops are asked.)
    """
    contexts = []
    outer = graph
    while outer is not None:
        contexts.append(outer._get_control_flow_context())
        outer = getattr(outer, "outer_graph", None)
    asked = _ROOTS | _fused_ops()
    contexts += [
        op._get_control_flow_context() for op in graph.get_operations() if op.type in asked
    ]
    return any(_is_xla(context) for context in contexts)


def _is_xla(context: Any) -> bool:
    from tensorflow.python.ops import control_flow_ops

    while context is not None:
        if context.IsXLAContext():
            # Contexts for TPUs are of types derived from this one.
            return type(context) is control_flow_ops.XLAControlFlowContext
        context = context.outer_context
    return False


def _device_type() -> str:
    """The type of the device on which TensorFlow puts what is traced now if nothing else is said.

    A function may later run on another device; the fused ops run there, too.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    name = context.context().device_name or ""
    named = name.rpartition("device:")[2].partition(":")[0].upper()
    if named:
        return named
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def _rewrite(core: _library.Core, graph: Any, where: str) -> None:
    from . import _trace_graph

    device_type = _device_type()
    if device_type not in _SERVED or (device_type == "GPU" and not _library.gpus_are_usable()):
        return
    before = _trace_graph.describe(graph)
    if where == "xla":  # which compiles all of a function for one device
        for node in before.node:
            node.device = ""
    kept = ",".join(_trace_graph.kept_nodes(graph))
    # Layouts stay: an edit relies on nodes that keep their names to keep their meaning.
    serialized, records = core.rewrite(
        before.SerializeToString(),
        f"/device:{device_type}:0",
        kept,
        layouts=False,
        compiled=where == "xla",
    )
    for record in records:
        record.update(graph=graph.name, where=where)
    try:
        after = type(before).FromString(serialized)
        if not records and after == before:
            return
        edit = _trace_graph.Edit(graph, before, after)
        left = _stopped(graph, edit, records)
        left += _left(graph, edit, records, device_type) if where == "xla" else []
        if any(record["fused"] for record in records) or edit.changes_ops_by_name():
            edit.apply(left)
            graph._nv_norms_forward = _forward_records(edit, records)
    except Exception as error:  # noqa: BLE001 (reported; the graph is as it was)
        _process.logger.warning(
            "nv_norms_rewriter: the normalizations in %s stay as they are: %s", graph.name, error
        )
        for record in records:
            if record["fused"]:
                sentence = f"the traced function cannot be edited: {error}"
                record.update(fused=False, reason=FAILED, detail=sentence)
    for record in records:
        for key in ("inputs", "outputs"):
            record[key] = [_trace_graph.original_name(name) for name in record[key]]
    _remember(core, records)


def _forward_records(edit: Any, records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The records of the fused forward ops that were made, by the ops' names."""
    made: dict[str, dict[str, Any]] = {}
    for record in records:
        if record["fused"] and record["direction"] == "forward":
            ops = [op.name for op in edit.fused_ops(record["outputs"][0]) if op.name not in made]
            made.update({name: record for name in ops[:1]})
    return made


def report_gradient(forward: Any, inputs: list[Any], outputs: list[Any]) -> None:
    """Reports the gradient of a fused op, if a trace has put the op in the place of others."""
    record = getattr(forward.graph, "_nv_norms_forward", {}).get(forward.name)
    if record is not None:
        names = {"inputs": [t.name for t in inputs], "outputs": [t.name for t in outputs]}
        gradient = {**record, **names, "direction": "backward"}
        gradient["graph"] = outputs[0].graph.name
        _remember(_library.core(), [gradient])


def _remember(core: _library.Core, records: list[dict[str, Any]]) -> None:
    memory = _process.state()
    position = len(core.records())
    with memory["lock"]:
        memory["traced"] += [(position, record) for record in records]


def _stopped(graph: Any, edit: Any, records: list[dict[str, Any]]) -> list[str]:
    """The fused nodes that are left out because the graph, which may be differentiated after this,
    has another gradient than they; their records say so."""
    from . import _trace_graph

    order = {op: i for i, op in enumerate(graph.get_operations())}
    groups = [group for group in _groups(records) if group[0]["direction"] == "forward"]
    stopped = set()
    for forward, *_ in groups:
        x, y = (_tensor(graph, forward[key][0]) for key in ("inputs", "outputs"))
        if x is None or y is None or _trace_graph.stops_gradient(x, y, order):
            stopped.add(forward["outputs"][0])
    for group in groups:
        if group[0]["outputs"][0] in stopped:  # all norms of a sum, of which one does
            for record in group:
                why = "a gradient is stopped or replaced on the way from x to y"
                record.update(fused=False, reason=STOPS, detail=why)
    return [node.name for output in stopped for node in edit.fused_nodes(output)]


def _left(graph: Any, edit: Any, records: list[dict[str, Any]], device_type: str) -> list[str]:
    """The fused nodes that are left out because XLA does as well; their records say so."""
    mode = _options.get("xla")
    left: list[str] = []
    if mode == "all":
        return left
    for group in _groups(records):
        node = edit.fused_node(group[0])
        why = "configure(xla='none') leaves every normalization to XLA"
        if mode != "none":
            why = _xla_rule.why_left(_norm(graph, group, node, device_type))
        if why:
            left.append(node.name)
            for each in group:
                if each["fused"]:
                    each.update(fused=False, reason=LEFT, detail=why)
    return left


def _groups(records: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What is fused, each forward with its gradients; a gradient may be without its forward."""
    groups: list[list[dict[str, Any]]] = []
    for record in records:
        if record["direction"] == "forward":
            groups.append([record])
        elif record["direction"] == "backward":
            forward = groups[-1][0] if groups else None
            if forward and forward["inputs"] and forward["inputs"][0] in record["inputs"]:
                groups[-1].append(record)
            else:
                groups.append([record])
    return [group for group in groups if group[0]["fused"]]


def _norm(graph: Any, group: list[dict[str, Any]], node: Any, device_type: str) -> _xla_rule.Norm:
    record = group[0]
    if record["direction"] == "forward":
        x, y = (_tensor(graph, record[key][0]) for key in ("inputs", "outputs"))
        gradients = [each["fused"] for each in group[1:]]
    else:  # whose inputs are dy, x, gamma; nobody asks for y
        x, y, gradients = _tensor(graph, record["inputs"][1]), None, [True]
    shape = None
    if x is not None and x.shape.rank is not None:
        shape = tuple(x.shape.as_list())
    named = record["device"].rpartition("device:")[2].partition(":")[0]
    return _xla_rule.Norm(
        kind=record["kind"],
        gradient="" if not gradients else "fused" if all(gradients) else "stock",
        shape=shape,
        axes=tuple(record["axes"]),
        data_format=node.attr["data_format"].s.decode() if "data_format" in node.attr else "",
        groups=node.attr["groups"].i if "groups" in node.attr else 0,
        dtype={"half": "float16", "float": "float32", "double": "float64"}.get(
            record["dtype"], record["dtype"]
        ),
        device_type=named or device_type,
        producer=_producer(x),
        readers=_readers(y),
    )


def _tensor(graph: Any, name: str) -> Any:
    from . import _trace_graph

    try:
        return graph.get_tensor_by_name(_trace_graph.original_name(name))
    except (KeyError, ValueError):
        return None


def _producer(tensor: Any) -> str:
    while tensor is not None and tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[0]
    return "" if tensor is None else tensor.op.type


def _readers(tensor: Any) -> tuple[str, ...]:
    types: set[str] = set()
    waiting = [] if tensor is None else [tensor]
    while waiting:
        for op in waiting.pop().consumers():
            if op.type in _VIEWS:
                waiting.append(op.outputs[0])
            else:
                types.add(op.type)
    return tuple(sorted(types))
