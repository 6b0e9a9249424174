"""Which normalizations pay as custom calls in a function that XLA compiles, and which do not."""

from __future__ import annotations

import dataclasses

from . import _xla_rule_cpu, _xla_rule_gpu


@dataclasses.dataclass(frozen=True)
class Norm:
    """A normalization in a function that XLA compiles.

    Attributes:
      kind: "layer_norm", "instance_norm", "group_norm" or "rms_norm".
      gradient: "" if the function does not differentiate it, "fused" if its gradient would be fused
        too, "stock" if the gradient stays as it is (and then needs what XLA computed forward).
      shape: of x; None for an unknown size, or for an unknown rank.
      axes: the normalized axes, as the graph counts them.
      data_format: "N...C" or "NC..." for instance and group norm, "" for the others.
      groups: of channels, for group norm; 0 for the others.
      dtype: of x ("float32").
      device_type: "CPU" or "GPU", where the function will probably run.
      producer: the op that computes x ("AddV2"), behind casts and views.
      readers: the ops that read y, behind casts and views.
    """

    kind: str
    gradient: str
    shape: tuple[int | None, ...] | None
    axes: tuple[int, ...]
    data_format: str
    groups: int
    dtype: str
    device_type: str
    producer: str
    readers: tuple[str, ...]


def why_left(norm: Norm) -> str:
    """A sentence if XLA's own code is at least as fast, "" if the fused op pays."""
    rule = _xla_rule_gpu if norm.device_type == "GPU" else _xla_rule_cpu
    return rule.why_left(norm)
