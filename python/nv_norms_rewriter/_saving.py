"""Keeps fused ops out of what leaves the process: it must load where this package is not installed.

Functions are traced anew while TensorFlow saves a model, and those stay stock (_trace_where). What
a converter has Grappler optimize stays as it is, too. But a concrete function that was traced
before is saved as it is, with the functions that it calls, and converters start at its graph. In
every GraphDef that Python is given, TensorFlow's own ops are therefore in the place of each op that
a trace put in the place of others, or, in its functions, a call of a function of such ops. Ops that
a program calls by name are its own choice and stay. With configure(saved_models="fused") none of
this is done.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _library, _options, _process

# Marks the ops that a trace put in the place of others.
MARK = "_nv_norms_traced"

# On ops that a trace put in the place of others, fused or not: the name of the op that gave their
# first output before, which is still in the graph, and the type of that.
REPLACED = "_nv_norms_replaced"
REPLACED_TYPE = "_nv_norms_replaced_type"
# The name of the op itself then: who inlines or imports it renames all ops, but no attributes.
OWN_NAME = "_nv_norms_own_name"


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Inside, this thread's GraphDefs are what the graphs are, fused ops included."""
    # Shared, as the hook below may be another copy's of this module.
    thread = _process.state()["thread"]
    before = getattr(thread, "raw", 0)
    thread.raw = before + 1
    try:
        yield
    finally:
        thread.raw = before


def is_raw() -> bool:
    """Whether this thread is inside raw()."""
    return getattr(_process.state()["thread"], "raw", 0) > 0


@contextlib.contextmanager
def adding_functions(graph: Any) -> Iterator[None]:
    """Inside, functions of the graph's GraphDef may be added to the runtime.

    Which refuses a second definition of a name. So they are as the graph has them, and those of a
    GraphDef that Python was given and imports again, without fused ops, are left to the runtime's.
    """
    write = graph.as_graph_def

    def as_graph_def(*arguments: Any, **keywords: Any) -> Any:
        result = write(*arguments, **keywords)
        added = [f for f in result.library.function if not _runs_marked(f.signature.name)]
        del result.library.function[:]
        result.library.function.extend(added)
        return result

    graph.as_graph_def = as_graph_def
    try:
        with raw():
            yield
    finally:
        with contextlib.suppress(AttributeError):  # another thread that was inside has done it
            del graph.as_graph_def


def _runs_marked(name: str) -> bool:
    """Whether the runtime has a function of this name, and in it what a trace put there."""
    from tensorflow.python.eager import context

    runtime = context.context()
    return runtime.has_function(name) and any(
        _has_mark(node) or REPLACED in node.attr for node in runtime.get_function_def(name).node_def
    )


