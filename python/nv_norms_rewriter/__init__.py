"""Fused normalizations for unmodified TensorFlow models.

Importing this package loads the fused ops and registers a graph optimizer with TensorFlow, which
from then on replaces the many small ops that make up a normalization (layer, instance, group, RMS)
by one fused op::

    import nv_norms_rewriter

    model.predict(x)                      # any model, unchanged
    print(nv_norms_rewriter.report())     # what was found, what was fused, and why not

The rewriter works on every graph that TensorFlow optimizes when it first runs (``tf.function``,
Keras models, v1 sessions, SavedModels), and on functions that XLA compiles (``jit_compile=True``)
when they are traced. It does not see ops that run eagerly, one by one.

The environment variable ``NV_NORMS_REWRITER=0`` makes the import load nothing until ``enable()`` is
called. README.md has the others.
"""

from ._options import configure
from ._registration import disable, disabled, enable, is_enabled, start
from ._report import Record, Report, clear_report, report
from ._rewrite import rewrite
from ._version import __version__

__all__ = [
    "Record",
    "Report",
    "__version__",
    "clear_report",
    "configure",
    "disable",
    "disabled",
    "enable",
    "is_enabled",
    "report",
    "rewrite",
]

start()
