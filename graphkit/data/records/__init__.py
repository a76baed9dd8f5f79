"""MXNet's record files, read and written byte for byte: .rec with its .idx, and an IRHeader before each image."""

from __future__ import annotations

from graphkit.data.records.framing import Damage
from graphkit.data.records.header import IRHeader, pack, unpack
from graphkit.data.records.reading import RecordFile, RecordStream
from graphkit.data.records.writing import RecordWriter

__all__ = ["Damage", "IRHeader", "RecordFile", "RecordStream", "RecordWriter", "pack", "unpack"]
