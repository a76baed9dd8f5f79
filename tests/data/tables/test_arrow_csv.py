"""Text tables that pyarrow reads, against the csv module, which reads them if pyarrow is missing."""

from __future__ import annotations

import csv
import sys
from collections import Counter

import numpy as np
import pytest

from graphkit.data.preprocessing import arrow_csv
from graphkit.data.preprocessing import table_reading as reading
from graphkit.data.preprocessing.column import Numbers
from graphkit.data.preprocessing.table_reading import ALL, Choice
from graphkit.errors import InputError

pytest.importorskip("pyarrow.csv")

PLAIN = "a,city,y\n1,Bern,0.5\n,Basel,-2e-3\n3,,7\n"


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Blocks of few lines, so that small tables have many of them."""
    monkeypatch.setattr(reading, "_SMALL", 0)
    monkeypatch.setattr(arrow_csv, "_FIRST", 40)
    monkeypatch.setattr(arrow_csv, "_BLOCK", 70)
    monkeypatch.setattr(arrow_csv, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(arrow_csv, "_ROWS", 1)


def contents(path, choice=ALL, **options):
    """Everything that a caller can see of a table, or the text of the error."""
    try:
        table = reading.read_table(path, choice, **options)
    except InputError as error:
        return str(error)
    columns = []
    for name, column in table.columns.items():
        array, texts = (column.values, None) if isinstance(column, Numbers) else (column.codes, column.texts)
        assert array.flags.writeable
        columns.append((name, column.name, type(column), array.dtype, array.shape, array.tobytes(), texts))
    return table.path, table.rows, columns, [(type(row), type(line), row, line) for row, line in table.lines]


def both(monkeypatch, path, choice=ALL, **options):
    """Return whether pyarrow read the table; both readers must return the same."""
    return compared(monkeypatch, path, choice, **options)[0]


def compared(monkeypatch, path, choice=ALL, **options):
    """Return whether pyarrow read the table, and the contents that both readers return."""
    results = []
    original = arrow_csv.read
    with monkeypatch.context() as patch:
        patch.setattr(arrow_csv, "read", lambda *args: results.append(original(*args)) or results[-1])
        found = contents(path, choice, **options)
    with monkeypatch.context() as patch:  # `import pyarrow.csv` raises ImportError
        patch.setitem(sys.modules, "pyarrow.csv", None)
        assert original(path, ",", None, None, ()) is None, "pyarrow.csv must be missing"
        assert found == contents(path, choice, **options)
    (result,) = results or [None]
    return result is not None, found


def test_a_plain_table_is_read_by_pyarrow_alone(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(PLAIN)
    assert both(monkeypatch, path)
    monkeypatch.setattr(reading, "_with_csv", None)
    columns = reading.read_table(path).columns
    assert columns["a"].values.tolist() == [1, pytest.approx(np.nan, nan_ok=True), 3]
    assert columns["y"].values.tolist() == [0.5, -2e-3, 7]
    assert (columns["city"].codes.tolist(), columns["city"].texts) == ([0, 1, -1], ("Bern", "Basel"))
    monkeypatch.setattr(reading, "_SMALL", len(PLAIN) + 1)
    with pytest.raises(TypeError):  # a small table is left to the csv module
        reading.read_table(path)


def test_numbers_are_converted_by_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n" + "1.5,x,NA\n,y, 3\n" * 100)
    kinds = []
    original = arrow_csv._parse
    monkeypatch.setattr(arrow_csv, "_parse", lambda *args: kinds.append(list(args[-1].values())) or original(*args))
    assert reading.read_table(path).columns["c"].values[1] == 3
    # Texts in the first block show the kinds of the columns. Then each block is read once.
    assert kinds == [[True, True, True]] + [[False, True, False]] * (len(kinds) - 1)
    assert 20 < len(kinds) < 40


# (bytes, whether pyarrow reads them)
FILES = {
    "header only": (b"a,b\n", False),
    "blank file": (b"\n\n\n", False),
    "no last line feed": (b"a,b\n1,2\n3,4", True),
    "crlf": (b"a,b\r\n1,2\r\n\r\n3,x\r\n", False),
    "crlf and empty lines": (b"a,b\r\n1,x\r\n\r\n3,y\r\n\r\n\r\n", True),
    "lone cr": (b"a,b\r1,2\r3,4\r", False),
    "cr at the end": (b"a,b\r\n1,2\r", True),
    "cr within a cell": (b"a,b\n1,x\ry\n", False),
    "cr cr lf": (b"a,b\n1,2\r\r\n3,4\n", False),
    "empty lines": (b"a,b\n\n1,2\n\n\n3,4\n5,6\n" + b"\n" * 200 + b"7,8\n\n", True),
    "blank first line": (b"\na,b\n1,2\n", False),
    "cells of spaces in the first line": (b" , \n1,2\n", False),
    "spaces in a line": (b"a,b\n1,2\n \n3,4\n", False),
    "spaces in lines of one cell": (b"a\nx\n \n\ty \nx\n", True),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", True),
    "byte order mark without header": (b"\xef\xbb\xbf1,2\n", True),
    "two byte order marks": (b"\xef\xbb\xbf\xef\xbb\xbfa,b\n1,2\n", True),
    "two byte order marks without header": (b"\xef\xbb\xbf\xef\xbb\xbf1,2\nx,3\n", False),
    "byte order mark in the first row": (b"a,b\n\xef\xbb\xbfx,2\n", False),
    "byte order mark in a cell": (b"a,b\ny,2\nz\xef\xbb\xbf,2\n", True),
    "byte order mark at a block": (b"a,b\n" + b"xyz,234\n" * 4 + b"xyz,2\n" * 3 + b"\xef\xbb\xbfv,1\n" * 40, False),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), False),
    "latin-1": ("a,b\né,2\n".encode("latin-1"), False),
    "invalid utf-8 in a number": (b"a,b\n1\xff,2\n", False),
    "invalid utf-8 late": (b"a,b\n" + b"1,2\n" * 50 + b"1,\xc3\n", False),
    "surrogate": (b"a,b\nx\xed\xa0\x80,2\n", False),
    "texts of other scripts": ("a,b\nZürich,1\n東京,2\nZürich,3\n".encode(), True),
    "nul in a number": (b"a,b\n1\0,2\n", False),
    "nul in a text": (b"a,b\nx\0y,2\n", False),
    "quoted cells": (b'"a","b"\n"1","x,y"\n"","z"\n"3","say ""no"""\n', True),
    "doubled quotes only": (b'a,b\n1,""""\n2,""""""\n3,"""x"\n', True),
    "quoted line feed": (b'a,b\n1,"x\ny"\n2,z\n', False),
    "quoted crlf": (b'a,b\n1,"x\r\ny"\n2,z\n', False),
    "quoted line feed in the header": (b'a,"b\nc"\n1,2\n', False),
    "quoted line feed in the header of one column": (b'"a\nb"\nx\n', False),
    "open quote": (b'a,b\n1,"x\n2,y\n', False),
    "open quote at the end": (b'a,b\n1,x\n2,"', False),
    "quote within a cell": (b'a,b\n1,x"y\n2,z"\n', False),
    "text after a quote": (b'a,b\n1,"x"y\n2,"z"\n', False),
    "text before a quote": (b'a,b\n1,x"y"\n', False),
    "space before a quote": (b'a,b\n1, "y"\n', False),
    "quoted spaces": (b'a,b\n" 1","  y "\n"NA "," NA"\n', True),
    "quoted empty line": (b'a\n""\nx\n\n""\n', True),
    "short row": (b"a,b\n1,2\n3\n", False),
    "long row": (b"a,b\n1,2\n3,4,5\n", False),
    "long row late": (b"a,b\n" + b"1,2\n" * 60 + b"3,4,5\n", False),
    "double names": (b"a,a,b\n1,2,3\n", False),
    "no names": (b"a,,c\n1,2,3\n", True),
    "numbers in the first line": (b"1,2,x\n1,2,y\n", True),
    "mixed": (b"a,b\n1,x\ny,z\n", False),
    "mixed late, text first": (b"a,b\n" + b"x,1\n" * 40 + b"7,1\n", False),
    "mixed late, number first": (b"a,b\n" + b"1,1\n" * 40 + b"NA,1\nz,1\n", False),
    "a kind that shows late": (b"a,b\n" + b",1\nNA,2\n" * 30 + b"red,1\n" * 20 + b"?,3\nblue,4\nred,5\n", True),
    "all empty": (b"a,b\n,1\n?,2\nnull,3\n", True),
    "nan that is no missing value": (b"a,b\n+nan,1\nNAN,2\n3,3\n", True),
    "nan and text": (b"a,b\n+nan,1\n" + b",2\n" * 30 + b"x,3\n", False),
    "nan that is no missing value late": (b"a,b\n" + b"1,2\n" * 60 + b"-NAN,3\n", True),
    "negative nan in capitals": (b"a,b\n-NAN,1\n2,-nAn\n", True),
    "number between missing values, then text": (b"a\n" + b"?\n" * 60 + b"5\n" * 60 + b"?\n" * 90 + b"x\n", False),
    "negative nan": (b"a,b\n-nan,1\n-NaN,-nan\n3,nan\n", True),
    "infinities": (b"a,b\n1,inf\n2,-Infinity\n3,1e999\n4,-1e999\n" + b"5,INF\n" * 30, True),
    "arrow's nan": (b"a,b\nnan(1),1\n-nan(ind),2\n", True),
    "arrow's nan late": (b"a,b\n" + b"1,2\n" * 60 + b"nan(1),3\n", False),
    "hexadecimal": (b"a,b\n0x10,1\n0X1p3,2\n", True),
    "hexadecimal and a number": (b"a,b\n0x10,1\n3,2\n", False),
    "underscore": (b"a,b\n1_000,1\n2_000,2\n", True),
    "underscore late": (b"a,b\n" + b"1000,1\n" * 30 + b"1_000,2\n", False),
    "signs and points": (b"a,b\n+1,1.\n-2,.5\n-.5,+1.e2\n-0,-0.0\n", True),
    "exponents": (b"a,b\n1e5,1E-5\n1e+05,-1e-400\n4.9e-324,1e-400\n", True),
    "limits": (b"a,b\n2.2250738585072011e-308,1.7976931348623159e308\n2.4703282292062328e-324,5\n", True),
    "half exponent": (b"a,b\n1e,1\n2,3\n", False),
    "fortran's exponent": (b"a,b\n1d5,1\n2D5,3\n", True),
    "many digits": (b"a,b\n" + b"1" * 300 + b",0." + b"3" * 400 + b"\n9007199254740993,1\n", True),
    "just above halfway": (b"a\n1.00000000000000011102230246251565404236316680908203125" + b"0" * 40 + b"1\n", True),
    "booleans": (b"a,b\ntrue,false\nFalse,true\n", True),
    "dates": (b"a,b\n2020-01-01,12:30\n2020-01-02,12:31\n", True),
    "spaces at numbers": (b"a,b\n 1,\t2\n3 , 4\t\n" + b"  5, 6\n" * 30, True),
    "other spaces at numbers": ("a,b\n\u00a01,2\x1c\n\x0b3,\u20034\n".encode(), True),
    "digits of other scripts": ("a,b\n\u0663,1\n4,\uff12\n".encode(), True),
    "spaces at texts": (b"a,b\nx ,1\n x,2\nx,3\n NA,4\n   ,5\n", True),
    "spaces at missing numbers": (b"a,b\n NA,1\n2,  \n3,nan \n", True),
    "line separators that are none": ("a,b\nx\u2028y\x0bz\x85,1\n".encode(), True),
    "spaces at names": (b" a , b\n1,2\n", True),
    "long cell": (b"a,b\n" + b"x" * 140_000 + b",1\n", False),
    "long line of shorter cells": (b"a,b,c\n" + b",".join([b"x" * 50_000] * 3) + b"\n", True),
    "long line of quoted cells": (b"a,b,c\n" + b",".join([b'"' + b"x" * 50_000 + b'"'] * 3) + b"\n", False),
    "many columns": (b",".join(b"c%d" % i for i in range(900)) + b"\n" + (b",".join([b"2"] * 900) + b"\n") * 3, True),
    "backslash": (b"a,b\nx\\,1\n\\N,2\n", True),
    "comment": (b"a,b\n#x,1\n#N/A,2\n", True),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_both_readers_return_the_same(tmp_path, monkeypatch, name):
    text, is_read = FILES[name]
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    assert both(monkeypatch, path) is is_read
    for choice in (Choice(categorical=["a"]), Choice(columns=["b"]), Choice(drop=["1"])):
        both(monkeypatch, path, choice)
    for header in (True, False):
        both(monkeypatch, path, header=header)
    with monkeypatch.context() as patch:  # all in one block
        patch.setattr(arrow_csv, "_FIRST", 1 << 20)
        assert both(monkeypatch, path) is (is_read or name == "byte order mark at a block")


