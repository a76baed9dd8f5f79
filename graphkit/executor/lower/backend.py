"""Steps that a backend computes. `graphkit.passes.distribution.backends` has put their nodes into groups."""

from __future__ import annotations

from graphkit.executor.lower.lowering import Lowering, Site
from graphkit.executor.lower.python_step import PythonFunction, PythonKernel


def backend_group(site: Site) -> Lowering | None:
    """Return the lowering of a group to a call of its backend; None if the executor has no backends."""
    if site.settings.backends is None:
        return None
    call = site.settings.backends.call(site.node, site.context.constant_inputs)
    if site.dynamic:
        return PythonFunction("backend", call.results)
    return PythonKernel("backend", site.node, call)
