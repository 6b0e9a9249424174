"""Whether the gradient of what looks like a normalization is stopped or replaced."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from ._trace_describe import are_one_read


def stops_gradient(x: tf.Tensor, y: tf.Tensor, order: Mapping[tf.Operation, int]) -> bool:
    """Whether what leads from x to y stops or replaces a gradient on its way.

    `order`: of the graph's ops, what reads x behind x.

    The recognizer knows y by its values, but its gradient is another than a normalization's then.
    tf.nn.moments stops one that is zero: that of the mean in a sum of squared differences to it.
    """
    above = {y.op}  # what y is made of
    waiting = [y.op]
    while waiting:
        for tensor in waiting.pop().inputs:
            if order[tensor.op] > order[x.op] and tensor.op not in above:
                above.add(tensor.op)
                waiting.append(tensor.op)
    between = {op for op in x.consumers() if op in above}
    waiting = list(between)
    while waiting:
        op = waiting.pop()
        readers = {r for tensor in op.outputs for r in tensor.consumers() if r in above}
        waiting += readers - between
        between |= readers
        if op.type == "StopGradient":
            if op is y.op or not all(_subtracts_its_mean(reader, op) for reader in readers):
                return True
        elif op.type == "PreventGradient" or "_gradient_op_type" in op.node_def.attr:
            return True
    return False


def _subtracts_its_mean(op: tf.Operation, stopped: tf.Operation) -> bool:
    """Whether an op is a squared difference to its own mean, as tf.nn.moments writes it: the mean's
    gradient there is zero, stopped or not."""
    if op.type != "SquaredDifference":
        return False
    mean = stopped.inputs[0].op
    others = [tensor for tensor in op.inputs if tensor.op is not stopped]
    if mean.type != "Mean" or len(others) != 1:
        return False
    return mean.inputs[0] is others[0] or are_one_read(mean.inputs[0].op, others[0].op)
