"""Which of the fusions found in a traced function are left out, and why: their records say so."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from . import _options, _trace_describe, _trace_layout, _trace_stops, _xla_rule

# Ops that only hand their first input on, in another type or shape.
_VIEWS = frozenset({"Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient"})
# Each input becomes the output of its place: around what has a gradient of its own, as silu.
_MANY_VIEWS = "IdentityN"

LEFT = "left_to_xla"
STOPS = "stops_a_gradient"


def stopped(graph: Any, edit: Any, records: list[dict[str, Any]]) -> list[str]:
    """The fused nodes that are left out because the graph, which may be differentiated after this,
    has another gradient than they; their records say so."""
    order = _trace_describe.reading_order(graph)
    groups = _groups(records)
    outputs, left = set(), []
    for group in groups:
        stops = any(record["stops_gradient"] for record in group)
        if group[0]["direction"] == "backward":
            if stops:
                left.append(edit.fused_node(group[0]).name)
                _leave(group, "a gradient is stopped or replaced on the way from x or dy to dx")
            continue
        x, y = (_tensor(graph, group[0][key][0]) for key in ("inputs", "outputs"))
        if stops or x is None or y is None or _trace_stops.stops_gradient(x, y, order):
            outputs.add(group[0]["outputs"][0])
    for group in groups:
        if group[0]["outputs"][0] in outputs:  # all norms of a sum, of which one does
            _leave(group, "a gradient is stopped or replaced on the way from x to y or to dx")
    return left + [node.name for output in outputs for node in edit.fused_nodes(output)]


def _leave(group: list[dict[str, Any]], why: str) -> None:
    for record in group:
        record.update(fused=False, reason=STOPS, detail=why)


def left_to_xla(
    graph: Any, edit: Any, records: list[dict[str, Any]], device_type: str
) -> list[str]:
    """The fused nodes that are left out because XLA does as well; their records say so."""
    mode = _options.get("xla")
    left: list[str] = []
    if mode == "all":
        return left
    fused: set[str] = set()  # the outputs of fused ops: what reads one has no neighbour there
    for group in _groups(records):
        node = edit.fused_node(group[0])
        why = "configure(xla='none') or NV_NORMS_XLA=none leaves every normalization to XLA"
        if mode != "none":
            why = _xla_rule.why_left(_norm(graph, group, node, device_type, fused))
        if not why:
            fused.update(group[0]["outputs"][:1])
        else:
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


def _norm(
    graph: Any,
    group: list[dict[str, Any]],
    node: Any,
    device_type: str,
    fused: Collection[str],
) -> _xla_rule.Norm:
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
    data_format = node.attr["data_format"].s.decode() if "data_format" in node.attr else ""
    device_type = named or device_type
    if data_format and shape is not None and len(shape) > 2:
        ys = [] if y is None else [y]
        wanted = _trace_layout.call_format(x, ys, data_format, device_type)
        if wanted != data_format:
            first = wanted == "NC..."
            shape = (
                (shape[0], shape[-1], *shape[1:-1]) if first else (shape[0], *shape[2:], shape[1])
            )
            data_format = wanted
    slope, silu = record["negative_slope"], record["silu"]
    readers = _readers(y)
    if slope == 0.0:  # its gradient, which is inside, too
        readers = tuple(reader for reader in readers if reader != "ReluGrad")
    return _xla_rule.Norm(
        kind=record["kind"],
        gradient="" if not gradients else "fused" if all(gradients) else "stock",
        shape=shape,
        axes=tuple(record["axes"]),
        data_format=data_format,
        groups=node.attr["groups"].i if "groups" in node.attr else 0,
        dtype={"half": "float16", "float": "float32", "double": "float64"}.get(
            record["dtype"], record["dtype"]
        ),
        device_type=device_type,
        producer="" if x is None or _is_any(x, fused) else _producer(x),
        readers=readers,
        activation_inside=slope != 1.0 or silu,
        silu=silu,
        goes_on=record["goes_on"],
        skip=x is not None and _is_summed(x),
    )


def _tensor(graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(_trace_describe.original_name(name))
    except (KeyError, ValueError):
        return None


def _behind_views(tensor: Any) -> Iterator[Any]:
    """The tensor, and what it is another view of, up to what computes its numbers."""
    yield tensor
    while tensor.op.type in _VIEWS or tensor.op.type == _MANY_VIEWS:
        tensor = tensor.op.inputs[tensor.value_index]
        yield tensor


def _is_any(tensor: Any, names: Collection[str]) -> bool:
    return any(each.name in names for each in _behind_views(tensor))


def _source(tensor: Any) -> Any:
    """The tensor that this one is a view of."""
    *_, source = _behind_views(tensor)
    return source


def _producer(tensor: Any) -> str:
    op = _source(tensor).op
    if op.type == "BiasAdd":  # which XLA has a convolution's kernel do
        biased = _source(op.inputs[0]).op
        if biased.type in _trace_layout.CONVOLUTIONS:
            return biased.type
    return op.type


def _is_summed(x: Any) -> bool:
    """Whether x, or what it is a view of, is a term of a sum."""
    return not _xla_rule.SUMS.isdisjoint(_readers(_source(x)))


def _readers(tensor: Any) -> tuple[str, ...]:
    types: set[str] = set()
    waiting = [] if tensor is None else [tensor]
    while waiting:
        tensor = waiting.pop()
        for op in tensor.consumers():
            if op.type in _VIEWS:
                waiting.append(op.outputs[0])
            elif op.type == _MANY_VIEWS:
                waiting += [o for i, o in zip(op.inputs, op.outputs, strict=True) if i is tensor]
            else:
                types.add(op.type)
    return tuple(sorted(types))
