"""Registers the optimizers with TensorFlow, once per process, and switches them on and off."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from . import _environment, _library, _options, _process, _trace

PLUGINS = {"CPU": "libnv_norms_cpu.so", "GPU": "libnv_norms_gpu.so"}
REGISTERED = "registered"


_SWITCH = "NV_NORMS_REWRITER"
_ON = ("1", "on", "true", "yes")
_OFF = ("0", "off", "false", "no")


def start() -> None:
    """What importing does: everything that enable() does, unless the environment says
    NV_NORMS_REWRITER=0.

    A second import (a reload, another copy of the package) does not undo a disable() of the
    program's.
    """
    if _environment.word(_SWITCH) in _OFF:
        return
    _load_and_register()
    _environment.choice(_SWITCH, _ON + _OFF, "1")
    _options.check_environment()


def enable() -> None:
    """Switches the rewriter on for the whole process, and loads it if that has not happened.

    Graphs that TensorFlow optimizes from now on are rewritten. A function that has already run
    keeps the graph that it got then.

    Raises:
      ImportError: the libraries are not built, or were built for another version of TensorFlow.
    """
    _load_and_register()
    _library.core().set_enabled(True)


def disable() -> None:
    """Switches the rewriter off for the whole process.

    Graphs that TensorFlow optimizes from now on stay as they are. A function that has already run
    keeps the graph that it got then, fused ops included: TensorFlow optimizes a function once, when
    it first runs with inputs of some signature. To compare fused with stock, make two functions
    (two ``tf.function`` objects, or two models) and run one of them for the first time inside
    ``disabled()``.
    """
    if _process.loaded_core() is not None:
        _library.core().set_enabled(False)


def is_enabled() -> bool:
    """Whether the rewriter is loaded and switched on.

    What keeps it from some graphs all the same, report().notices says.
    """
    if _process.loaded_core() is None:
        return False
    memory = _process.state()
    registered = REGISTERED in memory["plugins"].values() or memory["hooked"]
    return registered and _library.core().is_enabled()


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Context manager: the rewriter is off inside and as before afterwards. It holds for all
    threads.

    What counts is when a function first runs (see disable()), not when it is written.
    """
    if _process.loaded_core() is None:
        yield
        return
    core = _library.core()
    memory = _process.state()
    with memory["lock"]:
        mine = {"before": core.is_enabled()}
        memory["switched_off"].append(mine)
        core.set_enabled(False)
    try:
        yield
    finally:
        with memory["lock"]:
            active = memory["switched_off"]
            index = next(i for i, each in enumerate(active) if each is mine)
            if index + 1 < len(active):  # one that began later, in another thread, goes on
                active[index + 1]["before"] = mine["before"]
            else:
                core.set_enabled(mine["before"])
            del active[index]


def _load_and_register() -> None:
    core = _library.core()
    memory = _process.state()
    with memory["lock"]:
        folder = Path(memory["core"]).parent
        for device_type, library in PLUGINS.items():
            if memory["plugins"].get(device_type) != REGISTERED:
                memory["plugins"][device_type] = _register(core, device_type, folder / library)
        _trace.install()


def _register(core: _library.Core, device_type: str, library: Path) -> str:
    """Registers the optimizer of one device type; returns REGISTERED or why that cannot be."""
    if device_type == "GPU":
        usable, why = core.cuda_driver()
        if not usable:
            outcome = f"normalizations on a GPU stay as they are: {why}"
            if _has_nvidia_device():
                _process.say_once(outcome)
            return outcome
    if device_type == "CPU" and (trouble := _library.cpu_trouble()):
        return trouble
    # TensorFlow ends the process when a device type gets a second optimizer, so ask before.
    if not core.device_type_is_free(device_type):
        _process.state()["held"].add(device_type)
        outcome = (
            f"another TensorFlow plugin already optimizes {device_type} graphs, and TensorFlow "
            f"allows one for each device type: normalizations on the {device_type} are fused when "
            "functions are traced, and stay as they are in v1 graphs and in SavedModels. Without "
            "the other plugin (packages like zentf or intel-extension-for-tensorflow bring one) "
            "those are fused, too."
        )
        _process.say_once(outcome)
        return outcome
    if not library.is_file():
        outcome = f"normalizations on the {device_type} stay as they are: {library} does not exist"
        _process.say_once(outcome)
        return outcome
    if trouble := _library.damage(library):
        outcome = f"normalizations on the {device_type} stay as they are: {trouble}"
        _process.say_once(outcome)
        return outcome
    # Not load_pluggable_device_library: that also lists the physical devices anew, and so forgets
    # what the program set with set_visible_devices and set_memory_growth. We bring no device.
    from tensorflow.python.client import pywrap_tf_session

    try:
        pywrap_tf_session.TF_LoadPluggableDeviceLibrary(str(library))
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's program must go on)
        outcome = f"normalizations on the {device_type} stay as they are: {library}: {error}"
        _process.say_once(outcome)
        return outcome
    return REGISTERED


def _has_nvidia_device() -> bool:
    """Whether there is an NVIDIA driver; does not start CUDA, as the process may want to fork."""
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")
