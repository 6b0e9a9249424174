"""What a line of the tables says, and the cases that it unfolds to."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# What the graph knows of the shape of its inputs.
STATIC = "static"  # every size
BATCH = "batch"  # all but the batch
CHANNELS = "channels"  # only the channels
RANK = (
    "rank"  # Grappler does not even know the rank (Python does, as in Keras' inner jit functions)
)
KNOWLEDGE = (STATIC, BATCH, CHANNELS, RANK)

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")

# How the function is run, see modes.py.
MODES = (
    "infer",
    "train",
    "split_train",
    "frozen",
    "session",
    "saved",
    "dataset",
    "while",
    "cond",
    "map_fn",
    "noinline",
    "nested",
)

_COMPUTE = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def compute_dtype(policy: str) -> str:
    """The type in which a policy's layers take and give tensors."""
    return _COMPUTE.get(policy, policy)


def variable_dtype(policy: str) -> str:
    """The type of a policy's variables."""
    return "float32" if policy.startswith("mixed_") else policy


@dataclasses.dataclass(frozen=True)
class Input:
    """One input: its shape (the first axis is the batch); integers below a bound, or floats."""

    shape: tuple[int, ...]
    below: int | None = None
    channels: tuple[int, ...] = (-1,)  # the axes whose sizes are known where only channels are
    center: float = 0.0
    spread: float = 1.0


@dataclasses.dataclass(frozen=True)
class Line:
    """A spelling of a normalization (or of something that must not be taken for one).

    make(builder) returns the function to trace. `expect` counts the fused forward records by kind;
    "a/b" allows either kind, because the two formulas coincide for that spelling. A line that must
    not be fused expects {}; `allow` names the kinds that may be fused within it all the same (say,
    the norm without a gamma that is none), as long as the values are right.
    """

    name: str
    make: Callable[[Any], Callable]
    expect: Mapping[str, int]
    inputs: tuple[Input, ...]
    epsilon: float | None = None
    axes: tuple[int, ...] | None = None  # of x, checked for layer_norm and rms_norm only
    formula: Callable | None = None  # NumPy float64: formula(parameters, *inputs)
    policies: Sequence[str] = ("float32",)
    knowledge: Sequence[str] = (BATCH,)
    modes: Sequence[str] = ("infer",)
    more: Sequence[tuple[str, str, str]] = ()  # single (policy, knowledge, mode) points besides
    slow_policies: Sequence[str] = POLICIES
    slow_knowledge: Sequence[str] = (STATIC, BATCH, CHANNELS)
    slow_modes: Sequence[str] = ("infer", "train", "frozen")
    slow: bool = False  # the whole line
    allow: Sequence[str] = ()
    fine_parameters: bool = False  # parameters that half precision cannot hold
    expect_by: Mapping[str, Mapping[str, int]] | None = None  # by policy, knowledge or mode
    why: str = ""  # what is wrong with a near miss
    stock_is_wrong: str = ""  # pattern on policy/knowledge/mode where TensorFlow itself errs
    gradients: Mapping[str, int] | None = None  # in training; None: one for each forward
    # How many tensors each gradient gives, by pattern on policy/knowledge/mode; else it is one for
    # each input of its forward.
    outputs: Mapping[str, Sequence[int]] | None = None
    needs: str = ""  # a module without which the line is skipped


@dataclasses.dataclass(frozen=True)
class Case:
    """A line at one policy, one knowledge of shapes and one mode."""

    line: Line
    policy: str
    knowledge: str
    mode: str
    slow: bool

    @property
    def name(self) -> str:
        return f"{self.line.name}/{self.policy}/{self.knowledge}/{self.mode}"

    @property
    def seed(self) -> int:
        return zlib.crc32(self.line.name.encode()) % 2**31

    @property
    def expect(self) -> Mapping[str, int]:
        by = self.line.expect_by or {}
        both = f"{self.policy}/{self.mode}", f"{self.knowledge}/{self.mode}"
        for key in (*both, self.policy, self.knowledge, self.mode):
            if key in by:
                return by[key]
        return self.line.expect

    @property
    def outputs(self) -> Sequence[int] | None:
        """How many tensors each gradient gives; None: one for each input of its forward."""
        by = self.line.outputs or {}
        return next((counts for pattern, counts in by.items() if self._matches(pattern)), None)

    @property
    def stock_is_wrong(self) -> bool:
        """TensorFlow's own remapper breaks the graph, silently or not, if it may."""
        return self._matches(self.line.stock_is_wrong)

    def _matches(self, pattern: str) -> bool:
        point = f"{self.policy}/{self.knowledge}/{self.mode}"
        return bool(pattern and re.search(pattern, point))

    @property
    def must_fuse(self) -> bool:
        return bool(self.line.expect)


def unfold(lines: Sequence[Line]) -> list[Case]:
    """All cases of the lines, those of the default set first within each line."""
    cases, seen = [], set()

    def add(line: Line, policy: str, knowledge: str, mode: str, slow: bool) -> None:
        case = Case(line, policy, knowledge, mode, slow)
        if case.name not in seen:
            seen.add(case.name)
            cases.append(case)

    names = set()
    for line in lines:
        if line.name in names:
            raise ValueError(f"two lines are called {line.name}")
        names.add(line.name)
        for policy in line.policies:
            for knowledge in line.knowledge:
                for mode in line.modes:
                    add(line, policy, knowledge, mode, line.slow)
        for policy, knowledge, mode in line.more:
            add(line, policy, knowledge, mode, line.slow)
        for policy in line.slow_policies:
            for knowledge in line.slow_knowledge:
                for mode in line.slow_modes:
                    add(line, policy, knowledge, mode, True)
    return cases
