"""Layer and RMS norms of samples that have parameters of their own, as test cases beside those of
channel_norms.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class RowNorm(NamedTuple):
    """One op on x of a shape, over its last axes."""

    shape: tuple[int, ...]
    kind: str = "LayerNorm"  # or "RMSNorm"
    axes: int = 1  # how many
    subtract_mean: bool = True

    def __str__(self) -> str:
        name = f"{self.kind}-{self.axes}-{'x'.join(map(str, self.shape))}"
        return name + "-scale_only" * (not self.subtract_mean)

    @property
    def formula(self) -> str:
        if self.kind == "RMSNorm":
            return "rms"
        return "center" if self.subtract_mean else "scale_only"

    @property
    def attributes(self) -> dict[str, Any]:
        mean = {} if self.kind == "RMSNorm" else {"subtract_mean": self.subtract_mean}
        return {"axis": [-i for i in range(1, self.axes + 1)], "per_sample": True, **mean}

    @property
    def params(self) -> tuple[int, ...]:
        """The shape of the parameters' gradients."""
        return (self.shape[0], *self.shape[-self.axes :])

    @property
    def statistics(self) -> tuple[int, ...]:
        return self.shape[: -self.axes]

    def view(self, x: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
        """x, the reduced axes and those of the parameters."""
        reduced = list(range(len(self.shape) - self.axes, len(self.shape)))
        return x, reduced, [0, *reduced]

    def call(self, ops: Any, x: Any, scale: list[Any], offset: list[Any], **rest: Any) -> Any:
        """y, as a tensor that has a gradient."""
        op = ops.fused_rms_norm if self.kind == "RMSNorm" else ops.fused_layer_norm
        return op(x=x, scale=scale, offset=offset, out_type=x.dtype, **self.attributes, **rest)[0]
