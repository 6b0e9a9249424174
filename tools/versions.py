"""Every version that this project pins, each with its reason.

The one other place that names a version is .bazelversion, where Bazel looks for its own; the lint
step compares the two. The package itself asks for less: see dependencies in pyproject.toml.
"""

from __future__ import annotations

# PyPI, for the users of the package, the tests and the demo.
TENSORFLOW = "2.21.0"  # what the plugin is compiled against; its C++ API changes with each minor
PACKAGES = {
    "keras": "3.15.1",  # the layers whose graphs are rewritten
    "rich": "15.0.0",  # prints report() as a table
}
DEVELOPMENT = {
    "keras-hub": "0.32.0",  # BertBackbone and the other real models of the demo and the corpus
    "tf-keras": "2.21.0",  # Keras 2's spellings of the layers
    "pytest": "9.2.0",  # runs tests/
    "pytest-xdist": "3.8.0",  # runs them side by side
    "ruff": "0.17.5",  # lints and formats Python
    "clang-format": "23.1.5",  # formats C++ and CUDA; versions differ in what they do
    "setuptools": "84.2.1",  # makes the wheel
}
# The last ones that still run on a Python 3.10.
PYTHON_3_10 = {
    "keras": "3.12.0",
    "keras-hub": "0.25.1",
}

# PyPI, the CUDA compiler where CUDA_HOME names none. 13.0 is the newest that drivers of 2025 run.
CUDA = {
    "nvidia-cuda-nvcc": "13.0.88",  # nvcc, ptxas
    "nvidia-nvvm": "13.0.88",  # cicc, the device compiler behind nvcc
    "nvidia-cuda-crt": "13.0.88",  # the headers that nvcc includes of itself
    "nvidia-cuda-runtime": "13.0.96",  # cuda_runtime.h, libcudart_static.a
    "nvidia-cuda-cccl": "13.0.85",  # CUB: reductions over a warp and a block
}

# PyPI, for one test; their declared dependencies would undo those above.
ADDONS = {
    "tensorflow-addons": "0.23.0",  # group and instance norm from before Keras had them
    "typeguard": "2.13.3",  # what tensorflow-addons imports
}
ADDONS_PYTHON = (3, 11)  # the last one that it has wheels for

# PyPI, never installed: a plugin of another maker, whose library a test loads before ours.
OTHER_PLUGIN = ("zentf", "2.21.0.0")

# npm
BAZELISK = "1.28.1"  # starts the Bazel of .bazelversion

# The version that Debian and Ubuntu package (bazel-bootstrap), so that a build that can download
# Bazel and one that cannot are the same build.
BAZEL = "4.2.3"

PYTHON_MINIMUM, PYTHON_MAXIMUM = (3, 10), (3, 13)  # those that TensorFlow 2.21 has wheels for


def requirements(python: tuple[int, int], gpu: bool) -> list[str]:
    """What .venv gets by pip; on a machine with an NVIDIA driver, CUDA's libraries as well."""
    packages = PACKAGES | DEVELOPMENT
    if python < (3, 11):
        packages |= PYTHON_3_10
    extra = "[and-cuda]" if gpu else ""
    return [f"tensorflow{extra}=={TENSORFLOW}", *pins(packages)]


def cuda_requirements() -> list[str]:
    """The CUDA compiler's packages."""
    return pins(CUDA)


def pins(packages: dict[str, str]) -> list[str]:
    """As pip wants them."""
    return [f"{name}=={version}" for name, version in packages.items()]
