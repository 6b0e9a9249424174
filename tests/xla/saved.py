"""What tests of saved functions share: a module, and what a SavedModel holds and computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from traced import Layer, result

SIZE = 8


def ops_in_saved_model(folder: Path) -> set[str]:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    listed = {
        op.name for meta in saved.meta_graphs for op in meta.meta_info_def.stripped_op_list.op
    }
    ops = {op for meta in saved.meta_graphs for op in all_ops(meta.graph_def)}
    assert listed <= ops
    return ops


def all_ops(graph_def: Any) -> set[str]:
    functions = [node for f in graph_def.library.function for node in f.node_def]
    return {node.op for node in [*graph_def.node, *functions]}


def holds_fused_ops(folder: Path) -> bool:
    return any(op.startswith("Fused") and "Norm" in op for op in ops_in_saved_model(folder))


# Loads in another process, without the package if not with it, and calls a signature.
ELSEWHERE = """
import json, sys
import numpy as np
import tensorflow as tf
tf.config.experimental.enable_tensor_float_32_execution(False)
with_package = sys.argv[4] == "True"
if with_package:
    import nv_norms_rewriter
x = np.load(sys.argv[2])
signature = tf.saved_model.load(sys.argv[1]).signatures[sys.argv[3]]
y = signature(tf.constant(x))
assert ("nv_norms_rewriter" in sys.modules) == with_package
print(json.dumps({name: value.numpy().tolist() for name, value in y.items()}))
"""


def elsewhere(
    folder: Path, x: Any, signature: str = "serving_default", with_package: bool = False
) -> dict[str, np.ndarray]:
    np.save(folder / "x.npy", x)
    got, _ = result(ELSEWHERE, folder, folder / "x.npy", signature, with_package)
    return {name: np.asarray(value) for name, value in got.items()}


class Module(tf.Module):
    """Compiled functions around a layer norm, and what a program may do with them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layer = Layer(rng, SIZE)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], jit_compile=True, autograph=False)
    def compiled(self, x: tf.Tensor) -> tf.Tensor:
        return self.layer(x)

    @tf.function(input_signature=[tf.TensorSpec([None, SIZE])], autograph=False)
    def gradients(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.compiled(x)
            loss = tf.reduce_sum(y**3)
        gamma, beta = self.layer.gamma, self.layer.beta
        dx, dgamma, dbeta = tape.gradient(loss, [x, gamma, beta])
        return {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}


def batch(rng: np.random.Generator) -> np.ndarray:
    """For a Module."""
    return rng.normal(1.0, 2.0, (5, SIZE)).astype(np.float32)
