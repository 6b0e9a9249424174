"""Finds the TensorFlow that a Python has installed: its headers, libraries and compile flags.

The Python is $PYTHON_BIN_PATH, else the project's .venv, else python3.
"""

# What this project is written against; the C++ API of TensorFlow changes with every minor version.
_WANTED = "2.21."

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = ["include"],
)

filegroup(
    name = "libraries",
    srcs = [
        "libtensorflow_cc.so.2",
        "libtensorflow_framework.so.2",
    ],
)
"""

def _python(rctx):
    chosen = rctx.os.environ.get("PYTHON_BIN_PATH", "")
    if chosen:
        return chosen
    venv = rctx.path(Label("//:WORKSPACE")).dirname.get_child(".venv/bin/python")
    found = venv if venv.exists else rctx.which("python3")
    if not found:
        fail("No Python found: set PYTHON_BIN_PATH to one that has tensorflow installed.")
    return str(found)

def _impl(rctx):
    python = _python(rctx)
    result = rctx.execute([python, str(rctx.path(Label("//third_party/tensorflow:find.py")))])
    if result.return_code != 0:
        fail("%s cannot import tensorflow: %s" % (python, result.stderr))
    found = json.decode(result.stdout.strip().split("\n")[-1])
    if not found["version"].startswith(_WANTED):
        fail("%s has TensorFlow %s; this project builds for %sx." %
             (python, found["version"], _WANTED))
    rctx.symlink(found["include"], "include")
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]:
        rctx.symlink(found["library"] + "/" + library, library)
    rctx.file("BUILD", _BUILD.format(defines = repr(found["defines"])))
    rctx.file("config.bzl", "TENSORFLOW_VERSION = %r\n" % found["version"])

tensorflow_configure = repository_rule(
    implementation = _impl,
    # PYTHONPATH: that is how pip shows a build the packages that it wants.
    # NV_NORMS_PACKAGES: a digest of what is installed, so that an upgrade is noticed (tools/bazel.py).
    environ = ["PYTHON_BIN_PATH", "PYTHONPATH", "NV_NORMS_PACKAGES"],
    local = True,
)
