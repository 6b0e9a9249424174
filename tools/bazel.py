"""Builds the libraries with Bazel, started by bazelisk, and puts them beside the Python package."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
import urllib.request

import environment
import versions
from steps import ROOT, WORK, StepError, digest, files_digest, once, run, say

LIBRARIES = ["libnv_norms_core.so", "libnv_norms_cpu.so", "libnv_norms_gpu.so"]
LIBRARY_FOLDER = ROOT / "python" / "nv_norms_rewriter" / "lib"

_BAZELISK = WORK / "bazelisk" / "node_modules" / ".bin" / "bazelisk"
_DOWNLOADS = os.environ.get("BAZELISK_BASE_URL") or "https://releases.bazel.build"
_DEBIAN_PACKAGES = ["bazel-bootstrap", "bazel-rules-java", "bazel-rules-proto"]
_DEBIAN_BAZEL = pathlib.Path("/usr/bin/bazel-4")
_DEBIAN_RULES = pathlib.Path("/usr/share/bazel/rules")
_SOURCE_FOLDERS = ["kernels", "plugin", "third_party"]
_SOURCE_FILES = ["WORKSPACE", "BUILD", ".bazelrc", ".bazelversion"]
# Variables that change what is built (third_party/*/configure.bzl, Bazel's own search for g++).
_SETTINGS = ["CUDA_HOME", "NV_NORMS_CUDA_ARCHITECTURES", "PYTHONPATH", "CC", "CXX"]


def build(config: str, python: str = str(environment.PYTHON), packages: str = "") -> None:
    """Leaves the libraries in python/nv_norms_rewriter/lib; does nothing where they are current.

    Args:
      config: "development" (CUDA code for this machine's GPU) or "release" (for all).
      python: the Python whose TensorFlow to build against.
      packages: a digest of that Python's packages.
    """
    sources = [ROOT / name for name in _SOURCE_FILES]
    for folder in _SOURCE_FOLDERS:
        sources += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    settings = [f"{name}={os.environ.get(name, '')}" for name in _SETTINGS]
    settings.append(f"cuda={environment.wants_cuda(config)}")
    stamp = WORK / "libraries.stamp"
    if not all((LIBRARY_FOLDER / name).exists() for name in LIBRARIES):
        stamp.unlink(missing_ok=True)
    once(
        stamp,
        digest([config, python, packages, files_digest(sources), *settings]),
        lambda: _build(config, python, packages),
    )


def _bazel() -> tuple[list[str], dict[str, str]]:
    """How bazelisk finds Bazel here: flags for every build, and the environment."""
    _install_bazelisk()
    variables = dict(os.environ)
    if "USE_BAZEL_VERSION" in variables or _can_download():
        return [], variables
    _check_debian_bazel()
    variables["USE_BAZEL_VERSION"] = str(_DEBIAN_BAZEL)
    # What Bazel would download even for C++ alone.
    flags = [
        f"--override_repository=rules_java={_DEBIAN_RULES / 'java'}",
        f"--override_repository=rules_proto={_DEBIAN_RULES / 'proto'}",
        f"--override_repository=rules_cc={ROOT / 'third_party' / 'rules_cc'}",
    ]
    return flags, variables


def _install_bazelisk() -> None:
    package = f"@bazel/bazelisk@{versions.BAZELISK}"
    if not shutil.which("npm") and not environment.install_debian_packages(["npm"]):
        raise StepError("npm is needed to install Bazel. On Debian or Ubuntu: apt install npm")
    command = ["npm", "install", "--no-fund", "--no-audit", "--loglevel=error"]
    folder = _BAZELISK.parent.parent.parent
    folder.mkdir(parents=True, exist_ok=True)
    once(
        folder / ".stamp",
        package,
        lambda: run("Installing bazelisk", [*command, "--prefix", str(folder), package]),
    )


def _can_download() -> bool:
    """Whether bazelisk can get its Bazel. Asked once; the answer is kept in .build."""
    answer = WORK / "bazel-download.json"
    if answer.exists():
        kept = json.loads(answer.read_text())
        if kept["version"] == versions.BAZEL:
            return kept["can"]
    file = f"{versions.BAZEL}/release/bazel-{versions.BAZEL}-linux-x86_64"
    request = urllib.request.Request(f"{_DOWNLOADS}/{file}", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=8):
            pass
        run("Downloading Bazel", [str(_BAZELISK), "version"], timeout=600)
        can = True
    except (OSError, StepError):
        can = False
    answer.write_text(json.dumps({"version": versions.BAZEL, "can": can}))
    return can


def _check_debian_bazel() -> None:
    missing = [path for path in [_DEBIAN_BAZEL, _DEBIAN_RULES / "java"] if not path.exists()]
    if not missing or environment.install_debian_packages(_DEBIAN_PACKAGES):
        return
    (WORK / "bazel-download.json").unlink(missing_ok=True)
    raise StepError(
        f"Bazel {versions.BAZEL} can neither be downloaded from {_DOWNLOADS} nor found in "
        f"{_DEBIAN_BAZEL}. On Debian or Ubuntu: apt install {' '.join(_DEBIAN_PACKAGES)}"
    )


def _build(config: str, python: str, packages: str) -> None:
    if not shutil.which(os.environ.get("CC", "g++")):
        raise StepError("No C++ compiler found. On Debian or Ubuntu: apt install g++")
    flags, variables = _bazel()
    flags += [f"--repo_env=PYTHON_BIN_PATH={python}", f"--repo_env=NV_NORMS_PACKAGES={packages}"]
    flags += ["--curses=no", "--show_progress_rate_limit=5", "--output_groups=+ptxas"]
    if config == "release":
        flags.append("--config=release")
    if not environment.wants_cuda(config):
        flags.append("--repo_env=CUDA_HOME=none")
    targets = [f"//plugin:{name}" for name in LIBRARIES]
    run(
        f"Building the libraries ({config})",
        [str(_BAZELISK), "build", *flags, *targets, "//kernels:cuda_objects"],
        environment=variables,
    )
    place = run(
        "Asking Bazel", [str(_BAZELISK), "info", *flags, "bazel-bin"], environment=variables
    )
    outputs = pathlib.Path(next(line for line in place.splitlines() if line.startswith("/")))
    _replace_libraries(outputs / "plugin")
    header = (outputs / "plugin" / "build_info.h").read_text()
    _write_ptxas_report(outputs / "kernels", re.findall(r"sm_\d+", header), config)
    if 'NV_NORMS_CUDA_VERSION ""' in header:
        reason = "NVIDIA driver (NV_NORMS_CUDA_ARCHITECTURES=sm_90 builds for a GPU all the same)"
        if environment.wants_cuda(config):
            reason = "CUDA compiler (CUDA_HOME, or the package nvidia-cuda-nvcc)"
        say(f"  No {reason}: the libraries are for the CPU alone.")


def _replace_libraries(built: pathlib.Path) -> None:
    """Copies under another name, then renames: a process that has the old file keeps it whole."""
    LIBRARY_FOLDER.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        temporary = LIBRARY_FOLDER / f".{name}.new"
        shutil.copyfile(built / name, temporary)
        temporary.chmod(0o755)
        temporary.replace(LIBRARY_FOLDER / name)


def _write_ptxas_report(folder: pathlib.Path, architectures: list[str], config: str) -> None:
    """Gathers what ptxas said of each kernel: registers, shared memory, spills."""
    found = sorted((folder / f"cuda_objects.{'-'.join(architectures)}").rglob("*.ptxas.txt"))
    text = "".join(f"==== {path.name}\n{path.read_text()}\n" for path in found)
    (WORK / f"ptxas-{config}.txt").write_text(text)


def shut_down() -> None:
    """Ends Bazel's server and removes what it keeps outside of the project."""
    if not _BAZELISK.exists():
        return
    _, variables = _bazel()
    try:
        run("Removing Bazel's files", [str(_BAZELISK), "clean", "--expunge"], environment=variables)
    except StepError as failure:
        print(failure, file=sys.stderr)
