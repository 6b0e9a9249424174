"""Graphs of any size with normalizations: one transformer block, copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


def _block(with_gradient: bool) -> tf.compat.v1.GraphDef:
    """GraphDef of one post-norm transformer block: x -> y, and dy -> dx."""
    import tensorflow as tf

    width, heads, tokens = 64, 4, 16

    def norm(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        gamma, beta = (tf.compat.v1.placeholder(tf.float32, (width,)) for _ in range(2))
        scale = tf.math.rsqrt(variance + 1e-5) * tf.reshape(gamma, (1, 1, width))
        return x * scale + (tf.reshape(beta, (1, 1, width)) - mean * scale)

    def dense(x: tf.Tensor, out: int) -> tf.Tensor:
        kernel = tf.compat.v1.placeholder(tf.float32, (int(x.shape[-1]), out))
        bias = tf.compat.v1.placeholder(tf.float32, (out,))
        rows = tf.matmul(tf.reshape(x, (-1, int(x.shape[-1]))), kernel)
        return tf.reshape(tf.nn.bias_add(rows, bias), (-1, tokens, out))

    def split(x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(x, (-1, tokens, heads, width // heads)), (0, 2, 1, 3))

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, tokens, width), name="x")
        q, k, v = (split(dense(x, width)) for _ in range(3))
        attention = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.125)
        context = tf.transpose(tf.matmul(attention, v), (0, 2, 1, 3))
        h = norm(x + dense(tf.reshape(context, (-1, tokens, width)), width))
        hidden = dense(h, 4 * width)
        gelu = 0.5 * hidden * (1.0 + tf.math.erf(hidden * 0.70710678))
        y = tf.identity(norm(h + dense(gelu, width)), name="y")
        if with_gradient:
            dy = tf.compat.v1.placeholder(tf.float32, (None, tokens, width), name="dy")
            weights = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
            gradients = tf.gradients(y, weights[:-1], dy)
            tf.identity(gradients[0], name="dx")
    return graph.as_graph_def()


def copies(
    with_gradient: bool, nodes: int, chained: bool, shared: bool
) -> tuple[tf.compat.v1.GraphDef, int]:
    """(GraphDef of about so many nodes, how many blocks it has).

    Chained: the y of a block is the x of the next, the dx of one the dy of that before. Shared: all
    blocks have the constants of the first.
    """
    import tensorflow as tf

    block = _block(with_gradient)
    constants = {n.name for n in block.node if n.op == "Const" and not n.input}
    count = max(1, nodes // (len(block.node) - (len(constants) if shared else 0)))
    graph = tf.compat.v1.GraphDef()
    graph.versions.CopyFrom(block.versions)
    for i in range(count):
        for node in block.node:
            if shared and i > 0 and node.name in constants:
                continue
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{i}/{node.name}"
            for slot, edge in enumerate(node.input):
                name = edge.lstrip("^").split(":")[0]
                at, source = i, name
                if chained and name == "x" and i > 0:
                    at, source = i - 1, "y"
                elif chained and name == "dy" and i + 1 < count:
                    at, source = i + 1, "dx"
                elif shared and name in constants:
                    at = 0
                copy.input[slot] = edge.replace(name, f"{at}/{source}", 1)
    return graph, count
