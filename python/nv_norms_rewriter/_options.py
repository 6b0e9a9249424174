"""What a program can choose: configure()."""

from __future__ import annotations

from . import _environment, _process

_CHOICES = {"xla": ("auto", "all", "none"), "saved_models": ("stock", "fused")}
_ENVIRONMENT = {"xla": "NV_NORMS_XLA"}


def configure(*, xla: str | None = None, saved_models: str | None = None) -> None:
    """Sets options of the rewriter, for the whole process and from now on.

    Args:
      xla: which normalizations to fuse in functions that XLA compiles. "auto" (the default): those
        for which a fused op was measured to be faster than what XLA makes of them; report() names
        the others as "left_to_xla". "all", "none": without asking. The environment variable
        NV_NORMS_XLA sets this, too. A function that has been traced stays as it is.
      saved_models: what SavedModels, and other GraphDefs that Python is given, hold. "stock" (the
        default): no op that the rewriter made, so that they load where it is not installed.
        "fused": fused ops where functions have them in Python, be they traced before or while
        TensorFlow saves: functions that XLA compiles (as `xla` says for those that are traced from
        then on), and functions, loops and branches that a tape outside of them differentiates. All
        others hold TensorFlow's own ops in either case, as those that model.export makes of a
        model: their normalizations are fused where they are loaded and run. With fused ops a
        SavedModel loads only after `import nv_norms_rewriter`, and runs with XLA and without.

    An argument that is not given, or is None, changes nothing.

    Raises:
      ValueError: an option has no such value.
    """
    wanted = {"xla": xla, "saved_models": saved_models}
    for name, value in wanted.items():
        if value is not None and not (isinstance(value, str) and value in _CHOICES[name]):
            raise ValueError(
                f"{name}: expected {' or '.join(map(repr, _CHOICES[name]))}, got {value!r}"
            )
    options = _process.state()["options"]
    options.update({name: value for name, value in wanted.items() if value is not None})


def get(name: str) -> str:
    """The option's value: configure()'s, else the environment's, else the default."""
    words = _CHOICES[name]
    value = _process.state()["options"].get(name)
    if value in words:
        return value
    if name not in _ENVIRONMENT:
        return words[0]
    return _environment.choice(_ENVIRONMENT[name], words, words[0])


def check_environment() -> None:
    """Says now, not only when a function is traced, what the environment names that there is
    not."""
    for name in _ENVIRONMENT:
        get(name)