@pytest.mark.parametrize(
    ("suffix", "mark", "text", "is_read"),
    [
        (".tsv", None, "a\tb\n1\tx, y\n2\tz\n", True),
        (".csv", ";", "a;b\n1,5;x\n2;y\n", False),
        (".csv", ";", "a;b\n1.5;x\n2;y\n", True),
        (".csv", "|", 'a|b\n1.5|"x|y"\n2|y\n', True),
        (".csv", ":", "a:b\n1.5:x\n2:y\n", True),
        (".csv", "::", "a::b\n1.5::x\n2::y:z\n", True),
        (".csv", "::", 'a::b\n1.5::"x::y"\n2:::y\n', True),
        (".csv", "::", "a::b\n1.5::x\x1fz\n", False),
        (".csv", "\x1f", "a\x1fb\n1\x1fx\n", True),
        (".csv", " ", "a b\n1 x\n", False),
        (".csv", "x", "axb\n1x3\n", False),
        (".csv", "→", "a→b\n1→3\n", False),
        (".csv", "→→", "a→→b\n1→→3\n", False),
        (".csv", '"a', 'b"a"c\n1"a2\n', False),
        (".csv", "e", "aeb\n1e5\n", False),
    ],
)
def test_delimiters(tmp_path, monkeypatch, suffix, mark, text, is_read):
    path = tmp_path / f"a{suffix}"
    path.write_text(text, encoding="utf-8")
    assert both(monkeypatch, path, delimiter=mark) is is_read


