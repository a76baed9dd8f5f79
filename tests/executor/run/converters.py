"""Converters for tests of the C library: scripts in place of `graphkit export`, and calls of gk_open with options."""

import ctypes
import os
from typing import NamedTuple

from graphkit.executor.run import c_runtime

# The arguments of a converter: export MODEL --no-verify --json -o OUTPUT ...
MODEL, OUTPUT = "$2", "$6"


class Opened(NamedTuple):
    status: str
    text: str  # "" for GK_OK
    inputs: int


def write_script(path, body):
    """Write a converter: a shell script. Return its path as bytes."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return os.fsencode(path)


def options_of(**fields):
    """gk_options. `converter_arguments` is a list of texts."""
    arguments = fields.pop("converter_arguments", None)
    if arguments is not None:
        fields["converter_arguments"] = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    return c_runtime._Options(**fields)


def opened(path, size=None, **fields):
    """Open a file with fields of gk_options, and close it."""
    library, handle, options = c_runtime._library(), ctypes.c_void_p(), options_of(**fields)
    size = ctypes.sizeof(options) if size is None else size
    status = library.gk_open_checked(os.fsencode(path), ctypes.byref(options), ctypes.byref(handle), 1, size)
    return closed(status, handle)


def opened_memory(data):
    """Open the contents of a file, and close it."""
    library, handle, options = c_runtime._library(), ctypes.c_void_p(), options_of()
    status = library.gk_open_memory_checked(
        data, len(data), ctypes.byref(options), ctypes.byref(handle), 1, ctypes.sizeof(options)
    )
    return closed(status, handle)


def closed(status, handle):
    library = c_runtime._library()
    name, text = library.gk_status_name(status).decode(), library.gk_error().decode(errors="replace")
    count = library.gk_input_count(handle)
    library.gk_close(handle)
    return Opened(name, text if status else "", count)
