"""Environment variables that choose among words; any other word is said once and counts as none."""

from __future__ import annotations

import os

from . import _process


def word(name: str) -> str:
    """What the variable says, in lower case; "" where it is not set."""
    return os.environ.get(name, "").strip().lower()


def choice(name: str, words: tuple[str, ...], default: str) -> str:
    """Which of `words` the variable says; `default` where it says nothing, or something else."""
    said = word(name)
    if said in words:
        return said
    if said:
        expected = f"{', '.join(words[:-1])} or {words[-1]}"
        _process.say_once(
            f"the environment variable {name} is {os.environ[name]!r}, expected {expected}; it is "
            f"taken for {default}"
        )
    return default