def test_smaller_limit_of_cells(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "xyzxyz,1\n" * 20)
    before = csv.field_size_limit(5)
    try:
        assert not both(monkeypatch, path)
        assert "field larger than field limit (5)" in contents(path)
    finally:
        csv.field_size_limit(before)


# --- random tables ----------------------------------------------------------------------------------

NUMBERS = ("1", "-2.5", "3e5", "0", "-0.0", "12345678901234567890", "1e-310", ".5", "7.", "0.1", "2.675", "1e22")
MISSING = ("", "NA", "nan", "NULL", "?", "-nan", "1.#QNAN")
ODD_NUMBERS = (
    " 1",
    "2 ",
    "\t3",
    "+4",
    "inf",
    "-Infinity",
    "1e999",
    "1e-999",
    "NAN",
    "+nan",
    "\u0664",
    "5\u00a0",
    '"6"',
)
ODD_MISSING = (" ", " NA", "n/a\t", '""', '"NA"', "-NaN")
TEXTS = ("Bern", "Basel", "é", "x y", " Bern", "Bern ", '"Chur"', '"a,b"', '"say ""no"""', "0x10", "1_0", "True", "1e")
ODD_TEXTS = ('x"y', '"x"y', '"u\nv"', "x\ry", "\ufeffx", "x\x1c", "x\0", "nan(1)", "\u2028", "'x'")


