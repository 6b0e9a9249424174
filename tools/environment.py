"""The project's own Python environment, .venv."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import versions
from steps import ROOT, WORK, StepError, digest, once, run, say

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OTHER_PLUGIN = WORK / "zentf"


def has_nvidia_driver() -> bool:
    """Whether TensorFlow could find a GPU here."""
    return bool(shutil.which("nvidia-smi")) or pathlib.Path("/proc/driver/nvidia").exists()


def wants_cuda(config: str) -> bool:
    """Whether a build is to have CUDA code, which is three quarters of its time.

    That of a wheel is for other machines as well; a development build's is for this one, unless
    the environment asks for it.
    """
    home = os.environ.get("CUDA_HOME")
    if home:
        return home != "none"
    asked = os.environ.get("NV_NORMS_CUDA_ARCHITECTURES")
    return config == "release" or bool(asked) or has_nvidia_driver()


def wants_cuda_packages(config: str) -> bool:
    """Whether nvcc is to come from PyPI: CUDA_HOME names another one."""
    return wants_cuda(config) and not os.environ.get("CUDA_HOME")


def check_system() -> None:
    """Raises StepError where nothing can be built, before anything is installed for it."""
    if sys.platform != "linux":
        raise StepError(f"nv_norms_rewriter builds and runs on Linux; this is {sys.platform}.")


def set_up(config: str = "development") -> None:
    """Makes .venv what tools/versions.py says; does nothing where it is that already.

    Args:
      config: the build that it is for, as in bazel.build().
    """
    check_system()
    python = _interpreter()
    _make_venv(python)
    version = _version(str(PYTHON))
    wanted = versions.requirements(version, has_nvidia_driver())
    once(
        VENV / ".packages",
        digest(wanted),
        lambda: _pip(f"Installing TensorFlow {versions.TENSORFLOW} and tools", wanted),
    )
    if wants_cuda_packages(config):
        _try_pip(
            "Installing the CUDA compiler",
            versions.cuda_requirements(),
            ".cuda",
            "Without a CUDA compiler the build is for the CPU alone.",
        )
    if version <= versions.ADDONS_PYTHON:
        _try_pip(
            "Installing tensorflow-addons for a test",
            ["--no-deps", *versions.pins(versions.ADDONS)],
            ".addons",
            "The test of tensorflow-addons' layers will be skipped.",
        )
    _put_project_on_path()
    _fetch_other_plugin()


def packages_digest() -> str:
    """Changes when the packages that a build depends on do."""
    stamps = [VENV / ".packages", VENV / ".cuda"]
    return digest([stamp.read_text() if stamp.exists() else "" for stamp in stamps])


def _version(python: str) -> tuple[int, int] | None:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def _interpreter() -> str:
    """A Python that TensorFlow has wheels for: the running one if it will do."""
    low, high = versions.PYTHON_MINIMUM, versions.PYTHON_MAXIMUM
    names = [f"python3.{minor}" for minor in (11, 12, 10, 13)]
    for python in [sys.executable, *filter(None, map(shutil.which, names))]:
        version = _version(python)
        if version and low <= version <= high:
            return python
    raise StepError(
        f"TensorFlow {versions.TENSORFLOW} needs Python {low[0]}.{low[1]} to {high[0]}.{high[1]}; "
        f"this is {sys.version.split()[0]}, and no other was found. Install one, then name it: "
        "make PYTHON=/path/to/python3.11 ..."
    )


def _make_venv(python: str) -> None:
    if _version(str(PYTHON)) and (VENV / ".made").exists():
        return
    # Debian and Ubuntu keep half of venv in a package of its own.
    if subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode:
        major, minor = _version(python)
        package = f"python{major}.{minor}-venv"
        if not install_debian_packages([package]):
            raise StepError(
                f"{python} cannot make a virtual environment (its modules venv and ensurepip are "
                f"missing). On Debian or Ubuntu: sudo apt install {package}"
            )
    shutil.rmtree(VENV, ignore_errors=True)
    run("Making .venv", [python, "-m", "venv", str(VENV)])
    (VENV / ".made").touch()


def _pip(title: str, requirements: list[str]) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    run(title, command + ["--disable-pip-version-check", *requirements])


def _try_pip(title: str, requirements: list[str], stamp: str, otherwise: str) -> None:
    """Installs what one can do without; says what follows where that fails."""
    try:
        once(VENV / stamp, digest(requirements), lambda: _pip(title, requirements))
    except StepError as failure:
        lines = str(failure).splitlines()
        say(f"  {otherwise} " + next((line for line in lines if "ERROR" in line), lines[0]))


def _put_project_on_path() -> None:
    """.venv imports the package from the source tree."""
    folder = next((VENV / "lib").glob("python3*")) / "site-packages"
    (folder / "nv_norms_rewriter.pth").write_text(f"{ROOT / 'python'}\n")


def _fetch_other_plugin() -> None:
    """Unpacks another maker's plugin for one test, which is skipped where this fails."""
    name, version = versions.OTHER_PLUGIN
    if (OTHER_PLUGIN / version).exists():
        return
    folder = WORK / "wheels"
    command = [str(PYTHON), "-m", "pip", "download", "--no-deps", "--progress-bar", "off"]
    try:
        run(
            f"Fetching {name} for a test",
            command + ["--only-binary=:all:", "-d", str(folder), f"{name}=={version}"],
        )
    except StepError:
        say(f"  {name} {version} cannot be fetched; the test that loads it will be skipped.")
        return
    shutil.rmtree(OTHER_PLUGIN, ignore_errors=True)
    for wheel in folder.glob(f"{name}-{version}-*.whl"):
        zipfile.ZipFile(wheel).extractall(OTHER_PLUGIN)
        wheel.unlink()
    (OTHER_PLUGIN / version).touch()


def install_debian_packages(packages: list[str]) -> bool:
    """Installs packages of Debian or Ubuntu where this user may. False where not, or it failed."""
    if not shutil.which("apt-get"):
        return False
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            return False
        if subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode != 0:
            return False
        command = ["sudo", "-n", *command]
    try:
        run("Updating apt's lists", [*command, "update", "-q"], timeout=600)
        run(
            f"Installing {', '.join(packages)} by apt",
            [*command, "install", "-q", "-y", "--no-install-recommends", *packages],
            timeout=1800,
        )
    except StepError as failure:
        say(str(failure))
        return False
    return True
