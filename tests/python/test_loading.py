"""Importing the package in all the situations that users bring about."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import processes
import pytest
from processes import NORM, copy_package, result


def test_import_fuses_what_runs_afterwards() -> None:
    got, _ = result(
        NORM
        + """
import nv_norms_rewriter
y = norm()(x)
report = nv_norms_rewriter.report()
print(json.dumps([nv_norms_rewriter.is_enabled(), right(y), [r.fused for r in report]]))
"""
    )
    assert got == [True, True, [True]]


def test_imported_again_and_reloaded() -> None:
    got, stderr = result(
        NORM
        + """
import importlib
import nv_norms_rewriter
nv_norms_rewriter.disable()
importlib.reload(nv_norms_rewriter)
off = not nv_norms_rewriter.is_enabled()  # a reload does not undo what the program asked for
nv_norms_rewriter.enable()
for name in [name for name in sys.modules if name.startswith("nv_norms_rewriter")]:
    del sys.modules[name]
import nv_norms_rewriter as again
y = norm()(x)
print(json.dumps([off, right(y), len(again.report())]))
"""
    )
    assert got == [True, True, 1]
    assert "nv_norms_rewriter:" not in stderr


def test_imported_again_before_the_gradient_of_a_loop() -> None:
    """The first copy writes graphs out, the second one reads them."""
    got, stderr = result(
        NORM
        + """
import nv_norms_rewriter
for name in [name for name in sys.modules if name.startswith("nv_norms_rewriter")]:
    del sys.modules[name]
import nv_norms_rewriter
nv_norms_rewriter.configure(xla="all")
layer = norm().python_function

@tf.function(jit_compile=True)
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        start, step = [0, x], lambda i, y: (i + 1, layer(y))
        _, y = tf.while_loop(lambda i, y: i < 2, step, start, maximum_iterations=2)
    return tape.gradient(y, x)

gradient(x)
print(json.dumps([str(record) for record in nv_norms_rewriter.report().refused]))
"""
    )
    assert got == []
    assert "nv_norms_rewriter:" not in stderr


def test_two_copies_in_one_process_share_one_library(tmp_path: Path) -> None:
    got, stderr = result(
        NORM
        + """
import nv_norms_rewriter as first
for name in [name for name in sys.modules if name.startswith("nv_norms_rewriter")]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
import nv_norms_rewriter as second
assert first.__file__ != second.__file__
y = norm()(x)
with first.disabled():
    off = second.is_enabled()
print(json.dumps([right(y), len(first.report()), len(second.report()), off,
                  second.is_enabled(), hasattr(second._library.ops(), "fused_layer_norm")]))
""",
        copy_package(tmp_path),
    )
    assert got == [True, 1, 1, False, True, True]
    assert "nv_norms_rewriter:" not in stderr


def test_tensorflow_has_its_devices_already() -> None:
    got, _ = result(
        """
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
"""
        + NORM
        + """
with tf.device("/CPU:1"):
    before = norm()
    before(x)  # creates the devices, and this function's graph
import nv_norms_rewriter
y = norm()(x)
with tf.device("/CPU:1"):
    again = before(x)
print(json.dumps([right(y), right(again), len(nv_norms_rewriter.report()),
                  len(tf.config.list_logical_devices("CPU"))]))
"""
    )
    assert got == [True, True, 1, 2]


def test_import_keeps_the_device_settings() -> None:
    got, _ = result(
        """
import json
import tensorflow as tf
tf.config.set_visible_devices([], "CPU")
import nv_norms_rewriter
print(json.dumps(tf.config.get_visible_devices("CPU")))
"""
    )
    assert got == []


def test_import_alone_starts_no_device_and_says_nothing() -> None:
    got, stderr = result(
        """
import json
import nv_norms_rewriter
from tensorflow.python.eager import context
print(json.dumps([context.context()._initialized, context.context()._physical_devices,
                  nv_norms_rewriter.report().notices]))
"""
    )
    assert got == [False, None, []]
    assert "nv_norms_rewriter:" not in stderr


@pytest.mark.parametrize("value", ["0", pytest.param("Off", marks=pytest.mark.slow)])
def test_environment_keeps_everything_out_until_enable(value: str) -> None:
    got, _ = result(
        NORM
        + """
import nv_norms_rewriter
maps = open("/proc/self/maps").read()
before = [nv_norms_rewriter.is_enabled(), "libnv_norms" in maps, len(nv_norms_rewriter.report())]
nv_norms_rewriter.disable()
with nv_norms_rewriter.disabled():
    pass
nv_norms_rewriter.clear_report()
stock = norm()(x)
nv_norms_rewriter.enable()
fused = norm()(x)
print(json.dumps(before + [right(stock), right(fused), nv_norms_rewriter.is_enabled(),
                 len(nv_norms_rewriter.report())]))
