"""Functions of nv_norms in a SavedModel, gradients too, loaded in another process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import processes
import pytest
import tensorflow as tf
from nv_norms_cases import CASES, Case, assert_close

LOAD = """
import sys
import numpy as np
import tensorflow as tf
import nv_norms
folder = sys.argv[1]
given = np.load(folder + "/given.npz")
run = tf.saved_model.load(folder).signatures["serving_default"]
got = run(**{name: tf.constant(given[name]) for name in given})
np.savez(folder + "/got.npz", **{name: value.numpy() for name, value in got.items()})
"""


class Gradients(tf.Module):
    """A norm of x and its gradients."""

    def __init__(self, case: Case, scale: np.ndarray, offset: np.ndarray) -> None:
        self.case = case
        self.scale, self.offset = tf.Variable(scale), tf.Variable(offset)

    def __call__(self, x: tf.Tensor, dy: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.case.call(x, self.scale, self.offset)[0]
        gradients = tape.gradient(y, [x, self.scale, self.offset], output_gradients=dy)
        return {"y": y, **dict(zip(("dx", "dscale", "doffset"), gradients, strict=True))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[8], CASES[14]], ids=str)
def test_a_saved_function_with_gradients(
    case: Case, tmp_path: Path, rng: np.random.Generator
) -> None:
    x, scale, offset, dy = case.random(rng)
    module = Gradients(case, scale, offset)
    spec = tf.TensorSpec([None, *case.shape[1:]])
    run = tf.function(module.__call__, input_signature=[spec, spec], autograph=False)
    tf.saved_model.save(module, tmp_path, run)
    np.savez(tmp_path / "given.npz", x=x, dy=dy)
    process = processes.run(LOAD, tmp_path)
    assert process.returncode == 0, process.stderr
    got = np.load(tmp_path / "got.npz")
    assert_close(got["y"], case.forward(x, scale, offset).y, "float32", "y")
    expected = case.backward(dy, x, scale)
    for name, want in zip(("dx", "dscale", "doffset"), expected, strict=True):
        assert_close(got[name], want, "float32", name)
