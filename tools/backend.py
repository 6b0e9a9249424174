"""What pip calls to build this package: setuptools, after Bazel has built the libraries.

pip builds in an environment of its own, into which it installs what the get_requires hooks name.
"""

import platform
import shutil
import sys

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  (hooks that stay as they are)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

import bazel
import environment
import versions
from steps import ROOT, StepError, digest

Settings = dict[str, object] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """TensorFlow for its headers, and the CUDA compiler where it is needed."""
    return _requirements("release")


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """As for a wheel."""
    return _requirements("development")


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """A wheel for any Python 3 on this platform: the libraries do not use Python."""
    _build("release")
    # setuptools would take what an earlier wheel left there into this one.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    settings = {**(config_settings or {}), "--build-option": [f"--plat-name={_platform()}"]}
    return build_meta.build_wheel(wheel_directory, settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """An installation that imports from the source tree."""
    _build("development")
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _platform() -> str:
    return f"linux_{platform.machine()}"


def _requirements(config: str) -> list[str]:
    try:
        environment.check_system()
    except StepError as failure:
        sys.exit(str(failure))
    cuda = versions.cuda_requirements() if environment.wants_cuda_packages(config) else []
    return [f"tensorflow=={versions.TENSORFLOW}", *cuda]


def _build(config: str) -> None:
    own = sys.executable == str(environment.PYTHON)
    packages = environment.packages_digest() if own else digest(sys.path)
    try:
        bazel.build(config, python=sys.executable, packages=packages)
    except StepError as failure:
        sys.exit(str(failure))
