"""The extension builds without oneDNN: no source that is left in then includes a header of the library."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
NATIVE = ROOT / "graphkit" / "executor" / "native"


def headers(source: Path, seen: set[Path]) -> set[str]:
    """Return the system headers of a source, also those of our headers that it includes. Skips conditional parts."""
    text = re.sub(r"^#ifdef GRAPHKIT_ONEDNN\n.*?^#endif", "", source.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r"^#include <(.+)>", text, re.MULTILINE))
    for name in re.findall(r'^#include "(.+)"', text, re.MULTILINE):
        header = NATIVE / name
        if header not in seen:
            seen.add(header)
            found |= headers(header, seen)
    return found


def test_what_builds_without_onednn_includes_none_of_it() -> None:
    (left_out,) = re.findall(r'EXCLUDE REGEX "\$\{native\}/(\(onednn.*)"\)', (ROOT / "CMakeLists.txt").read_text())
    pattern = re.compile(left_out.replace("\\\\", "\\"))
    using = {
        str(source.relative_to(NATIVE)) for source in NATIVE.rglob("*.cpp") if "dnnl.hpp" in headers(source, set())
    }
    assert len(using) > 5
    assert {source for source in using if not pattern.match(source)} == set()
