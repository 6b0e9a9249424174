"""The same rewriting offline, on a GraphDef."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import _library
from ._report import Record, Report

if TYPE_CHECKING:
    import tensorflow as tf


def rewrite(
    graph_def: tf.compat.v1.GraphDef,
    device: str | None = None,
    fetches: Iterable[str] | None = None,
) -> tuple[tf.compat.v1.GraphDef, Report]:
    """Fuses the normalizations of a GraphDef, as the optimizer does when TensorFlow runs a graph.

    Neither enable() nor disable() matters here, and report() does not show what is found.

    Args:
      graph_def: the graph; it is not changed.
      device: where to assume that nodes run for which the graph names no device: "CPU", "GPU", or a
        device name such as "/device:GPU:0". None: only what each node says.
      fetches: names of nodes ("y") or tensors ("y:0") that will be fetched; they keep
        their names and values. None, or no name at all: the nodes that no other reads.

    Returns:
      The new graph, equal to the old one if nothing was changed, and a Report of what was found.

    Raises:
      TypeError, ValueError: an argument is not what is described above.
      RuntimeError: the graph cannot be read (an op that is not registered here, an input that does
        not exist).
      ImportError: the libraries are not built, or were built for another version of TensorFlow.
    """
    core = _library.core()
    import tensorflow as tf

    if not isinstance(graph_def, tf.compat.v1.GraphDef):
        raise TypeError(
            f"graph_def: expected a tf.compat.v1.GraphDef, got {type(graph_def).__name__} "
            "(a tf.Graph has as_graph_def(), a ConcreteFunction has graph.as_graph_def())"
        )
    names = _fetched_nodes(graph_def, fetches)
    rewritten, records = core.rewrite(
        graph_def.SerializeToString(), _device_name(device), ",".join(names), layouts=True
    )
    result = tf.compat.v1.GraphDef.FromString(rewritten)
    return result, Report(Record.from_json(record) for record in records)


def _device_name(device: str | None) -> str:
    if device is None:
        return ""
    if not isinstance(device, str):
        raise TypeError(f"device: expected None or a string, got {type(device).__name__}")
    name = f"/device:{device.upper()}:0" if device.isalpha() else device
    if not re.fullmatch(r"(/\w+:[^/:]+)*/?device:(CPU|GPU):(\d+|\*)", name):
        raise ValueError(
            f'device: expected "CPU", "GPU" or a name like "/device:GPU:0", got {device!r}'
        )
    return name


def _fetched_nodes(graph_def: tf.compat.v1.GraphDef, fetches: Iterable[str] | None) -> list[str]:
    if fetches is None:
        return []
    if isinstance(fetches, (str, bytes)):
        raise TypeError(f"fetches: expected a sequence of names, got the single string {fetches!r}")
    if not isinstance(fetches, Iterable):
        raise TypeError(
            f"fetches: expected None or a sequence of names, got {type(fetches).__name__} "
            f"({fetches!r})"
        )
    nodes = {node.name: node for node in graph_def.node}
    names: list[str] = []
    for fetch in fetches:
        if not isinstance(fetch, str):
            raise TypeError(f"fetches: expected names, got {type(fetch).__name__} ({fetch!r})")
        name, colon, port = fetch.removeprefix("^").partition(":")
        if colon and not port.isdecimal():
            raise ValueError(f'fetches: expected names like "y" or "y:0", got {fetch!r}')
        if colon and name in nodes:
            outputs = _count_outputs(nodes[name], graph_def.library)
            if outputs is not None and int(port) >= outputs:
                raise ValueError(
                    f"fetches: {name!r} has no output {port} (of {outputs}), got {fetch!r}"
                )
        if name not in names:
            names.append(name)
    missing = [name for name in names if name not in nodes]
    if missing:
        raise ValueError(
            f"fetches: the graph has no node named {', '.join(map(repr, missing))} "
            f"(it has {len(nodes)} nodes)"
        )
    return names


def _count_outputs(
    node: tf.compat.v1.NodeDef, library: tf.core.framework.function_pb2.FunctionDefLibrary
) -> int | None:
    """How many tensors a node gives; None if its op is not known here."""
    from tensorflow.python.framework import op_def_registry

    op = op_def_registry.get(node.op)
    if op is None:
        called = (each.signature for each in library.function)
        op = next((signature for signature in called if signature.name == node.op), None)
    if op is None:
        return None
    defaults = {attr.name: attr.default_value for attr in op.attr}
    count = 0
    for output in op.output_arg:
        name = output.number_attr or output.type_list_attr
        value = node.attr[name] if name in node.attr else defaults.get(name)
        if not name or value is None:
            count += 1
        else:
            count += value.i if output.number_attr else len(value.list.type)
    return count
