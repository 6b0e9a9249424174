"""Finds nvcc: $CUDA_HOME, else NVIDIA's PyPI packages of $PYTHON_BIN_PATH, else none.

None is no error: the libraries are then built for the CPU alone. CUDA_HOME=none asks for that.
NV_NORMS_CUDA_ARCHITECTURES ("sm_90,sm_120") takes the place of both lists of architectures below.
"""

# From Turing on; of what nvcc knows. Code for 8.0 runs on 8.6 and 8.9, code for 10.0 on 10.3, for 12.0 on 12.1: there is one
# for each major version, and Turing's. The newest one's PTX covers what comes later.
_RELEASE = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]

# What a development build is for where nvidia-smi names no GPU that nvcc knows.
_DEVELOPMENT = "sm_90"

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], exclude = ["include/cccl/**", "include/cub/**", "include/thrust/**"]),
    includes = ["include"],
)

filegroup(
    name = "runtime",
    srcs = ["libcudart_static.a"],
)
"""

_NO_CUDA_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")

filegroup(name = "runtime")
"""

_CONFIG = """
NVCC = {nvcc}
CUDA_VERSION = {version}
RELEASE_ARCHITECTURES = {release}
DEVELOPMENT_ARCHITECTURES = {development}
"""

def _toolkit(rctx):
    """The toolkit's folder, or the reason why there is none."""
    home = rctx.os.environ.get("CUDA_HOME", "")
    if home == "none":
        return None, "CUDA_HOME=none"
    if home:
        if not rctx.path(home + "/bin/nvcc").exists:
            fail("CUDA_HOME is %s, which has no bin/nvcc. Correct it, unset it, or set " % home +
                 "CUDA_HOME=none to build for the CPU alone.")
        return home, None
    python = rctx.os.environ.get("PYTHON_BIN_PATH", "")
    if not python:
        venv = rctx.path(Label("//:WORKSPACE")).dirname.get_child(".venv/bin/python")
        python = str(venv) if venv.exists else "python3"
    result = rctx.execute([python, str(rctx.path(Label("//third_party/cuda:find.py")))])
    home = result.stdout.strip()
    if result.return_code != 0 or not home:
        return None, "neither CUDA_HOME nor the package nvidia-cuda-nvcc"
    return home, None

def _version(rctx, nvcc):
    """"13.0", or None where nvcc does not run."""
    result = rctx.execute([nvcc, "--version"])
    if result.return_code != 0 or "release " not in result.stdout:
        return None
    return result.stdout.split("release ")[1].split(",")[0]

def _architectures(rctx, nvcc):
    """The release's and the development build's lists, of architectures that nvcc knows."""
    known = rctx.execute([nvcc, "--list-gpu-code"]).stdout.strip().split("\n")
    chosen = rctx.os.environ.get("NV_NORMS_CUDA_ARCHITECTURES", "")
    if chosen:
        wanted = [name.strip() for name in chosen.split(",")]
        for name in wanted:
            if name not in known:
                fail("NV_NORMS_CUDA_ARCHITECTURES names %s; %s knows %s." %
                     (name, nvcc, ", ".join(known)))
        return wanted, wanted
    release = [name for name in _RELEASE if name in known]
    if rctx.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        for capability in rctx.execute(query, timeout = 20).stdout.split("\n"):
            name = "sm_" + capability.strip().replace(".", "")
            if name in known:
                return release, [name]
    return release, [_DEVELOPMENT if _DEVELOPMENT in known else release[-1]]

def _first(rctx, home, names):
    for name in names:
        if rctx.path(home + "/" + name).exists:
            return home + "/" + name
    fail("The CUDA toolkit in %s has none of %s." % (home, ", ".join(names)))

def _impl(rctx):
    home, reason = _toolkit(rctx)
    version = None
    if home:
        version = _version(rctx, home + "/bin/nvcc")
        reason = "%s/bin/nvcc does not run" % home
    if not version:
        # buildifier: disable=print
        print("Building for the CPU alone (%s)." % reason)
        rctx.file("BUILD", _NO_CUDA_BUILD)
        rctx.file("config.bzl", _CONFIG.format(
            nvcc = "None",
            version = "None",
            release = "[]",
            development = "[]",
        ))
        return
    release, development = _architectures(rctx, home + "/bin/nvcc")
    rctx.symlink(_first(rctx, home, ["include", "targets/x86_64-linux/include"]), "include")
    rctx.symlink(_first(rctx, home, [
        folder + "/libcudart_static.a"
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib"]
    ]), "libcudart_static.a")
    rctx.file("BUILD", _BUILD)
    rctx.file("config.bzl", _CONFIG.format(
        nvcc = repr(home + "/bin/nvcc"),
        version = repr(version),
        release = repr(release),
        development = repr(development),
    ))

cuda_configure = repository_rule(
    implementation = _impl,
    environ = [
        "CUDA_HOME",
        "NV_NORMS_CUDA_ARCHITECTURES",
        "NV_NORMS_PACKAGES",
        "PYTHONPATH",
        "PYTHON_BIN_PATH",
    ],
    local = True,
)
