"""The targets of the Makefile: each does the set-up that it needs, then its work.

Usage: python3 tools/make.py {demo,test,wheel,bench,lint,clean}
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import bazel
import environment
import versions
from steps import ROOT, WORK, StepError, run, say

_FORMATTED = (".cc", ".h", ".cu", ".cuh")

# A process for each processor, at most four, as each takes 3 GB; a file's tests share what it has
# made. In the order of their names, as files of few tests, which would come last, take longest.
_SIDE_BY_SIDE = (
    "--numprocesses=auto",
    "--maxprocesses=4",
    "--dist=loadfile",
    "--no-loadscope-reorder",
)


def build(config: str = "development") -> None:
    """Everything that a test or the demo needs. One process at a time."""
    WORK.mkdir(exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another make works in this folder; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        environment.set_up(config)
        bazel.build(config, packages=environment.packages_digest())


def demo() -> None:
    """An unmodified Keras model, stock and fused."""
    build()
    _hand_over([str(environment.PYTHON), "examples/keras_model.py"])


def test() -> None:
    """Lint and all tests."""
    build()
    _check_format()
    _hand_over([str(environment.PYTHON), "-m", "pytest", *_SIDE_BY_SIDE])


def bench() -> None:
    """Layers and models, stock, XLA and fused; on a GPU, if torch is there, the kernels alone."""
    build()
    python = str(environment.PYTHON)
    _hand_over(["benchmarks/run.sh", "build/bench"])
    say((ROOT / "build/bench/tables.md").read_text())
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([python, "-c", code], capture_output=True).returncode != 0:
        say(
            "The kernels' own benchmark needs an NVIDIA GPU, and torch (pip install it into .venv)."
        )
        return
    find = subprocess.run([python, "third_party/cuda/find.py"], capture_output=True, text=True)
    variables = {"CUDA_HOME": find.stdout.strip()} | dict(os.environ)
    run("Building the kernels alone", ["benchmarks/kernels/build.sh"], environment=variables)
    _hand_over([python, "benchmarks/kernels/rows.py"])


def lint() -> None:
    """Ruff and clang-format."""
    environment.set_up()
    _check_format()


def wheel() -> None:
    """One wheel in dist/, with CUDA code for all architectures."""
    build("release")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    command = [str(environment.PYTHON), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run("Building the wheel", [*command, "--wheel-dir", "dist", "."])
    for file in (ROOT / "dist").glob("*.whl"):
        say(f"dist/{file.name}")


def clean() -> None:
    """Removes everything that the other targets made."""
    bazel.shut_down()
    for name in [".venv", ".build", "build", "dist", "python/nv_norms_rewriter/lib"]:
        shutil.rmtree(ROOT / name, ignore_errors=True)
    for name in ["__pycache__", ".pytest_cache", ".ruff_cache", "*.egg-info"]:
        for folder in ROOT.rglob(name):
            shutil.rmtree(folder, ignore_errors=True)


def _hand_over(command: list[str]) -> None:
    """Runs a command whose output is what the user came for."""
    status = subprocess.run(command, cwd=ROOT).returncode
    if status != 0:
        sys.exit(status if status > 0 else 128 - status)  # as a shell has it after a signal


def _sources() -> Iterator[str]:
    for folder in ["kernels", "plugin"]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _FORMATTED:
                yield str(path.relative_to(ROOT))


def _check_format() -> None:
    pinned = (ROOT / ".bazelversion").read_text().strip()
    if pinned != versions.BAZEL:
        raise StepError(f".bazelversion says {pinned}, tools/versions.py says {versions.BAZEL}.")
    tools = environment.VENV / "bin"
    run("Checking Python with ruff", [str(tools / "ruff"), "check", "--quiet", "."])
    run(
        "Checking the format of Python",
        [str(tools / "ruff"), "format", "--check", "--diff", "--quiet", "."],
    )
    sources = list(_sources())
    if sources:
        run(
            "Checking the format of C++",
            [str(tools / "clang-format"), "--dry-run", "-Werror", *sources],
        )


TARGETS = {target.__name__: target for target in [demo, test, wheel, bench, lint, clean, build]}


def main() -> None:
    os.chdir(ROOT)
    if len(sys.argv) != 2 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    try:
        TARGETS[sys.argv[1]]()
    except StepError as failure:
        sys.exit(f"\n{failure}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
