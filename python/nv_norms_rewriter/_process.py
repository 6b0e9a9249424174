"""What one process must remember once, however often the package is imported.

TensorFlow ends the process when a second optimizer is registered for a device type, and refuses to
load ops twice. Two copies of this package in one process (an installed one and a checkout, or two
entries of sys.path) must therefore see the same memory: it hangs on the ``tensorflow`` module, of
which there is one, and holds nothing but plain Python objects, so that copies of different age
understand each other.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

logger = logging.getLogger("nv_norms_rewriter")

_MARK = "_nv_norms_rewriter_process"


def state() -> dict[str, Any]:
    """The memory shared by all copies of the package: a dict with

    lock: guards the rest; core: path of the core library once it is loaded, else None;
    plugins: device type -> "registered" or the sentence that says why it is not;
    held: device types whose graphs another plugin optimizes;
    notices: sentences that the user was told, each once; hooked: whether functions are looked at
      when they are traced; records: what was found, the latest last; dropped: how many records
      were too many; options: what configure() set; thread: what only this thread does right now;
    switched_off: whether the rewriter was on, for each disabled() that has not ended;
    differentiated: guards graphs that are rewritten before they are differentiated;
    stock: functions of TensorFlow's own ops that written GraphDefs call.
    """
    import tensorflow as tf

    memory = vars(tf).get(_MARK)
    if memory is None:
        memory = vars(tf).setdefault(
            _MARK,
            {
                "lock": threading.RLock(),
                "core": None,
                "plugins": {},
                "notices": [],
                "hooked": False,
            },
        )
    # Apart from the above, which an older copy of the package may have made.
    memory.setdefault("held", set())
    memory.setdefault("records", [])
    memory.setdefault("dropped", 0)
    memory.setdefault("options", {})
    memory.setdefault("thread", threading.local())
    memory.setdefault("switched_off", [])
    memory.setdefault("differentiated", threading.RLock())
    memory.setdefault("stock", {})
    return memory


def loaded_core() -> str | None:
    """Path of the core library once any copy has loaded it; never imports TensorFlow."""
    tf = sys.modules.get("tensorflow")
    memory = vars(tf).get(_MARK) if tf is not None else None
    return memory["core"] if memory else None


def say_once(sentence: str) -> None:
    """Logs `sentence` as a warning the first time in this process and keeps it for report()."""
    memory = state()
    with memory["lock"]:
        if sentence in memory["notices"]:
            return
        memory["notices"].append(sentence)
    logger.warning("nv_norms_rewriter: %s", sentence)
