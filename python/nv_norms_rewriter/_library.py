"""Finds, checks and loads libnv_norms_core.so, and gives Python access to its C functions."""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import re
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

from . import _process

LIBRARIES = Path(__file__).absolute().parent / "lib"
CORE = "libnv_norms_core.so"

# They choose the instruction set of the CPU kernels, and how those prefetch.
_CPU_VARIABLES = ("NV_NORMS_CPU_TARGET", "NV_NORMS_CPU_PREFETCH")

# The core library holds its build information as one JSON string. It is read from the file, because
# a library that was built for another TensorFlow must not even be loaded.
_BUILT_FOR = re.compile(rb'"tensorflow": ?"([0-9]+\.[0-9A-Za-z.+-]*)"')

# Of an ELF file of 64 bits: where the table of its sections is, the size of an entry, how many.
_ELF_HEADER = struct.Struct("<40xQ10xHH2x")

_WITHOUT = "NV_NORMS_REWRITER=0 in the environment lets `import nv_norms_rewriter` pass without it."
_AGAIN = (
    "Build it again with `make demo`, or install the package again with `pip install "
    f"--force-reinstall --no-deps .`. {_WITHOUT}"
)


class LoadError(ImportError):
    """The libraries cannot be loaded here; the message says what to do."""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def built_for(library: Path) -> str | None:
    """The TensorFlow version that a core library was built for, None if the file does not say."""
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        match = _BUILT_FOR.search(content)
        return match.group(1).decode() if match else None


def damage(library: Path) -> str:
    """ "" if the file looks whole, else a sentence: loading one that is cut short ends the process.

    An ELF file ends with the table of its sections, and says at its beginning where that is.
    """
    try:
        with library.open("rb") as file:
            header = file.read(_ELF_HEADER.size)
    except OSError as error:
        return f"{library} cannot be read: {error.strerror}"
    size = library.stat().st_size
    if len(header) == _ELF_HEADER.size and header.startswith(b"\x7fELF"):
        sections_at, section_size, sections = _ELF_HEADER.unpack(header)
        whole = sections_at + section_size * sections
        if size < whole:
            return f"{library} is cut short: it has {size:,} of {whole:,} bytes"
    return ""


def _import_tensorflow() -> ModuleType:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise LoadError(
            "nv_norms_rewriter needs TensorFlow, which is not installed in this environment. "
            "Install it with: pip install 'tensorflow==2.21.*'"
        ) from error
    return tf


def check(library: Path) -> None:
    """Raises LoadError unless `library` exists and was built for the TensorFlow minor in use."""
    tf = _import_tensorflow()
    if not library.is_file() or library.stat().st_size == 0:
        raise LoadError(
            f"nv_norms_rewriter is not built: {library} does not exist. Run `make demo` in a "
            "checkout (it builds everything that is missing), or install the package with `pip "
            f"install .`. {_WITHOUT}"
        )
    try:
        str(library).encode()
    except UnicodeEncodeError:  # TensorFlow takes paths in UTF-8
        raise LoadError(
            f"nv_norms_rewriter cannot load {ascii(str(library))}: this locale has Python read the "
            f"path in another encoding than UTF-8. Set PYTHONUTF8=1 in the environment. {_WITHOUT}"
        ) from None
    if trouble := damage(library):
        raise LoadError(f"nv_norms_rewriter cannot be loaded: {trouble}. {_AGAIN}")
    wanted = built_for(library)
    if wanted is not None and _minor(wanted) != _minor(tf.__version__):
        raise LoadError(
            f"nv_norms_rewriter was built for TensorFlow {_minor(wanted)} (it was compiled with "
            f"{wanted}), but TensorFlow {tf.__version__} is installed, and TensorFlow's C++ "
            "interface changes with every minor version. Install the one it was built for: pip "
            f"install 'tensorflow=={_minor(wanted)}.*', or an nv_norms_rewriter that was built "
            f"for TensorFlow {_minor(tf.__version__)}. {_WITHOUT}"
        )