def install() -> None:
    """Has TensorFlow hand out GraphDefs without marked ops, once per process."""
    from tensorflow.python.framework import ops

    write = ops.Graph._as_graph_def

    @functools.wraps(write)
    def as_graph_def(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = write(self, *arguments, **keywords)
        if not is_raw() and _options.get("saved_models") == "stock":
            try:
                with raw():
                    lower(result[0])
            except Exception as error:  # noqa: BLE001 (the user's model must still be saved)
                _process.logger.warning(
                    "nv_norms_rewriter: a GraphDef holds fused normalizations, which load only "
                    "after `import nv_norms_rewriter`: %s. To have none, trace its functions under "
                    "nv_norms_rewriter.disabled().",
                    error,
                )
        return result

    ops.Graph._as_graph_def = as_graph_def
    _install_grappler()


def _install_grappler() -> None:
    """Has the plugin leave graphs alone that Python asks Grappler to optimize and gets back.

    TensorFlow's freezing of functions, converters and saved_model_cli ask for that.
    """
    from tensorflow.python.grappler import tf_optimizer

    optimize = tf_optimizer.OptimizeGraph

    @functools.wraps(optimize)
    def optimize_graph(*arguments: Any, **keywords: Any) -> Any:
        if is_raw() or _options.get("saved_models") != "stock":
            return optimize(*arguments, **keywords)
        core = _library.core()
        core.set_exporting(True)
        try:
            return optimize(*arguments, **keywords)
        finally:
            core.set_exporting(False)

    tf_optimizer.OptimizeGraph = optimize_graph


def is_marked(op: Any) -> bool:
    """Whether a trace put this op (of a graph, not an eager one) in the place of others."""
    import tensorflow as tf

    if not isinstance(op, tf.Operation):
        return False
    try:
        return bool(op.get_attr(MARK))
    except ValueError:
        return False


def lower(graph_def: Any) -> int:
    """Replaces the marked ops in a GraphDef and its functions; returns how many there were.

    In functions by calls. In the graph itself by the ops: TensorFlow does not differentiate each
    call in a graph that is imported.
    """
    count = _lower_graph(graph_def)
    _hand_on_what_was(graph_def)
    library = graph_def.library
    for function in list(library.function):
        ports: dict[str, list[str]] = {}
        for node in function.node_def:
            _replaced(node)
            if _has_mark(node):
                ports[node.name] = _outputs(node)
                _make_call(node, library)
        if ports:
            count += len(ports)
            for node in function.node_def:
                for i, name in enumerate(node.input):
                    node.input[i] = _renamed(name, ports)
            for key, name in list(function.ret.items()):
                function.ret[key] = _renamed(name, ports)
    return count


def _has_mark(node: Any) -> bool:
    return MARK in node.attr and node.attr[MARK].b


def _lower_graph(graph_def: Any) -> int:
    """Puts TensorFlow's own ops before each marked one, which then hands on what they give."""
    marked = [node for node in graph_def.node if _has_mark(node)]
    names = {node.name for node in graph_def.node} if marked else set()
    made = []
    for node in marked:
        concrete = _traced(node.op, _attributes(node))
        body = concrete.graph.as_graph_def()
        _add_functions(graph_def.library, body.library.function)
        prefix = f"{node.name}/stock"
        while any(name.startswith(prefix + "/") for name in names):
            prefix += "_"
        given = dict(zip((t.op.name for t in concrete.inputs), node.input, strict=False))
        waited_for = [name for name in node.input if name.startswith("^")]

        def inside(name: str, prefix: str = prefix, given: dict[str, str] = given) -> str:
            if name.startswith("^"):
                source = given.get(name[1:])
                return f"^{source.partition(':')[0]}" if source else f"^{prefix}/{name[1:]}"
            return given.get(name.partition(":")[0]) or f"{prefix}/{name}"

        for op in body.node:
            if op.name in given:
                continue
            inputs = [inside(name) for name in op.input] or waited_for
            op.name, op.device = f"{prefix}/{op.name}", node.device
            del op.input[:]
            op.input.extend(inputs)
            op.attr.pop("_class", None)
            made.append(op)
        del node.input[:]
        node.input.extend([*(inside(t.name) for t in concrete.outputs), *waited_for])
        was, _ = _replaced(node)
        if was in names:
            node.input[0] = was
        node.op = "IdentityN"
        _drop_attributes(node)
        node.attr["T"].list.type.extend(_types(concrete.outputs))
    graph_def.node.extend(made)
    return len(marked)


def _hand_on_what_was(graph_def: Any) -> None:
    """Has the other ops of a trace give what those gave that they replaced: who imports the graph
    may feed a tensor between them, as that of a mean."""
    replaced = [node for node in graph_def.node if REPLACED in node.attr]
    names = {node.name for node in graph_def.node} if replaced else set()
    for node in replaced:
        was, type_of_it = _replaced(node)
        if was in names:
            waited_for = [name for name in node.input if name.startswith("^")]
            del node.input[:]
            node.input.extend([was, *waited_for])
            node.op = "Identity"
            _drop_attributes(node)
            node.attr["T"].type = type_of_it


def _replaced(node: Any) -> tuple[str, int]:
    """What a node says of the op that it replaced, which it says no more then; "" if nothing, or in
    the names of another graph."""
    if REPLACED not in node.attr:
        return "", 0
    was, type_of_it = node.attr[REPLACED].s.decode(), node.attr[REPLACED_TYPE].type
    is_own = OWN_NAME in node.attr and node.attr[OWN_NAME].s.decode() == node.name
    for name in (REPLACED, REPLACED_TYPE, OWN_NAME):
        node.attr.pop(name, None)
    return (was, type_of_it) if is_own else ("", 0)


def _outputs(node: Any) -> list[str]:
    """The op's outputs as a FunctionDef names them: "y:0", "mean:0", ..."""
    if not node.op.endswith("Grad"):
        return ["y:0", "rstd:0"] if node.op == "FusedRMSNorm" else ["y:0", "mean:0", "rstd:0"]
    wanted = ((name, node.attr[f"num_{name}"].i) for name in ("dx", "dscale", "doffset"))
    return [f"{name}:{i}" for name, number in wanted for i in range(number)]


def _renamed(name: str, ports: dict[str, list[str]]) -> str:
    node, _, port = name.partition(":")
    return f"{node}:output:{ports[node].index(port)}" if port and node in ports else name


def _add_functions(library: Any, functions: Iterable[Any]) -> None:
    there = {function.signature.name for function in library.function}
    library.function.extend(f for f in functions if f.signature.name not in there)


def _drop_attributes(node: Any) -> None:
    """All but those of TensorFlow's own that belong to any op."""
    for key in list(node.attr):
        if not key.startswith("_") or key.startswith("_nv_norms_"):
            del node.attr[key]


def _attributes(node: Any) -> dict[str, Any]:
    return {key: value for key, value in node.attr.items() if not key.startswith("_")}


def _make_call(node: Any, library: Any) -> None:
    """Makes the node a call of a function that computes what it does; put in the library."""
    concrete = _traced(node.op, _attributes(node))
    definition = concrete.function_def
    _add_functions(library, [*concrete.graph.as_graph_def().library.function, definition])
    _drop_attributes(node)
    node.op = "PartitionedCall"
    node.attr["f"].func.name = definition.signature.name
    node.attr["Tin"].list.type.extend(_types(concrete.inputs))
    node.attr["Tout"].list.type.extend(_types(concrete.outputs))


def _types(tensors: list[Any]) -> list[int]:
    return [tensor.dtype.as_datatype_enum for tensor in tensors]


def _traced(op: str, attributes: dict[str, Any]) -> Any:
    """A concrete function of the op's inputs in TensorFlow's own ops, the same one each time: a
    program that imports a GraphDef finds its functions only while they are in use somewhere."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    memory = _process.state()["stock"]
    key = repr((op, sorted((k, v.SerializeToString()) for k, v in attributes.items())))
    if key not in memory:
        compute, signature = stock(op, attributes)
        with context.eager_mode(), tf.device(None):
            function = tf.function(compute, autograph=False)
            memory.setdefault(key, function.get_concrete_function(*signature))
    return memory[key]


def stock(op: str, attributes: dict[str, Any]) -> tuple[Callable[..., list[Any]], list[Any]]:
    """What a fused op computes, in TensorFlow's own ops: a function of its inputs, which gives its
    outputs, and a TensorSpec for each input."""
    import tensorflow as tf

    from . import _stock

    kind = op.removesuffix("Grad")
    is_gradient = op != kind

    def type_of(name: str) -> Any:
        return tf.as_dtype(attributes[name].type) if name in attributes else tf.float32

    def number(name: str) -> int:
        return attributes[name].i if name in attributes else 0

    meaning: dict[str, Any] = {}
    for name in _stock.ATTRIBUTES[kind]:
        if name in attributes:
            value = attributes[name]
            plain = {"axis": list(value.list.i), "data_format": value.s.decode()}
            plain.update(groups=value.i, subtract_mean=value.b, negative_slope=value.f)
            plain.update(silu=value.b, per_sample=value.b)
            meaning[name] = plain[name]
    x, param, stat = (tf.TensorSpec(None, type_of(name)) for name in ("T", "P", "U"))
    scale = [param] * number("num_scale")
    offset = [param] * number("num_offset")

    if is_gradient:
        wanted = [number("num_dx")]
        wanted += [number("num_dscale")] * len(scale)
        wanted += [1] * number("num_doffset")

        def compute(*inputs: Any) -> list[Any]:
            computed = _stock.gradient(
                kind,
                inputs[0],
                inputs[1],
                inputs[2 : 2 + len(scale)],
                inputs[-1],
                inputs[2 + len(scale) : 2 + len(scale) + len(offset)],
                num_offset=number("num_doffset"),
                dx_type=type_of("dx_type"),
                param_type=type_of("param_type"),
                **meaning,
            )
            return [c for c, want in zip(computed, wanted, strict=True) if want]

        stats = [stat] * (1 if kind == "FusedRMSNorm" else 2)
        signature = [tf.TensorSpec(None, type_of("Y")), x, *scale, *offset, *stats]
    else:
        epsilon = 0.001 if "epsilon" not in attributes else attributes["epsilon"].f
        if "epsilon_low" in attributes:
            epsilon += attributes["epsilon_low"].f

        def compute(*inputs: Any) -> list[Any]:
            return _stock.forward(
                kind,
                inputs[0],
                inputs[1 : 1 + len(scale)],
                inputs[1 + len(scale) :],
                epsilon=epsilon,
                out_type=type_of("out_type"),
                **meaning,
            )

        signature = [x, *scale, *offset]
    compute.__name__ = f"stock_{kind}{'Grad' if is_gradient else ''}"
    return compute, signature
