"""Ops that run in another process, or on a device that a program has registered, stay stock: what
runs there may not know the fused ones."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from processes import NORM, result

WORKER = """
import sys
import tensorflow as tf
tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", protocol="grpc").join()
"""

# A client, which has the package, of a worker, which has not.
CLIENT = (
    NORM
    + """
import nv_norms_rewriter
tf.config.experimental_connect_to_host(sys.argv[1], job_name="worker")
worker = "/job:worker/replica:0/task:0/device:CPU:0"
"""
)


@pytest.fixture(scope="module")
def beside_a_worker() -> Iterator[Callable[[str], object]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, address], stderr=subprocess.DEVNULL)
    yield lambda code: result(CLIENT + code, address)[0]
    worker.kill()
    worker.wait()


def test_part_of_a_function_on_a_worker(beside_a_worker) -> None:
    code = """
inner, local = norm().python_function, norm()
@tf.function
def function(x):
    with tf.device(worker):
        y = inner(x)
    return tf.identity(y)
y = function(x)
found = len(nv_norms_rewriter.report())
print(json.dumps([right(y), found, right(local(x)), len(nv_norms_rewriter.report().fused)]))
"""
    assert beside_a_worker(code) == [True, 0, True, 1]


def test_function_on_a_worker_that_a_tape_differentiates(beside_a_worker) -> None:
    code = """
gradients = []
for device in (worker, "/cpu:0"):
    with tf.device(device):
        function = norm()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        gradients.append(tape.gradient(y, x).numpy())
    assert right(y)
largest = float(np.abs(gradients[0]).max())
print(json.dumps([bool(np.allclose(*gradients, 1e-5, 1e-5)), largest > 0.01]))
"""
    assert beside_a_worker(code) == [True, True]


@pytest.mark.parametrize("inside", [False, True], ids=["tape_outside", "loop"])
def test_function_that_runs_here_before_it_runs_on_a_worker(beside_a_worker, inside: bool) -> None:
    """What was traced here may be sent to a worker later, as a ClusterCoordinator does."""
    code = f"""
inner, inside = norm().python_function, {inside}
def looped(x):
    return tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, inner(x)), (0, x))[1]
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)
function = looped if inside else tf.function(inner)
run = tf.function(gradient) if inside else gradient
here = run(x)
with tf.device(worker):
    there = run(x)
print(json.dumps([right(here[0]), right(there[0]), "worker" in there[1].device,
                  bool(np.allclose(here[1], there[1], 1e-5, 1e-5))]))
"""
    assert beside_a_worker(code) == [True, True, True, True]


def test_dtensor_with_a_tape_outside() -> None:
    got, stderr = result(
        """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
        + NORM
        + """
from tensorflow.experimental import dtensor
import nv_norms_rewriter
mesh = dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
whole = dtensor.copy_to_mesh(x, dtensor.Layout.replicated(mesh, 2))
sharded = dtensor.relayout(whole, dtensor.Layout(["x", dtensor.UNSHARDED], mesh))

layer = norm().python_function
def gradient(x):
    loss = tf.function(lambda x: tf.reduce_sum(layer(x) ** 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loss(x)
    return tape.gradient(y, x)

parts = dtensor.unpack(gradient(sharded))
dx = np.concatenate([part.numpy() for part in parts])
print(json.dumps(bool(np.allclose(dx, gradient(x), 1e-4, 1e-4))))
"""
    )
    assert got is True
    assert "nv_norms_rewriter:" not in stderr


def test_dtensor_in_a_function_that_xla_compiles() -> None:
    got, stderr = result(
        NORM
        + """
from tensorflow.experimental import dtensor
import nv_norms_rewriter
nv_norms_rewriter.configure(xla="all")
mesh = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
whole = dtensor.copy_to_mesh(x, dtensor.Layout.replicated(mesh, 2))
function = tf.function(norm().python_function, jit_compile=True)
print(json.dumps(bool(np.allclose(function(whole).numpy(), norm()(x), 1e-4, 1e-4))))
"""
    )
    assert got is True
    assert "nv_norms_rewriter:" not in stderr
