"""The package for programs in C: libgraphkit.so, its headers, oneDNN's library, and files for build tools."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from graphkit import distribution
from graphkit.errors import MissingDependency
from graphkit.executor.devices.extension import ONEDNN_DISTRIBUTION, ONEDNN_LIBRARY, import_extension
from graphkit.executor.run.c_runtime import library_path
from graphkit.ir.atomic import write_whole, writing_of

ARCHIVE = ".tar.gz"
# The modification time of all files in an archive, 1980, so that equal contents give equal bytes.
_TIME = 315_532_800
_COMPRESSION = 6
HEADERS = ("graphkit.h", "graphkit.hpp")
_ONEDNN_LICENCES = ("LICENSE", "THIRD-PARTY-PROGRAMS")

# All paths are relative to the file itself: the package works in each folder.
_PKG_CONFIG = """\
prefix=${pcfiledir}/../..
includedir=${prefix}/include
libdir=${prefix}/lib

Name: graphkit
Description: Runs networks that graphkit saved as programs (.gkp files)
Version: @VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -lgraphkit -Wl,-rpath,${libdir}
"""
_CMAKE = """\
# Defines the target graphkit::graphkit.
if(NOT TARGET graphkit::graphkit)
  get_filename_component(_graphkit_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(graphkit::graphkit SHARED IMPORTED)
  set_target_properties(graphkit::graphkit PROPERTIES
    IMPORTED_LOCATION "${_graphkit_prefix}/lib/libgraphkit.so"
    IMPORTED_SONAME libgraphkit.so
    INTERFACE_INCLUDE_DIRECTORIES "${_graphkit_prefix}/include")
  unset(_graphkit_prefix)
endif()
"""
# Before 1.0, versions with another second number are incompatible.
_CMAKE_VERSION = """\
set(PACKAGE_VERSION "@VERSION@")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
string(REGEX MATCH "^[0-9]+[.][0-9]+" _graphkit_series "${PACKAGE_VERSION}")
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION AND NOT PACKAGE_FIND_VERSION VERSION_LESS _graphkit_series)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
"""
_README = """\
graphkit @VERSION@ for C
========================

This folder runs networks that graphkit saved as programs (.gkp files). Programs in C need no Python. You can move the
folder. Its files belong together: libgraphkit.so looks for oneDNN's library in its own folder.

With pkg-config:

    export PKG_CONFIG_PATH=FOLDER/lib/pkgconfig
    cc main.c $(pkg-config --cflags --libs graphkit) -o main

With CMake, and -D CMAKE_PREFIX_PATH=FOLDER:

    find_package(graphkit REQUIRED)
    target_link_libraries(main PRIVATE graphkit::graphkit)

Without either:

    cc main.c -I FOLDER/include -L FOLDER/lib -lgraphkit -Wl,-rpath,FOLDER/lib -o main

Programs also need libstdc++.so.6, libgcc_s.so.1 and libgomp.so.1 of the system. On Debian and Ubuntu:
apt-get install libstdc++6 libgomp1

include/graphkit.h describes the functions. include/graphkit.hpp wraps them for C++17.
share/licenses contains the licences of graphkit and of oneDNN.
"""


def write_c_runtime(target: Path) -> list[Path]:
    """Write the C library, its headers and licences, and files for pkg-config and CMake. Return the new files.

    Args:
        target: A folder, or an archive FILE.tar.gz with a folder FILE.

    Raises:
        MissingDependency: The installed package lacks a file.
        RuntimeFailure: A file cannot be written.
    """
    if target.name.endswith(ARCHIVE):
        return [_write_archive(target)]
    written = []
    for name, contents in _files():
        path = target / name
        with writing_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        # Not over the old file, which a running program may have loaded.
        write_whole(path, [contents])
        written.append(path)
    return written


def _write_archive(path: Path) -> Path:
    """Write an archive with one folder of its name."""
    folder = path.name.removesuffix(ARCHIVE)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="", compresslevel=_COMPRESSION) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, contents in _files():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(contents), 0o644, _TIME
            archive.addfile(entry, io.BytesIO(contents))
    with writing_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [packed.getvalue()])
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield path and contents of each file of the package."""
    has_onednn = import_extension().has_onednn()
    headers = Path(__file__).parents[2] / "include"
    sources = {f"include/{name}": headers / name for name in HEADERS}
    sources["lib/libgraphkit.so"] = library_path()
    sources["share/licenses/graphkit/LICENSE"] = _licence(distribution.installed(), "LICENSE")
    if has_onednn:
        sources[f"lib/{ONEDNN_LIBRARY}"] = _onednn_path()
        library = importlib.metadata.distribution(ONEDNN_DISTRIBUTION)
        sources |= {f"share/licenses/onednn/{name}": _licence(library, name) for name in _ONEDNN_LICENCES}
    for name, source in sources.items():
        yield name, source.read_bytes()
    texts = {
        "lib/pkgconfig/graphkit.pc": _PKG_CONFIG,
        "lib/cmake/graphkit/graphkit-config.cmake": _CMAKE,
        "lib/cmake/graphkit/graphkit-config-version.cmake": _CMAKE_VERSION,
        "README": _README,
    }
    for name, text in texts.items():
        yield name, text.replace("@VERSION@", distribution.version()).encode()


def _licence(package: importlib.metadata.Distribution, name: str) -> Path:
    """Return the path of a licence file of an installed package. Raises MissingDependency."""
    for file in package.files or ():
        if file.name == name and Path(str(file.locate())).exists():
            return Path(str(file.locate())).resolve()
    title = package.metadata["Name"]
    raise MissingDependency(
        f"{title} is installed without its file {name}, which must accompany its library; install the package "
        f"{title} again"
    )


def _onednn_path() -> Path:
    """Return the path of oneDNN's library under the name by which programs look for it. Raises MissingDependency."""
    import_extension().onednn_version()  # loads the library
    with open("/proc/self/maps") as maps:
        loaded = [line.split(maxsplit=5)[-1].strip() for line in maps if "libdnnl" in line]
    for path in map(Path, loaded):
        if path.with_name(ONEDNN_LIBRARY).exists():
            return path.with_name(ONEDNN_LIBRARY)
    raise MissingDependency(f"oneDNN's library {ONEDNN_LIBRARY} was not found")
