"""Long steps of the set-up: shown while they run, silent when they worked, explained when not."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / ".build"

_FRAMES = "|/-\\"


class StepError(Exception):
    """A step did not work; the message says what a user needs to know, output included."""


def say(message: str) -> None:
    """One line, at once."""
    print(message, flush=True)


class _Progress:
    """The line of a running step: a spinner on a terminal, else a sign of life now and then.

    A step of less than a second leaves no line.
    """

    def __init__(self, title: str, log: pathlib.Path) -> None:
        self._title = title
        self._log = log
        self._terminal = sys.stdout.isatty()
        self._done = threading.Event()
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> _Progress:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._terminal:
            print("\r\033[K", end="", flush=True)
        if kind is not None or self._seconds() >= 1:
            result = "done" if kind is None else "failed"
            say(f"{self._title}: {result} in {self._seconds():.0f} s")

    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _show(self) -> None:
        if not self._terminal:
            if not self._done.wait(1):
                say(f"{self._title} ...")
            while not self._done.wait(60):
                say(f"  {self._title}: {self._seconds():.0f} s so far")
            return
        frame = 0
        while not self._done.wait(0.2):
            frame += 1
            line = (
                f"{_FRAMES[frame % 4]} {self._title} {self._seconds():.0f} s  {self._last_line()}"
            )
            width = os.get_terminal_size().columns
            print("\r\033[K" + line[: max(20, width - 1)], end="", flush=True)

    def _last_line(self) -> str:
        """The end of what the command has said so far."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - 2000))
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run(
    title: str,
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    timeout: float | None = None,
) -> str:
    """Runs a command as a step and returns its output (stdout and stderr together).

    Raises:
      StepError: it did not start, exited with another status than 0, or ran out of time.
    """
    WORK.mkdir(exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")
    log = WORK / f"{name}.log"
    with log.open("wb") as output, _Progress(title, log):
        try:
            status = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except FileNotFoundError:
            raise StepError(f"{command[0]} is not installed.") from None
        except subprocess.TimeoutExpired:
            status = f"no end after {timeout:.0f} s"
        text = log.read_text(errors="replace")
        if status != 0:
            raise StepError(f"{text.rstrip()}\n\nThis command failed ({status}): {shell(command)}")
    return text


def shell(command: list[str]) -> str:
    """The command as one would type it."""
    return shlex.join(command)


def digest(parts: Iterable[str]) -> str:
    """A key for a stamp."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def files_digest(files: Iterable[pathlib.Path]) -> str:
    """A key of the names and contents of files."""
    parts = []
    for file in sorted(files):
        parts += [str(file), hashlib.sha256(file.read_bytes()).hexdigest()]
    return digest(parts)


def once(stamp: pathlib.Path, key: str, action: Callable[[], object]) -> None:
    """Does what the stamp does not record as done for this key."""
    if stamp.exists() and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    action()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
