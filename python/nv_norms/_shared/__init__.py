"""nv_norms_rewriter's modules that load the ops, without what importing that package does.

``import nv_norms_rewriter`` switches the rewriter on; explicit calls need the ops alone. Both share
one library and one record of it per process (``_process``), however their modules were found.
"""

from __future__ import annotations

import importlib.util


def _folder() -> str:
    spec = importlib.util.find_spec("nv_norms_rewriter")  # finds it, does not execute it
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(
            "nv_norms needs the package nv_norms_rewriter, which holds the library with its ops; "
            "`pip install .` in a checkout installs both"
        )
    return spec.submodule_search_locations[0]


__path__ = [_folder()]
