"""Says once, by name, that a model is compiled by XLA and therefore out of the rewriter's sight.

Keras 3 turns XLA on by itself where there is a GPU, and TensorFlow's graph optimizers never see the
body of a compiled function: without a word, "nothing was fused" would be a riddle. TensorFlow calls
a list of Python functions with every function graph that it has traced. One of ours looks there for
the root that every normalization takes, in functions that XLA will compile; the rewriter then
counts how many normalizations there are. It costs a look at the op types once per trace, and
nothing when a function runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import _library, _process

if TYPE_CHECKING:
    from tensorflow.python.framework.func_graph import FuncGraph

_ROOTS = frozenset({"Rsqrt", "Sqrt", "Pow", "FusedBatchNormV3"})


def install() -> None:
    """Adds the look-out to TensorFlow's list, once per process."""
    memory = _process.state()
    if memory["hooked"]:
        return
    try:
        from tensorflow.python.eager.polymorphic_function import transform

        transform.FUNC_GRAPH_TRANSFORMS.append(_look)
    except (ImportError, AttributeError) as error:
        # A private list of TensorFlow's: without it only the notice is missing.
        _process.logger.debug("no notice about XLA: %s", error)
    memory["hooked"] = True


def _look(graph: FuncGraph) -> None:
    try:
        if _library.core().is_enabled() and _is_compiled(graph):
            _tell(graph)
    except Exception as error:  # noqa: BLE001 (a notice must never break a trace)
        _process.logger.debug("no notice about XLA for %s: %r", graph.name, error)


def _is_compiled(graph: FuncGraph) -> bool:
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(graph) and any(
        op.type in _ROOTS for op in graph.get_operations()
    )


def _tell(graph: FuncGraph) -> None:
    model = _keras_model()
    if model is not None:
        what, remedy = f"the Keras model {model.name!r}", "model.compile(..., jit_compile=False)"
    else:
        what, remedy = f"the function {_outermost(graph)!r}", "tf.function(..., jit_compile=False)"
    start = f"{what} is compiled by XLA"
    if any(notice.startswith(start) for notice in _process.state()["notices"]):
        return
    _, records = _library.core().rewrite(graph.as_graph_def().SerializeToString(), "", "")
    count = len({tuple(r["inputs"][:1]) for r in records if r["direction"] == "forward"})
    if count:
        _process.say_once(
            f"{start}, and TensorFlow's graph optimizers do not see what XLA compiles: its "
            f"normalizations stay as they are ({count} found). To have them fused: {remedy}"
        )


def _outermost(graph: FuncGraph) -> str:
    """Name of the function that the user wrote; a tf.cond in it has bodies with other names."""
    name = graph.name
    while hasattr(graph.outer_graph, "outer_graph"):
        graph = graph.outer_graph
        name = graph.name
    return name


def _keras_model() -> Any | None:
    """The (outermost) Keras model whose fit, evaluate or predict is tracing now, if any."""
    classes = tuple(
        sys.modules[name].Model for name in ("keras", "tf_keras") if name in sys.modules
    )
    model = None
    frame = sys._getframe()
    while frame is not None and classes:
        owner = frame.f_locals.get("self")
        if isinstance(owner, classes):
            model = owner
        frame = frame.f_back
    return model