class Core:
    """The C functions of the core library, with Python types."""

    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        self._declare()

    def _declare(self) -> None:
        text, pointer, to = ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "NvNormsBuildInfo": (text, []),
            "NvNormsSetEnabled": (None, [ctypes.c_int]),
            "NvNormsSetExporting": (None, [ctypes.c_int]),
            "NvNormsIsEnabled": (ctypes.c_int, []),
            "NvNormsDeviceTypeIsFree": (ctypes.c_int, [text]),
            "NvNormsCpuTarget": (ctypes.c_int, [to(pointer)]),
            "NvNormsTakeReport": (pointer, []),
            "NvNormsRewrite": (
                ctypes.c_int,
                [text, ctypes.c_size_t, text, text, ctypes.c_int, ctypes.c_int]
                + [to(pointer), to(ctypes.c_size_t), to(pointer), to(pointer)],
            ),
            "NvNormsConvolutionFormat": (text, []),
            "NvNormsCudaDriver": (ctypes.c_int, [to(pointer)]),
            "NvNormsCudaDevices": (ctypes.c_int, [to(pointer)]),
            "NvNormsFree": (None, [pointer]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self._c, name)
            function.restype = result
            function.argtypes = arguments

    def _take(self, address: int | None, size: int | None = None) -> bytes:
        """Copies a string (or `size` bytes) that the library allocated, and frees it there."""
        if not address:
            return b""
        try:
            return ctypes.string_at(address, -1 if size is None else size)
        finally:
            self._c.NvNormsFree(address)

    def build_info(self) -> dict[str, Any]:
        return json.loads(self._c.NvNormsBuildInfo())

    def set_enabled(self, enabled: bool) -> None:
        self._c.NvNormsSetEnabled(int(enabled))

    def set_exporting(self, exporting: bool) -> None:
        """Whether what this thread has Grappler optimize from now on is handed out, not run."""
        self._c.NvNormsSetExporting(int(exporting))

    def is_enabled(self) -> bool:
        return bool(self._c.NvNormsIsEnabled())

    def device_type_is_free(self, device_type: str) -> bool:
        return bool(self._c.NvNormsDeviceTypeIsFree(device_type.encode()))

    def take_records(self) -> tuple[list[dict[str, Any]], int]:
        """The records since the last call, and how many more had to be dropped."""
        report = json.loads(self._take(self._c.NvNormsTakeReport()))
        return report["records"], report["dropped"]

    def cpu_target(self) -> tuple[bool, str]:
        """Whether the CPU kernels can do what the environment asks for; if not, a sentence why."""
        return self._ask(self._c.NvNormsCpuTarget)

    def convolution_format(self) -> str:
        """The format that XLA's flags give all convolutions on a GPU: "N...C", "NC..." or ""."""
        return self._c.NvNormsConvolutionFormat().decode()

    def cuda_driver(self) -> tuple[bool, str]:
        """Whether the GPU kernels can run on this machine's driver; if not, a sentence why.

        Does not start CUDA: the process may still fork, or set CUDA_VISIBLE_DEVICES.
        """
        return self._ask(self._c.NvNormsCudaDriver)

    def cuda_devices(self) -> tuple[bool, str]:
        """Whether they can run on all visible GPUs; if not, a sentence why. Starts CUDA."""
        return self._ask(self._c.NvNormsCudaDevices)

    def _ask(self, function: Any) -> tuple[bool, str]:
        message = ctypes.c_void_p()
        usable = bool(function(ctypes.byref(message)))
        return usable, self._take(message.value).decode(errors="replace")

    def rewrite(
        self, graph: bytes, device: str, fetches: str, layouts: bool, compiled: bool = False
    ) -> tuple[bytes, list[dict[str, Any]]]:
        """Runs the pass on a serialized GraphDef; RuntimeError with the library's sentence.

        layouts: whether layouts around fused norms may change; a node that keeps its name may then
        give another layout than before.
        compiled: whether the graph is for XLA, which computes elementwise ops together.
        """
        out, records, error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        size = ctypes.c_size_t()
        code = self._c.NvNormsRewrite(
            graph,
            len(graph),
            device.encode(),
            fetches.encode(),
            int(layouts),
            int(compiled),
            ctypes.byref(out),
            ctypes.byref(size),
            ctypes.byref(records),
            ctypes.byref(error),
        )
        rewritten = self._take(out.value, size.value)
        found = self._take(records.value)
        sentence = self._take(error.value).decode(errors="replace")
        if code != 0:
            raise RuntimeError(sentence or f"the rewriter failed with code {code}")
        return rewritten, json.loads(found or b"[]")


@functools.cache
def _open(path: str) -> Core:
    return Core(path)


def core() -> Core:
    """The core library of this process, loaded (with its ops) on the first call.

    Raises:
      LoadError: it is not built, was built for another TensorFlow, or the system cannot load it.
    """
    loaded = _process.loaded_core()
    if loaded is not None:
        return _open(loaded)
    path = LIBRARIES / CORE
    check(path)
    memory = _process.state()
    with memory["lock"]:
        if memory["core"] is None:
            try:
                _register_gradients(_load_ops(str(path)))
                library = _open(str(path))
            except (OSError, RuntimeError, AttributeError, TypeError) as error:
                raise LoadError(
                    f"nv_norms_rewriter cannot load {path}: {error}. {_AGAIN}"
                ) from error
            memory["core"] = str(path)
            return library
    return _open(memory["core"])


def cpu_trouble() -> str:
    """ "" if the CPU kernels run, else a sentence why not, which the user is told once.

    The ops that a program calls by name raise an error then.
    """
    if not any(map(os.environ.get, _CPU_VARIABLES)):
        return ""
    usable, why = core().cpu_target()
    if usable:
        return ""
    sentence = f"normalizations on the CPU stay as they are: the environment variable {why}"
    _process.say_once(sentence)
    return sentence


def gpus_are_usable() -> bool:
    """Whether the kernels can run on the GPUs; starts CUDA. If not, the user is told once."""
    library = core()
    usable, why = library.cuda_devices()
    if not usable and library.cuda_driver()[0]:  # else importing has said it
        _process.say_once(f"normalizations on a GPU stay as they are: {why}")
    return usable


def _load_ops(path: str) -> ModuleType:
    import tensorflow as tf

    try:
        return tf.load_op_library(path)
    except tf.errors.OpError as error:
        raise RuntimeError(error.message) from error


def _register_gradients(ops: ModuleType) -> None:
    from . import _gradients, _pfor  # import TensorFlow, which check() comes before

    _gradients.register(ops)
    _pfor.register()


def ops() -> ModuleType:
    """The generated Python functions of the fused ops: fused_layer_norm, fused_rms_norm, ...

    Raises:
      LoadError: see core().
    """
    core()
    loaded = _process.loaded_core()
    assert loaded is not None
    return _load_ops(loaded)
