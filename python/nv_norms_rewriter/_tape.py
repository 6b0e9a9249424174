"""Fuses normalizations in what TensorFlow differentiates as a function of its own.

Ordinary functions that a tape outside of them differentiates become a forward and a backward
function. Between them go all tensors that the gradients of the single ops want, and what the
backward function computes from those arguments cannot be told from it alone. So the graph is
rewritten before it is differentiated. What runs without a tape, and what is saved, is another
function, made before from the stock graph.

Bodies of loops and branches of conditions likewise: their gradients are loops and conditions of
their own, which get those tensors through lists and optionals.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import _process, _saving, _trace, _trace_where


@contextlib.contextmanager
def _differentiating() -> Iterator[None]:
    """Inside, this thread makes a backward function: also of the functions that are called.

    TensorFlow tries more than once how many outputs it has; the last one counts.
    """
    # Shared, as the ops' gradients may be registered by another copy of this module.
    thread = _process.state()["thread"]
    outer = getattr(thread, "made", None)
    thread.made = {}
    try:
        yield
    finally:
        made, thread.made = thread.made, outer
        for forward, (inputs, outputs) in made.items():
            made_gradient(forward, inputs, outputs)


@contextlib.contextmanager
def _leaving_graphs_alone() -> Iterator[None]:
    """Inside, this thread's graphs stay as they are when they are differentiated."""
    thread = _process.state()["thread"]
    outer, thread.elsewhere = getattr(thread, "elsewhere", False), True
    try:
        yield
    finally:
        thread.elsewhere = outer


def _made() -> dict[Any, tuple[list[Any], list[Any]]] | None:
    """What this thread's backward functions have of fused ops; None if it makes none."""
    return getattr(_process.state()["thread"], "made", None)


def made_gradient(forward: Any, inputs: list[Any], outputs: list[Any]) -> None:
    """To be called where a fused op is differentiated: reports it if a trace has put the op there.

    Other gradients are found in the graph of their forward, if it is in one.
    """
    made = _made()
    if made is None:
        _trace.report_gradient(forward, inputs, outputs)
    else:
        made[forward] = (inputs, outputs)


def install() -> None:
    """Has graphs rewritten before they are differentiated, once per process; all of them or none.

    Raises:
      ImportError, AttributeError: this TensorFlow lacks one of the inner parts.
    """
    parts = [*_of_functions(), *_of_control_flow(), *_of_prunable_graphs()]
    for owner, name, part in parts:
        setattr(owner, name, part)


# A class or module of TensorFlow's, a name in it, and what stands there from now on.
_Part = tuple[Any, str, Callable[..., Any]]


def _of_functions() -> Iterator[_Part]:
    from tensorflow.python.eager.polymorphic_function import concrete_function

    # For one tape that is not persistent, and for all others.
    for eager in (
        concrete_function._FirstOrderTapeGradientFunctions,
        concrete_function._HigherOrderTapeGradientFunctions,
    ):
        pair = "_forward_and_backward_functions"
        yield eager, pair, _rewriting_first(getattr(eager, pair))
    # For functions that are called in other functions.
    called = concrete_function._DelayedRewriteGradientFunctions
    make_pair = called._construct_forward_backward
    leaving = _leaving(make_pair)

    @functools.wraps(make_pair)
    def construct(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _is_for_xla(self):
            return leaving(self, *arguments, **keywords)
        if _made() is not None:
            _trace.before_gradient(self._func_graph, _outputs(self._inference_function))
        else:
            _trace.leave(self._func_graph)
        return make_pair(self, *arguments, **keywords)

    yield called, "_construct_forward_backward", construct


def _outputs(function: Any) -> int:
    return len(function.function_type.flat_outputs)


def _is_for_xla(functions: Any) -> bool:
    """Whether XLA compiles the function: it was looked at when it was traced, or is to stay."""
    return _trace_where.is_for_xla(functions._attrs)


def _leaving(make_pair: Callable[..., Any]) -> Callable[..., Any]:
    """With the function's graph, and those that it calls, as they are."""

    def left(self: Any, *arguments: Any, **keywords: Any) -> Any:
        _trace.leave(self._func_graph)
        with _leaving_graphs_alone():
            return make_pair(self, *arguments, **keywords)

    return left


def _rewriting_first(make_pair: Callable[..., Any]) -> Callable[..., Any]:
    leaving = _leaving(make_pair)

    @functools.wraps(make_pair)
    def forward_and_backward(self: Any, inference_args: Any, input_tangents: Any) -> Any:
        if input_tangents:  # in forward mode
            _trace.leave(self._func_graph)
            return make_pair(self, inference_args, input_tangents)
        if _trace_where.is_elsewhere(inference_args) or _is_for_xla(self):
            return leaving(self, inference_args, input_tangents)
        function = self._delayed_rewrite_functions._inference_function
        _trace.before_gradient(self._func_graph, _outputs(function))
        with _differentiating():
            return make_pair(self, inference_args, input_tangents)

    return forward_and_backward


def _of_control_flow() -> Iterator[_Part]:
    from tensorflow.python.ops import cond_v2, while_v2

    # What the gradients of the ops call, and nobody else.
    get_graph, get_branches = while_v2._get_graph, cond_v2.get_func_graphs

    @functools.wraps(get_graph)
    def graph_of_loop(while_op: Any, attribute: str, cached: str) -> Any:
        graph = get_graph(while_op, attribute, cached)
        if attribute == "body":
            _trace.before_gradient(graph)
        return graph

    @functools.wraps(get_branches)
    def graphs_of_branches(op: Any) -> Any:
        graphs = get_branches(op)
        for graph in graphs:
            _trace.before_gradient(graph)
        return graphs

    def differentiating(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*arguments: Any, **keywords: Any) -> Any:
            with _differentiating():
                return make(*arguments, **keywords)

        return made

    yield while_v2, "_get_graph", graph_of_loop
    yield cond_v2, "get_func_graphs", graphs_of_branches
    for module in (while_v2, cond_v2):
        yield module, "_create_grad_func", differentiating(module._create_grad_func)


def _of_prunable_graphs() -> Iterator[_Part]:
    """Graphs of functions that have `prune` stay: it may feed what an edit leaves unread.

    They add the functions that their graphs hold to the runtime.
    """
    from tensorflow.python.eager.wrap_function import WrappedFunction

    make = WrappedFunction.__init__

    @functools.wraps(make)
    def init(self: Any, fn_graph: Any, *arguments: Any, **keywords: Any) -> None:
        _trace.leave(fn_graph)
        with _saving.adding_functions(fn_graph):
            make(self, fn_graph, *arguments, **keywords)

    yield WrappedFunction, "__init__", init
