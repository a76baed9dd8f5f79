"""The package of the C library: its files, the ways to link with it, and the programs of the guide."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit import cli, distribution
from graphkit.errors import MissingDependency
from graphkit.executor.devices.cpu import native
from graphkit.executor.run import c_package
from graphkit.executor.run.c_package import write_c_runtime

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "c_interface.md"
FILES = {
    "README", "include/graphkit.h", "include/graphkit.hpp", "lib/libgraphkit.so", "lib/pkgconfig/graphkit.pc",
    "lib/cmake/graphkit/graphkit-config.cmake", "lib/cmake/graphkit/graphkit-config-version.cmake",
    "share/licenses/graphkit/LICENSE",
}  # fmt: skip
if native.has_onednn():
    FILES |= {"lib/libdnnl.so.3", *(f"share/licenses/onednn/{name}" for name in ("LICENSE", "THIRD-PARTY-PROGRAMS"))}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "runtime"
    write_c_runtime(folder)
    return folder


def test_files(runtime):
    assert {str(path.relative_to(runtime)) for path in runtime.rglob("*") if path.is_file()} == FILES
    assert f"graphkit {distribution.version()} for C" in (runtime / "README").read_text()
    for licence in (runtime / "share" / "licenses").rglob("LICENSE"):
        assert "Apache License" in licence.read_text()


@pytest.mark.full
def test_archive_has_the_files_in_one_folder(tmp_path, runtime, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(c_package, "_COMPRESSION", 1)
    assert cli.invoke(["build", "--c-runtime", "graphkit-c.tar.gz"]) == 0
    with tarfile.open("graphkit-c.tar.gz") as archive:
        archive.extractall(filter="data")
    assert {path.name for path in tmp_path.iterdir()} == {"graphkit-c", "graphkit-c.tar.gz"}
    for name in FILES:
        assert Path("graphkit-c", name).read_bytes() == (runtime / name).read_bytes()


def test_archives_of_equal_files_are_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(c_package, "_files", lambda: iter([("include/a.h", b"text"), ("lib/b", b"")]))
    first = write_c_runtime(tmp_path / "first" / "c.tar.gz")
    second = write_c_runtime(tmp_path / "second" / "c.tar.gz")
    assert first == [tmp_path / "first" / "c.tar.gz"]
    assert first[0].read_bytes() == second[0].read_bytes()
    with tarfile.open(first[0]) as archive:
        assert archive.getnames() == ["c/include/a.h", "c/lib/b"]


def test_files_are_replaced_not_overwritten(tmp_path, monkeypatch):
    """A program that runs keeps the old library."""
    monkeypatch.setattr(c_package, "_files", lambda: iter([("lib/b", b"text")]))
    (path,) = write_c_runtime(tmp_path)
    before = path.stat().st_ino
    assert write_c_runtime(tmp_path) == [path]
    assert path.stat().st_ino != before


def test_missing_licence_is_an_error(monkeypatch):
    monkeypatch.setattr(type(distribution.installed()), "files", [])
    with pytest.raises(MissingDependency, match="without its file LICENSE, which must accompany its library"):
        list(c_package._files())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lenet", "--c-runtime", "runtime"], "leave out MODEL"),
        (["--c-runtime", "runtime", "-o", "net.json"], "leave out --output"),
        (["--c-runtime", ""], "give the name of a folder"),
        (["--c-runtime", "old"], "old is a file; give the name of a folder, or of an archive FILE.tar.gz"),
        ([], "give the name of a network"),
        (["lenet"], "give the name of the output file"),
    ],
)
def test_build_writes_a_model_or_the_runtime(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("old").write_bytes(b"")
    assert cli.invoke(["build", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


# --- compiled programs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlp(runtime):
    """The network of the guide, saved beside the C library."""
    net = gk.models.build("mlp", inputs=64, hidden=(64,), classes=10)
    net.save(runtime.parent / "net.gkp", shapes={"x": (1, 64)})
    return net


@pytest.fixture
def folder(mlp, runtime, tmp_path):
    """A folder with classify.c, net.gkp, and a moved copy of the C library: graphkit-c."""
    shutil.copytree(runtime, tmp_path / "graphkit-c", copy_function=os.link)
    shutil.copy(runtime.parent / "net.gkp", tmp_path)
    (tmp_path / "classify.c").write_text(block("c"))
    return tmp_path


def needed(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")


def block(language):
    """The first program of the guide in a language."""
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]


def run(command, folder, **environment):
    done = subprocess.run(
        ["sh", "-e", "-c", command], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_classifies(out, net):
    (expected,) = net.run({"x": (np.arange(64, dtype=np.float32) / 64).reshape(1, 64)}).values()
    np.testing.assert_array_equal(np.array(out.split(), np.float32), expected.ravel())


def test_program_of_the_guide(mlp, runtime, folder):
    needed("cc", "pkg-config")
    line = "cc classify.c $(pkg-config --cflags --libs graphkit) -o classify"
    assert f"\n{line}\n./classify\n" in PAGE.read_text()
    strict = line.replace("cc ", "cc -std=c99 -pedantic -Wall -Wextra -Werror ", 1)
    run(strict, folder, PKG_CONFIG_PATH=str(folder / "graphkit-c" / "lib" / "pkgconfig"))
    assert_classifies(run("./classify", folder), mlp)
    assert str(runtime).encode() not in (folder / "classify").read_bytes()
    if native.has_onednn():
        (folder / "graphkit-c" / "lib" / "libdnnl.so.3").unlink()
        (folder / "graphkit-c" / "lib" / "libdnnl.so.3").write_bytes(b"")
        done = subprocess.run(["./classify"], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr.split(":")[0]) == (1, "oneDNN cannot be loaded")


@pytest.mark.full
def test_links_with_cmake(mlp, folder):
    needed("cmake", "cc")
    lines = [
        "cmake_minimum_required(VERSION 3.16)",
        "project(classify LANGUAGES C)",
        "find_package(graphkit 9 QUIET)",
        "if(graphkit_FOUND)",
        '  message(FATAL_ERROR "another version was accepted")',
        "endif()",
        f"find_package(graphkit {distribution.version()} REQUIRED)",
        "add_executable(classify classify.c)",
        block("cmake"),
    ]
    (folder / "CMakeLists.txt").write_text("\n".join(lines))
    run("cmake -S . -B build -D CMAKE_PREFIX_PATH=$PWD/graphkit-c && cmake --build build", folder)
    assert_classifies(run("build/classify", folder), mlp)


@pytest.mark.full
def test_links_without_tools_and_in_cpp(mlp, folder):
    needed("cc", "c++")
    line = 'cc classify.c -I graphkit-c/include -L graphkit-c/lib -lgraphkit -Wl,-rpath,"$PWD/graphkit-c/lib"'
    assert f"`{line}`" in PAGE.read_text()
    run(line, folder)
    assert_classifies(run("./a.out", folder), mlp)
    # Both libraries lie beside the program.
    (folder / "first.cpp").write_text(block("cpp"))
    run("cp graphkit-c/lib/lib* .", folder)
    run("c++ -std=c++17 first.cpp -I graphkit-c/include -L. -lgraphkit -Wl,-rpath,'$ORIGIN'", folder)
    shutil.rmtree(folder / "graphkit-c")
    x = np.zeros((1, 64), np.float32)
    x[0, 0] = 1
    (expected,) = mlp.run({"x": x}).values()
    assert float(run("./a.out", folder)) == pytest.approx(float(expected[0, 0]), rel=1e-4)
