"""Which builds have CUDA code, by what the environment asks for and what the machine has."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from processes import ROOT


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools/environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ["CUDA_HOME", "NV_NORMS_CUDA_ARCHITECTURES"]:
        monkeypatch.delenv(name, raising=False)
    for name in ["steps", "versions"]:  # names that others may use
        monkeypatch.delitem(sys.modules, name)
    return module


@pytest.mark.parametrize(
    ("config", "driver", "asked", "code", "packages"),
    [
        ("development", False, {}, False, False),
        ("development", True, {}, True, True),
        ("development", False, {"NV_NORMS_CUDA_ARCHITECTURES": "sm_90"}, True, True),
        ("development", False, {"CUDA_HOME": "/usr/local/cuda"}, True, False),
        ("development", True, {"CUDA_HOME": "none"}, False, False),
        ("release", False, {}, True, True),
        ("release", True, {"CUDA_HOME": "/usr/local/cuda"}, True, False),
        ("release", True, {"CUDA_HOME": "none"}, False, False),
    ],
)
def test_a_build_has_cuda_code_where_a_gpu_may_run_it(
    environment: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    driver: bool,
    asked: dict[str, str],
    code: bool,
    packages: bool,
) -> None:
    monkeypatch.setattr(environment, "has_nvidia_driver", lambda: driver)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert environment.wants_cuda(config) is code
    assert environment.wants_cuda_packages(config) is packages