def cells_of(rng, rows, kind, oddness):
    odd = rng.random(rows) < oddness
    is_missing = rng.random(rows) < rng.choice([0, 0.2, 0.9])
    if kind == "mixed":
        kinds = ["text" if is_text else "number" for is_text in rng.random(rows) < 0.02]
    else:
        kinds = [kind] * rows
    pools = {
        ("number", False): NUMBERS, ("number", True): ODD_NUMBERS, ("text", False): TEXTS, ("text", True): ODD_TEXTS,
        ("missing", False): MISSING, ("missing", True): ODD_MISSING,
    }  # fmt: skip
    chosen = [pools["missing" if m else k, bool(o)] for m, k, o in zip(is_missing, kinds, odd, strict=True)]
    return [
        repr(float(rng.standard_normal() * 10.0 ** rng.integers(-300, 300)))
        if pool is NUMBERS and rng.random() < 0.5
        else pool[rng.integers(len(pool))]
        for pool in chosen
    ]


def random_table(rng):
    """The text of a table. Most are regular, or have oddities in few places."""
    rows, oddness = int(rng.integers(1, 30)), rng.choice([0, 0, 0.01, 0.3])
    kinds = rng.choice(["number", "number", "text", "text", "mixed"], rng.integers(1, 5))
    columns = [cells_of(rng, rows, kind, oddness) for kind in kinds]
    ends = ["\n", "\r\n"] if rng.random() < 0.9 else ["\n", "\r\n", "\r", "\r\r\n", "\n\n", "\n \n", ",\n"]
    end = rng.choice(ends) if rng.random() < 0.7 else None
    names = rng.choice(["a", "b", "c", "d"], len(kinds), replace=bool(rng.random() < 0.05))
    lines = [*([",".join(names)] if rng.random() < 0.8 else []), *map(",".join, zip(*columns, strict=True))]
    text = "".join(line + (end or ends[rng.integers(len(ends))]) + "\n" * int(rng.random() < 0.05) for line in lines)
    if rng.random() < 0.2:
        text = text.rstrip("\r\n")
    return ("\ufeff" if rng.random() < 0.1 else "") + text


