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

from . import _library, _process, _records, _saving, _trace_where

# Devices for which the fused ops have kernels inside XLA.
_SERVED = frozenset({"CPU", "GPU"})

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
        from . import _trace_called

        _trace_called.install(_fuses)
    except (ImportError, AttributeError) as error:
        _say_other_parts("in loaded functions that XLA compiles", error)
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
    """What TensorFlow calls with each function graph that it has traced; with a loop's or branch's
    again when it has been differentiated."""
    if not hasattr(graph, _trace_where.LOOKED_AT):
        _look(graph, _trace_where.where_of)


def _fuses(graph: Any) -> bool:
    """Rewrites a function graph for XLA; whether any norm in it is fused now."""
    _look(graph, lambda graph: "xla" if _trace_where.may_be_edited(graph) else None)
    return _trace_where.holds_fused(graph)


def leave(graph: Any, where: str = "nowhere") -> None:
    """Has the graph stay as it is, once an edit that another thread makes has ended; or notes where
    it is rewritten."""
    with _process.state()["differentiated"]:
        setattr(graph, _trace_where.LOOKED_AT, where)


def before_gradient(graph: Any, outputs: int | None = None) -> None:
    """To be called before TensorFlow makes a function of its own of an ordinary graph's gradient.

    From that one alone no gradient can be recognized; of a fused op it is one op. After that the
    graph stays: what has been made of it finds tensors by the graph's outputs, at each call anew.
    In what XLA compiles, graphs were looked at when they were traced, or they are to stay.

    Args:
      outputs: how many the graph's function gives. A graph with more was differentiated before this
        package was imported.
    """
    memory = _process.state()
    # Threads may differentiate one function at once: the others wait for the edit's end.
    with memory["differentiated"]:
        stays = (
            hasattr(graph, _trace_where.LOOKED_AT)
            or (outputs is not None and len(graph.outputs) > outputs)
            or getattr(memory["thread"], "elsewhere", False)
            or _trace_where.builds_for_xla()
        )
        if not stays:
            _look(graph, lambda graph: "tape" if _trace_where.may_be_edited(graph) else None)
        leave(graph)


def _look(graph: Any, where_of: Callable[[Any], str | None]) -> None:
    try:
        core = _library.core()
        if not core.is_enabled():
            return
        types = {op.type for op in graph.get_operations()}
        # The trace in which variables are created is thrown away.
        if not _trace_where.is_of_interest(types) or "VarIsInitializedOp" in types:
            return
        where = where_of(graph)
        if where is not None:
            leave(graph, where)
            _rewrite(core, graph, where)
        if where == "xla":
            from . import _trace_layout  # which imports TensorFlow

            _trace_layout.place(graph, _trace_where.device_type())
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's trace must go on)
        name = getattr(graph, "name", "a function")
        _process.say_once(
            f"the normalizations in {name} stay as they are: {type(error).__name__}: {error}"
        )


def _rewrite(core: _library.Core, graph: Any, where: str) -> None:
    from . import _trace_choice, _trace_describe, _trace_graph  # which import TensorFlow

    device_type = _trace_where.device_type()
    if device_type not in _SERVED or not _kernels_run(device_type):
        return
    before = _trace_describe.describe(graph)
    if where == "xla":  # which compiles all of a function for one device
        for node in before.node:
            node.device = ""
    kept = ",".join(_trace_describe.kept_nodes(graph))
    # Layouts stay: an edit relies on nodes that keep their names to keep their meaning.
    serialized, records = core.rewrite(
        before.SerializeToString(),
        _trace_where.device(),
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
        left = _trace_choice.stopped(graph, edit, records)
        if where == "xla":
            left += _trace_choice.left_to_xla(graph, edit, records, device_type)
        if any(record["fused"] for record in records) or edit.changes_ops_by_name():
            edit.apply([*left, *edit.unread()])
            _records.set_of_graph(graph, _forward_records(edit, records))
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
            record[key] = [_trace_describe.original_name(name) for name in record[key]]
    _records.remember(core, records)


def _kernels_run(device_type: str) -> bool:
    if device_type == "CPU":
        return not _library.cpu_trouble()
    return _library.gpus_are_usable()


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
    record = _records.of_graph(forward.graph).get(forward.name)
    if record is not None:
        names = {"inputs": [t.name for t in inputs], "outputs": [t.name for t in outputs]}
        gradient = {**record, **names, "direction": "backward"}
        gradient["graph"] = outputs[0].graph.name
        _records.remember(_library.core(), [gradient])
