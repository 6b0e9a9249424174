"""Numbers that a function captures: a tf.constant that a layer made beforehand, for its epsilon.

TensorFlow makes small constants Consts of the function's graph, which are its arguments all the
same: when it has made a function of the graph, nobody sees the number any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Set on such a Const, and read by the library on the argument that TensorFlow makes of it
# (CapturedNumber in plugin/graph/constants.h).
_NUMBER = "_nv_norms_number"


def mark_numbers(graph: Any) -> None:
    """Tells the number of each argument that is one, in a graph that no function is made of yet."""
    from tensorflow.core.framework import attr_value_pb2
    from tensorflow.python.saved_model import save_context

    if save_context.in_save_context():
        return
    for _, op in _captured(graph):
        if _is_one_number(op):
            op._set_attr(_NUMBER, attr_value_pb2.AttrValue(tensor=op.get_attr("value")))


def watched(graph: Any) -> set[str]:
    """Names of the captured Consts that somebody differentiates by now.

    What the recognizer knows as a number has no gradient in what it makes of the graph.
    """
    from tensorflow.python import pywrap_tfe

    return {
        op.name
        for tensor, op in _captured(graph)
        if pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes([tensor])
    }


def _captured(graph: Any) -> Iterator[tuple[Any, Any]]:
    """The eager tensors that are Consts of the graph, with their ops."""
    from tensorflow.python.framework import ops

    for tensor, inner in getattr(graph, "captures", ()):
        if isinstance(tensor, ops.EagerTensor) and inner.op.type == "Const":
            yield tensor, inner.op


def _is_one_number(op: Any) -> bool:
    tensor = op.outputs[0]
    return tensor.dtype.is_floating and tensor.shape.num_elements() == 1
