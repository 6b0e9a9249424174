"""Fuses normalizations in functions that XLA compiles and nobody traces for it.

Those are what a SavedModel holds, and what was traced before a function that XLA compiles called
it. They may be in use outside of XLA, too, and the norms in them may be in functions that they
call. So a copy of the function, with the bodies of the calls in it, is what XLA is given; and the
function itself where no norm is fused in the copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import _library, _process, _trace_describe, _trace_where, _tracebacks

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# In v1 loops, which XLA does not compile, tensors go in circles.
_V1_LOOPS = frozenset({"Enter", "NextIteration", "Exit"})
# What a call op says of its gradient where it is that of the function's body.
_GRADIENT_OF_BODY = b"PartitionedCall-"


def install(rewrite: Callable[[Any], bool]) -> None:
    """Has copies be made, once per process.

    Args:
      rewrite: given a FuncGraph for XLA, fuses norms in it; returns whether any was.
    Raises:
      ImportError, AttributeError: this TensorFlow lacks one of the inner parts.
    """
    from tensorflow.python.eager import context, record
    from tensorflow.python.eager.polymorphic_function import concrete_function
    from tensorflow.python.saved_model import function_deserialization

    concrete = concrete_function.ConcreteFunction
    call, make = concrete._call_flat, concrete.from_func_graph
    load = function_deserialization.load_function_def_library

    @functools.wraps(call)
    def call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        is_inside = not context.executing_eagerly() and _trace_where.builds_for_xla()
        function = None
        if is_inside and not _trace_where.is_for_xla(self._attrs):
            function = _or_none(of_called, self.graph, self, tensor_inputs)
        try:
            return call(function or self, tensor_inputs, captured_inputs)
        except Exception:
            _tracebacks.leave_us_out()  # Keras may have been imported after us
            raise

    def of_called(graph: Any, function: Any, arguments: Any) -> Any:
        ops = _to_copy(graph)
        has_own = _has_own_gradients(ops)
        if not ops or has_own and record.could_possibly_record():
            return None
        copy = _copy(graph, arguments, len(function.function_type.flat_outputs))
        if not rewrite(copy):
            return None
        made = make(copy, function.function_type, {})
        if has_own:
            made._get_gradient_function = function._get_gradient_function
        return made

    @functools.wraps(make)
    def from_func_graph(
        graph: Any, function_type: Any, attrs: Any, *more: Any, **named: Any
    ) -> Any:
        function = None
        if _is_loading() and _trace_where.is_for_xla(attrs):
            function = _or_none(of_loaded, graph, function_type, attrs)
        return function or make(graph, function_type, attrs, *more, **named)

    def of_loaded(graph: Any, function_type: Any, attrs: Any) -> Any:
        ops = _to_copy(graph)
        if not ops or _has_own_gradients(ops):
            rewrite(graph)
            return None
        copy = _copy(graph, (), len(function_type.flat_outputs))
        return make(copy, function_type, attrs) if rewrite(copy) else None

    @functools.wraps(load)
    def load_functions(*arguments: Any, **keywords: Any) -> Any:
        thread = _process.state()["thread"]
        outer, thread.loading = _is_loading(), True
        try:
            return load(*arguments, **keywords)
        finally:
            thread.loading = outer

    concrete._call_flat = call_flat
    concrete.from_func_graph = staticmethod(from_func_graph)
    function_deserialization.load_function_def_library = load_functions


def _is_loading() -> bool:
    """Whether this thread makes the functions of a SavedModel."""
    return getattr(_process.state()["thread"], "loading", False)


def _or_none(make: Callable[..., Any], graph: Any, *arguments: Any) -> Any:
    """What `make` gives of the graph; None if it raises, as the user's program must go on."""
    try:
        return make(graph, *arguments)
    except Exception as error:  # noqa: BLE001 (whatever it is)
        _process.say_once(
            f"the normalizations in {graph.name} stay as they are: {type(error).__name__}: {error}"
        )
        return None


def _to_copy(graph: Any) -> list[Any]:
    """The ops of the FuncGraph and of what it calls; none if there is no norm to fuse, or if it has
    loops or branches, which TensorFlow differentiates by the graphs that it has of them."""
    is_on = _library.core().is_enabled() and _trace_where.may_be_edited(graph)
    if not is_on or not _may_hold_norms(graph):
        return []
    ops = list(_ops(graph))
    return [] if any(map(_is_loop_or_branch, ops)) else ops


def _ops(graph: Any) -> Iterator[Any]:
    for op in graph.get_operations():
        yield op
        body = _body(op)
        if body is not None:
            yield from _ops(body)


def _is_loop_or_branch(op: Any) -> bool:
    """Whether it is of a loop, or has functions and is no call, which may stay one."""
    return op.type in _V1_LOOPS or (op.type not in _CALLS and _trace_describe.has_functions(op))


def _may_hold_norms(graph: Any) -> bool:
    """Whether a norm may be in the graph, or in a function that it calls, that was not looked at
    for XLA when it was traced, and is not fused for a tape."""
    ops = graph.get_operations()
    types = {op.type for op in ops}
    if getattr(graph, _trace_where.LOOKED_AT, "") == "xla" or _trace_where.holds_fused(graph):
        return False
    if _trace_where.is_of_interest(types):
        return True
    bodies = map(_body, ops)
    return any(body is not None and _may_hold_norms(body) for body in bodies)