@pytest.mark.parametrize("seed", range(4))
def test_random_tables(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.csv"
    kinds = Counter()
    for _ in range(100):
        text = random_table(rng).encode()
        if rng.random() < 0.05:
            at = rng.integers(len(text) + 1)
            text = text[:at] + bytes([rng.integers(256)]) + text[at:]
        path.write_bytes(text)
        monkeypatch.setattr(arrow_csv, "_BLOCK", int(rng.integers(20, 300)))
        choice = ALL if rng.random() < 0.7 else Choice(categorical=[rng.choice(["a", "0"])])
        is_read, found = compared(monkeypatch, path, choice)
        kinds[is_read, isinstance(found, str)] += 1
    # (read by pyarrow, error)
    assert kinds[True, False] > 25
    assert kinds[False, False] > 2
    assert kinds[False, True] > 10
    assert not kinds[True, True]


def test_random_tables_with_decimal_commas(tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    path = tmp_path / "a.csv"
    kinds = Counter()
    for _ in range(60):
        path.write_text(random_table(rng).translate(str.maketrans(",.;", ";,.")), encoding="utf-8", newline="")
        is_read, found = compared(monkeypatch, path, delimiter=";", decimal=",")
        kinds[is_read and "numbers" if "Numbers" in str(found) else "texts"] += 1
    assert kinds["numbers"] > 10
    path.write_text('a,y\n"1,5",0\n2,1\n')
    is_read, found = compared(monkeypatch, path, delimiter=",", decimal=",")
    assert is_read
    assert "Numbers" in str(found)
