"""Prints "<include directory>;<library>" of the installed oneDNN wheels, for CMake."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def find(distribution: str, name: str) -> Path:
    """The installed file of `distribution` whose path ends in `name`."""
    try:
        listed = files(distribution) or []
    except PackageNotFoundError:
        raise SystemExit(f"{distribution} is not installed") from None
    for file in listed:
        if file.as_posix().endswith(name):
            return Path(str(file.locate())).resolve(strict=True)
    raise SystemExit(f"{distribution} is installed without {name}")


if __name__ == "__main__":
    header = find("onednn-devel-cpu-gomp", "include/dnnl.hpp")
    library = find("onednn-cpu-gomp", "libdnnl.so.3")
    print(f"{header.parent};{library}", end="")  # noqa: T201
