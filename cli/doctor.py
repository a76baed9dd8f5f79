"""graphkit doctor"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

import click

from graphkit import config, distribution
from graphkit.cli._options import json_option
from graphkit.cli._output import print_json, print_table
from graphkit.errors import GraphkitError

_PACKAGES = (
    "graphkit", "numpy", "onnx", "onnxruntime", "scipy", "ml_dtypes", "safetensors", "onednn-cpu-gomp", "click", "rich",
    "mpi4py", "mpich", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
)  # fmt: skip

# Names of facts and sections that differ between text and JSON.
_SHOWN = {"card": "GPU"}


@click.command()
@json_option
def command(as_json: bool) -> int:
    """Report versions, the native engine, the GPU, MPI and settings. Exit code 5: the native engine is missing."""
    facts = collect()
    if as_json:
        print_json("doctor", facts)
    else:
        for title, table in facts.items():
            print_table(_SHOWN.get(title, title), ["", ""], [(_SHOWN.get(k, k), v) for k, v in table.items()])
            click.echo()
    return 0 if facts["engine"]["native"] else 5


def collect() -> dict[str, dict[str, Any]]:
    """Return the facts that `doctor` prints, by section."""
    return {
        "system": {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "cores allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "packages": {name: package_version(name) for name in _PACKAGES},
        "engine": _engine(),
        "card": _card(),
        "settings": {k.name: f"{k.get()} ({k.help})" for k in config.KNOBS},
    }


def package_version(package: str) -> str:
    """Return the version of an installed package. `graphkit` is this package, whatever its distribution is called."""
    if package == "graphkit":
        return distribution.version() if distribution.is_installed() else "not installed"
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _card() -> dict[str, Any]:
    from graphkit.executor.devices.cuda import compiler, device
    from graphkit.executor.devices.cuda.libraries import cublaslt, cudnn, nccl

    try:
        found: dict[str, Any] = dict(device().facts())
    except GraphkitError as error:
        found = {"card": f"none: {error}"}
    versions = {"NVRTC": compiler.version, "cuBLASLt": cublaslt.version, "cuDNN": cudnn.version, "NCCL": nccl.version}
    for name, version in versions.items():
        try:
            found[name] = version()
        except GraphkitError as error:
            found[name] = f"none: {error}"
    return found


def _engine() -> dict[str, Any]:
    from graphkit.executor.devices.loading import load_device

    try:
        native = load_device("cpu")
    except GraphkitError as error:
        return {"native": False, "reason": str(error)}
    if not native:
        return {"native": False, "reason": "graphkit is not installed, so all operators are interpreted"}
    from graphkit.executor.devices import cpu

    return {"native": True, "threads": config.num_threads(), **cpu.describe()}