def _has_own_gradients(ops: Iterable[Any]) -> bool:
    """Whether a program has said what the gradient of an op is (`tf.custom_gradient`), which may
    read tensors of the very graph in which it was traced."""
    return any(_has_own_gradient(op.node_def) for op in ops)


def _has_own_gradient(node: Any) -> bool:
    if "_gradient_op_type" not in node.attr:
        return False
    return not node.attr["_gradient_op_type"].s.startswith(_GRADIENT_OF_BODY)


def _body(op: Any) -> Any:
    """The FuncGraph of the function that an op calls; None if it calls none, or is to stay a call:
    what XLA compiles was looked at when it was traced or loaded, or is to stay."""
    if op.type not in _CALLS:
        return None
    node = op.node_def
    if _has_own_gradient(node):
        return None
    function = op.graph._get_function(node.attr["f"].func.name)
    if function is None or _trace_where.is_for_xla(function.attributes):
        return None
    return function.graph


def _copy(graph: Any, arguments: Sequence[Any], number: int) -> Any:
    """The FuncGraph once more, with what it calls in it, of the arguments' shapes.

    It has so many outputs: behind them TensorFlow puts what a gradient of the function needs.
    """
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    copy = func_graph.FuncGraph(
        graph.name, structured_input_signature=graph.structured_input_signature
    )
    with (
        _process.state()["differentiated"],  # no other thread edits the graph meanwhile
        copy.as_default(),
        tf.name_scope(""),
        tf.device(None),
        tf.control_dependencies(None),
    ):
        replay = _Replay(copy)
        copy.inputs = [replay.same(tensor.op, []).outputs[0] for tensor in graph.inputs]
        for given, argument in zip(copy.inputs, arguments, strict=False):
            given.set_shape(argument.shape)
        outputs, copy.control_outputs = replay.body(graph, copy.inputs, [], "")
    copy.outputs = outputs[:number]
    new = dict(zip(map(id, graph.outputs), copy.outputs, strict=False))
    copy.structured_outputs = tf.nest.map_structure(
        lambda old: new.get(id(old), old), graph.structured_outputs, expand_composites=True
    )
    copy.variables = graph.variables
    if not graph.saveable:
        copy.mark_as_unsaveable(graph.saving_errors)
    return copy


class _Replay:
    """Makes the ops of function graphs once more, in the graph that is the default one."""

    def __init__(self, into: Any) -> None:
        self._into = into

    def body(
        self, graph: Any, inputs: Sequence[Any], waits: Sequence[Any], scope: str
    ) -> tuple[list[Any], list[Any]]:
        """The outputs and the control outputs of the function of these inputs; what has effects
        waits for the ops `waits`."""
        for function in graph._functions.values():
            self._into._add_function_recursive(function)
        tensors = dict(zip(map(id, graph.inputs), inputs, strict=True))
        # The first and the last ops that stand for one: of a call, what is before and behind it.
        begins: dict[Any, Any] = {}
        ends: dict[Any, list[Any]] = {tensor.op: list(waits) for tensor in graph.inputs}
        for op in _trace_describe.reading_order(graph):
            if op in ends:
                continue
            read = [tensors[id(tensor)] for tensor in op.inputs]
            called = _body(op)
            if called is None:
                begins[op] = self.same(op, read, scope)
                outputs, ends[op] = begins[op].outputs, [begins[op]]
            else:
                inner = f"{scope}{op.name}/"
                begins[op] = self._into.create_op("NoOp", [], [], name=f"{inner}begin")
                outputs, controls = self.body(called, read, [begins[op]], inner)
                ends[op] = [begins[op], *controls]
            tensors.update(zip(map(id, op.outputs), outputs, strict=False))
        for op, begin in begins.items():
            before = [end for source in op.control_inputs for end in ends[source]]
            if waits and op.op_def.is_stateful:
                before += waits
            begin._add_control_inputs(list(dict.fromkeys(before)))
        controls = [end for op in graph.control_outputs for end in ends[op]]
        return [tensors[id(tensor)] for tensor in graph.outputs], list(dict.fromkeys(controls))

    def same(self, op: Any, inputs: Sequence[Any], scope: str = "") -> Any:
        """An op that computes of the inputs what the given one does."""
        from tensorflow.python.ops import handle_data_util

        attributes = dict(op.node_def.attr)
        attributes.pop("_class", None)  # ops of the other graph
        new = self._into._create_op_internal(
            op.type,
            list(inputs),
            [tensor.dtype for tensor in op.outputs],
            name=self._into.unique_name(f"{scope}{op.name}") + "/",
            attrs=attributes,
            compute_device=False,
        )
        new._set_device_from_string(op.device)
        new._gradient_function = op._gradient_function
        for old, tensor in zip(op.outputs, new.outputs, strict=True):
            tensor.set_shape(old.shape)
            handle_data_util.copy_handle_data(old, tensor)
        return new
