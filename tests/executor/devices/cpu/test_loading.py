"""Loading of the extension and of oneDNN, and errors if one of them is missing."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphkit
from graphkit.errors import MissingDependency
from graphkit.executor.devices import cpu, extension

PACKAGE = Path(graphkit.__file__).parent


# Finders of editable installs come before sys.path: keep only Python's own.
PLAIN_FINDERS = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if f.__module__.startswith('_frozen')]\n"


def python(code: str, *, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess:
    """Run `code` in a fresh interpreter; with `path`, that folder is searched before everything installed."""
    if path is not None:
        code = PLAIN_FINDERS + f"sys.path.insert(0, {str(path)!r})\n" + code
    return subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def unbuilt(tmp_path: Path) -> Path:
    """A source tree: graphkit's Python files without the extension."""
    root = tmp_path / "tree"
    for source in PACKAGE.rglob("*.py"):
        target = root / "graphkit" / source.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return root


def test_loads_from_any_folder(tmp_path):
    code = "import graphkit.executor.devices.cpu as cpu, graphkit.cli, graphkit.models; print(cpu.native.version)"
    result = python(code, cwd=tmp_path)
    assert result.stdout.strip() == graphkit.__version__, result.stderr


def test_installed_graphkit_without_its_extension_is_an_error(unbuilt, tmp_path):
    code = "from graphkit.executor.devices.loading import load_device; load_device('cpu')"
    result = python(code, cwd=tmp_path, path=unbuilt)
    assert result.returncode != 0
    assert "MissingDependency: graphkit is installed without its native extension" in result.stderr
    assert str(unbuilt) in result.stderr


def test_importing_kernels_without_the_extension_names_it(unbuilt, tmp_path):
    result = python("import graphkit.executor.devices.cpu", cwd=tmp_path, path=unbuilt)
    assert "ModuleNotFoundError: No module named 'graphkit._native'" in result.stderr


def test_graphkit_itself_does_not_load_the_extension(tmp_path):
    code = "import graphkit, sys; print(sorted(m for m in sys.modules if 'native' in m or 'dnnl' in m))"
    assert python(code, cwd=tmp_path).stdout.strip() == "[]"


@pytest.mark.skipif(not cpu.native.has_onednn(), reason="built without oneDNN")
def test_onednn_is_found_through_package_metadata():
    found = Path(extension.onednn_library("libdnnl.so.3: cannot open shared object file"))
    assert found.name == "libdnnl.so.3"
    assert found.exists()


@pytest.fixture
def moved(tmp_path: Path) -> str:
    """Code that imports a copy of the extension whose RPATH leads nowhere, as in a `pip install --target` tree."""
    place = tmp_path / "deeper" / "graphkit"
    place.mkdir(parents=True)
    built = Path(cpu.native.__file__)
    # The RPATH of an editable build is absolute.
    folder = os.path.dirname(os.path.normpath(extension.onednn_library(""))).encode()
    (place / built.name).write_bytes(built.read_bytes().replace(folder, b"/" * len(folder)))
    return (
        "import graphkit\n" + PLAIN_FINDERS + f"graphkit.__path__ = [{str(place)!r}, *graphkit.__path__]\n"
        "import graphkit.executor.devices.cpu as cpu\n"
        f"assert cpu.native.__file__ == {str(place / built.name)!r}\n"
    )


@pytest.mark.skipif(not cpu.native.has_onednn(), reason="built without oneDNN")
def test_onednn_is_found_where_the_rpath_leads_nowhere(moved, tmp_path):
    result = python(moved + "print(cpu.native.onednn_version())\n", cwd=tmp_path)
    assert result.stdout.strip() == cpu.native.onednn_version(), result.stderr


@pytest.mark.skipif(not cpu.native.has_onednn(), reason="built without oneDNN")
def test_kernel_that_needs_a_missing_onednn_names_it(moved, tmp_path):
    code = moved + (
        "import importlib.metadata\nimportlib.metadata.files = lambda name: []\ncpu.native.MatMul((2, 64), (64, 64))\n"
    )
    result = python(code, cwd=tmp_path)
    assert "MissingDependency: oneDNN's library libdnnl.so.3 cannot be loaded" in result.stderr


@pytest.mark.skipif(not cpu.native.has_onednn(), reason="built without oneDNN")
def test_onednn_is_loaded_when_its_functions_are_used(tmp_path):
    code = """
import graphkit.executor.devices.cpu as cpu

def loaded():
    with open("/proc/self/maps") as maps:
        return "libdnnl" in maps.read()

print(loaded(), cpu.native.onednn_version(), loaded())
"""
    result = python(code, cwd=tmp_path)
    assert result.stdout.split() == ["False", cpu.native.onednn_version(), "True"], result.stderr


# All names of the extension that need oneDNN; see the filter of sources in CMakeLists.txt.
OF_ONEDNN = (
    "Convolution", "ConvolutionBackwardData", "ConvolutionBackwardWeights", "Deconvolution", "MatMul",
    "NarrowConvolution", "PackedProduct", "TiledConvolution", "TiledMethod", "TransposedConvolution", "Window",
    "onednn_isa", "onednn_version",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(not cpu.native.has_onednn(), reason="built without oneDNN")
def test_an_extension_without_onednn_runs_networks(tmp_path):
    """Its convolutions and products are interpreted, in training, too."""
    code = f"""
import numpy as np, graphkit as gk
import graphkit._native as native
for name in {OF_ONEDNN!r}:
    delattr(native, name)
native.has_onednn = lambda: False
native.has_bfloat16 = lambda: False

x = gk.input("x", ["N", 2, 6, 6])
h = gk.relu(gk.nn.conv2d(x, 4, 3, pad=1, name="conv"))
h = gk.nn.conv_transpose2d(h, 3, 2, stride=2, name="up")
net = gk.Model(dict(logits=gk.nn.linear(gk.flatten(h), 5, name="fc")))
exe = net.compile(shapes=dict(x=(4, 2, 6, 6)))
print(*(name.split("(")[1].strip(")") for name in exe.plan.fallbacks))
assert gk.verify(net).passed
losses = [float(gk.Trainer(net).step(np.ones((4, 2, 6, 6), np.float32), np.arange(4))) for _ in range(2)]
assert losses[1] < losses[0]
print(gk.executor.devices.cpu.describe()["oneDNN"])
"""
    result = python(code, cwd=tmp_path)
    assert result.stdout.splitlines() == [
        "ai.graphkit.ChannelsLastConv ai.graphkit.ChannelsLastConvTranspose Gemm",
        "not built in",
    ], result.stdout + result.stderr


def test_missing_onednn_says_what_to_install(monkeypatch):
    def nothing(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", nothing)
    with pytest.raises(MissingDependency, match="pip install --force-reinstall onednn-cpu-gomp"):
        extension.onednn_library("libdnnl.so.3")
