"""Names of arrays in .npz files, which programs that unpack them use as paths."""

from __future__ import annotations

import re
import urllib.parse

# Parts of names that are escaped: %, backslashes, control characters, empty path components, drives and the suffix
# .npy.
_UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]|^/|(?<=/)/|/$|^[A-Za-z]:|\.npy$", re.ASCII)


def member_name(name: str) -> str:
    """Return the name under which an .npz file stores an array: its own name, unless that is a path out of a folder.

    Programs that unpack the file use these names as paths. Absolute paths, `.` and `..`, backslashes, drives and
    control characters are escaped as in URLs: `../x` becomes `%2E%2E/x`. `array_name` returns the original names.
    """
    parts = (part.replace(".", "%2E") if part in (".", "..") else part for part in _escaped(name).split("/"))
    return "/".join(parts)


def _escaped(name: str) -> str:
    return _UNSAFE.sub(
        lambda found: "".join(f"%{ord(c):02X}" if c in "%\\/:." or ord(c) < 32 or c == "\x7f" else c for c in found[0]),
        name,
    )


def array_name(member: str) -> str:
    """The name of an array, from that of its member. Members that `member_name` cannot have made keep their names."""
    try:
        name = urllib.parse.unquote(member, errors="strict") if "%" in member else member
    except UnicodeDecodeError:
        return member
    return name if member_name(name) == member else member
