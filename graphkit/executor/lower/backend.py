"""Steps that a backend computes."""

from __future__ import annotations

from graphkit.executor.lower.lowering import Lowering, Site
from graphkit.executor.lower.python_step import PythonFunction, PythonKernel


def backend_group(site: Site) -> Lowering | None:
    if site.settings.backends is None:
        return None
    call = site.settings.backends.call(site.node, site.context.constant_inputs)
    if site.dynamic:
        return PythonFunction("backend", call.results)
    return PythonKernel("backend", site.node, call)