""",
        NV_NORMS_REWRITER=value,
    )
    assert got == [False, False, 0, True, True, True, 1]


def test_rewriting_offline_registers_nothing() -> None:
    got, _ = result(
        NORM
        + """
import nv_norms_rewriter
graph_def = norm().get_concrete_function(x).graph.as_graph_def()
_, found = nv_norms_rewriter.rewrite(graph_def)
y = norm()(x)
print(json.dumps([len(found), right(y), nv_norms_rewriter.is_enabled(),
                  len(nv_norms_rewriter.report()),
                  "libnv_norms_cpu" in open("/proc/self/maps").read()]))
""",
        NV_NORMS_REWRITER="0",
    )
    assert got == [1, True, False, 0, False]


LIBCUDA = """
#include <stdio.h>
#include <stdlib.h>
extern "C" {
static int say(const char* what) {
  FILE* log = fopen(getenv("CUDA_LOG"), "a");
  fprintf(log, "%s\\n", what);
  fclose(log);
  return 100;  // there is no device
}
int cuInit(unsigned flags) { return say("cuInit"); }
int cuDriverGetVersion(int* version) { *version = 13000; say("cuDriverGetVersion"); return 0; }
int cuGetProcAddress_v2(const char* name) { return say("cuGetProcAddress_v2"); }
int cuGetProcAddress(const char* name) { return say("cuGetProcAddress"); }
}
"""


def test_importing_does_not_start_cuda(tmp_path: Path) -> None:
    source, library = tmp_path / "cuda.cc", tmp_path / "libcuda.so.1"
    source.write_text(LIBCUDA)
    (tmp_path / "log").touch()
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    (build, imported, gpu, devices, asked), _ = result(
        """
import ctypes, json, os
from nv_norms_rewriter import _library, _process

def asked():
    with open(os.environ["CUDA_LOG"]) as log:
        return log.read().split()

imported = asked()
devices = _library.core().cuda_devices()
ctypes.CDLL("libcuda.so.1").cuInit(0)
print(json.dumps([_library.core().build_info(), imported, _process.state()["plugins"]["GPU"],
                  devices, asked()]))
""",
        LD_LIBRARY_PATH=str(tmp_path),
        CUDA_LOG=str(tmp_path / "log"),
    )
    if not build["cuda"]:
        pytest.skip("built without a CUDA compiler")
    assert set(imported) == {"cuDriverGetVersion"} and gpu == "registered"
    assert devices[0] is False and "no usable NVIDIA GPU" in devices[1]
    assert asked[-1] == "cuInit", "the log shows it where it is called"


def test_library_has_a_cuda_runtime_of_its_own() -> None:
    # TensorFlow's libraries export the same names, and bring whatever version they were built for.
    library = processes.PACKAGES / "nv_norms_rewriter" / "lib" / "libnv_norms_core.so"
    command = ["nm", "--dynamic", "--undefined-only", "--format=posix", str(library)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert any(name.startswith("TF_") for name in names), "nm shows names"
    assert [name for name in names if name.startswith(("cuda", "__cuda"))] == []


def test_two_threads_import_at_once() -> None:
    got, _ = result(
        NORM
        + """
import threading
import nv_norms_rewriter
threads = [threading.Thread(target=nv_norms_rewriter.enable) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(right(norm()(x))))
""",
        NV_NORMS_REWRITER="0",
    )
    assert got is True


@pytest.mark.gpu
def test_gpu_plugin_is_registered() -> None:
    got, _ = result(
        """
import json
import nv_norms_rewriter
from nv_norms_rewriter import _process
print(json.dumps(_process.state()["plugins"]))
"""
    )
    assert got == {"CPU": "registered", "GPU": "registered"}


def test_copying_the_package_leaves_the_original(tmp_path: Path) -> None:
    # Guards the tests above: they must break copies, not the package itself.
    packages = copy_package(tmp_path)
    shutil.rmtree(packages / "nv_norms_rewriter" / "lib")
    assert (processes.PACKAGES / "nv_norms_rewriter" / "lib" / "libnv_norms_core.so").is_file()


@pytest.mark.parametrize("before", ["first", "persistent", "called"])
@pytest.mark.parametrize("after", ["first", "persistent", "called"])
def test_function_that_was_differentiated_before(before: str, after: str) -> None:
    """What TensorFlow made of its gradient then finds tensors by the graph's outputs."""
    got, _ = result(
        NORM
        + f"""
layer = norm().python_function
function = tf.function(lambda x: tf.square(layer(x)))
def gradient(how):
    def step(x):
        with tf.GradientTape(persistent=how == "persistent") as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)
    return (tf.function(step) if how == "called" else step)(x).numpy()
want = gradient({before!r})
import nv_norms_rewriter
values = [gradient(how) for how in ({after!r}, {before!r}, {after!r})]
print(json.dumps([bool(np.allclose(value, want, 1e-4, 1e-5)) for value in values]))
"""
    )
    assert got == [True, True, True]
