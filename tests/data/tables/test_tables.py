"""Tables with gaps and names, compared with numpy on the same cells."""

from __future__ import annotations

import datetime
import decimal
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from combinations import in_one_item

from graphkit import data
from graphkit.data.preprocessing import encoding as encodings
from graphkit.data.preprocessing import table_reading as reading
from graphkit.data.preprocessing.encoding import Encoding
from graphkit.errors import GraphkitWarning, InputError, UsageError

TEXT = """age,city,income,rooms,price
30,Bern,1000.5,2,100.5
,Basel,2000,3,200
50,Bern,,1,300
40,,4000,2,400
20,Chur,1500,4,50
"""


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "houses.csv"
    found.write_text(TEXT)
    return found


def test_gaps_and_names(path):
    found = data.read(path, missing="mean")
    assert found.names == ("x",)
    mean_age, mean_income = np.mean([30, 50, 40, 20]), np.mean([1000.5, 2000, 4000, 1500])
    expected = [
        # age, income, rooms, Basel, Bern, Chur
        [30, 1000.5, 2, 0, 1, 0],
        [mean_age, 2000, 3, 1, 0, 0],
        [50, mean_income, 1, 0, 1, 0],
        [40, 4000, 2, 0, 0, 0],
        [20, 1500, 4, 0, 0, 1],
    ]
    np.testing.assert_array_equal(found.inputs, np.array(expected, np.float32))
    np.testing.assert_array_equal(found.targets, np.array([100.5, 200, 300, 400, 50], np.float32))


def test_codes_flags_and_scales(path):
    found = data.read(path, missing="median", indicator=True, scale="standard", categories="codes")
    assert found.inputs["categories"].tolist() == [[2], [1], [2], [0], [3]]
    assert found.inputs["categories"].dtype == np.int64
    assert found.encoding.sizes == (4,)
    known = np.array([30, 50, 40, 20.0])
    age = (np.array([30, np.median(known), 50, 40, 20]) - known.mean()) / known.std()
    np.testing.assert_allclose(found.inputs["x"][:, 0], age, rtol=1e-6)
    assert found.inputs["x"][:, 1].tolist() == [0, 1, 0, 0, 0]
    assert found.inputs["x"].shape == (5, 5), "age, its flag, income, its flag, rooms without one"
    scaled = data.read(path, missing="zero", scale="minmax", drop="city").inputs
    assert scaled[:, 2].tolist() == pytest.approx([1 / 3, 2 / 3, 0, 1 / 3, 1])


@pytest.mark.parametrize("categories", ["onehot", "codes"])
def test_rows_are_encoded_alike_in_parts_of_any_size(path, monkeypatch, categories):
    options = {"missing": "zero", "indicator": True, "scale": "standard", "categories": categories}
    whole = data.read(path, **options).take(slice(None))[0]
    monkeypatch.setattr(encodings, "_ROWS", 2)
    parts = data.read(path, **options).take(slice(None))[0]
    for found, expected in zip(*(x.values() if isinstance(x, dict) else [x] for x in (parts, whole)), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_the_test_part_teaches_nothing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("v,c,y\n" + "".join(f"{i},c{i % 50},{i % 2}\n" for i in range(100)))
    train, test = data.load(path, scale="standard", categories="codes", test_fraction=0.5, seed=3)
    np.testing.assert_allclose(train.inputs["x"].mean(), 0, atol=1e-6)
    assert abs(test.inputs["x"].mean()) > 1e-3
    values = train.encoding.categories[0].values
    assert 25 <= len(values) < 50
    assert (test.inputs["categories"] == 0).any(), "a city that was never seen"
    # The split is that of other data, by class.
    assert np.bincount(test.targets).tolist() == [25, 25]


def test_chosen_columns_and_several_targets(path):
    found = data.read(path, target=["price", "rooms"], columns="income,age", missing="zero")
    assert sorted(found.targets) == ["price", "rooms"]
    assert found.targets["rooms"].dtype == np.int64
    assert found.inputs.shape == (5, 2)
    with pytest.raises(InputError, match=r"the target 'city' has no value in 1 of 5 rows, first in line 5"):
        data.read(path, target="city", missing="mean")
    with pytest.raises(InputError, match=r"no column 'incom'; did you mean 'income'"):
        data.read(path, columns="incom")
    with pytest.raises(InputError, match="no column 'cty'"):
        data.read(path, drop="cty")
    with pytest.raises(InputError, match="no column is left"):
        data.read(path, drop="age,city,income,rooms")


def test_numbers_that_are_names(tmp_path):
    path = tmp_path / "zip.csv"
    path.write_text("zip,y\n3000,0\n8000,1\n3000,1\n")
    assert data.read(path).inputs.tolist() == [[3000], [8000], [3000]]
    found = data.read(path, categorical="zip")
    assert found.inputs.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert found.encoding.categories[0].values == ("3000", "8000")
    path.write_text("zip,y\n3000,0\n8000,1\nA1,1\n")
    with pytest.raises(
        InputError, match=r"line 4: 'A1' in column 'zip' is not a number.*--data-option categorical=zip"
    ):
        data.read(path)
    assert data.read(path, categorical="zip").inputs.shape == (3, 3)


def test_a_kind_that_shows_late(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_ROWS", 2)
    path = tmp_path / "late.csv"
    path.write_text("a,b,y\n,1,0\n,2,1\nred,3,0\nblue,,1\n,5,0\n")
    found = data.read(path, missing="zero", categories="codes")
    assert found.inputs["categories"].tolist() == [[0], [0], [2], [1], [0]]
    assert found.inputs["x"].tolist() == [[1], [2], [3], [0], [5]]
    path.write_text("a,y\n1,0\n2,1\nred,0\n")
    with pytest.raises(InputError, match=r"line 4: 'red' in column 'a' is not a number, but '1' in line 2 is"):
        data.read(path)
    path.write_text("a,y\nred,0\nblue,1\n7,0\n")
    with pytest.raises(InputError, match=r"line 2: 'red' in column 'a' is not a number, but '7' in line 4 is"):
        data.read(path)


def test_a_pair_of_files_is_read_alike(tmp_path):
    (tmp_path / "train.csv").write_text("c,v,y\nred,1,0\nblue,3,1\n")
    (tmp_path / "test.csv").write_text("c,v,y\nblue,5,1\ngreen,,0\n")
    train, test = data.load(tmp_path, categories="codes", scale="standard", missing="mean")
    assert train.inputs["categories"].tolist() == [[2], [1]]
    assert test.inputs["categories"].tolist() == [[1], [0]]
    assert test.inputs["x"].tolist() == [[3], [0]]
    again = data.read(tmp_path / "test.csv", like=train, missing="mean")
    np.testing.assert_array_equal(again.inputs["x"], test.inputs["x"])
    joined = data.read(tmp_path, categories="codes", missing="zero")
    assert joined.inputs["categories"].tolist() == [[2], [1], [1], [0]]


def test_other_tables_of_a_model(tmp_path, path):
    encoding = data.read(path, missing="mean", categories="codes").encoding
    again = Encoding.from_json(encoding.to_json())
    assert again == encoding
    other = tmp_path / "other.csv"
    for text, message in (
        ("age,income,rooms,price\n1,2,3,4\n", r"other\.csv: there is no column 'city'"),
        ("age,city,income,rooms,price\nold,Bern,2,3,4\n", "column 'age' contains text, but contained numbers"),
        ("age,city,income,rooms,price\n1,3000,2,3,4\n", "column 'city' contains numbers, but contained names"),
        ("age,city,income,rooms,price\n1,Bern,2,,4\n", None),
    ):
        other.write_text(text)
        table = reading.read_table(other)
        if message is None:
            assert np.isfinite(again.inputs(table)["x"]).all()
        else:
            with pytest.raises(InputError, match=message):
                again.inputs(table)
    for text in ("", "[]", "{}", '{"numbers": [{"name": "a", "size": 2}], "categories": [], "onehot": true}',
                 '{"numbers": [], "categories": [{"name": "a", "values": 3}], "onehot": true}',
                 '{"numbers": [{"name": "a", "scale": "x"}], "categories": [], "onehot": true}'):  # fmt: skip
        with pytest.raises(InputError, match="the description of a table's columns in the metadata is damaged"):
            Encoding.from_json(text)


@in_one_item()
@pytest.mark.parametrize(
    ("text", "options", "message", "error"),
    [
        (
            TEXT,
            {},
            r"column 'age' has no value in 1 of 5 rows, first in line 3; to fill such cells, train with missing=mean",
            InputError,
        ),
        (TEXT, {"missing": "men"}, "missing must be one of raise, mean, median, zero", UsageError),
        (TEXT, {"missing": "mean", "categories": "hash"}, "categories must be one of onehot, codes", UsageError),
        (TEXT, {"missing": "mean", "scale": "log"}, "scale must be one of", UsageError),
        (TEXT, {"missing": "mean", "colums": "a"}, "no option 'colums'; did you mean 'columns'", UsageError),
        (TEXT, {"header": "maybe"}, "header must be true or false", UsageError),
        ("a,a,y\n1,2,3\n", {}, "two columns have the name 'a'", InputError),
        (
            "a,y\n1,0\n2\n",
            {},
            r"line 3 has 1 column \('2'\); the first line has 2",
            InputError,
        ),
        ("a,b,y\n1,,0\n2,,1\n", {"missing": "mean"}, "column 'b' is empty in all training rows; drop=b", InputError),
        ("y\n1\n2\n", {}, "no column is left", InputError),
        (
            'a,y\n"1,0\n2,1\n',
            {},
            r"line 2 has 1 column",
            InputError,
        ),
        ("a,y\n1,0\n\n2\n3,1\n4,0\n", {}, r"line 4 has 1 column \('2'\)", InputError),
        (
            'a,b,y\n"u\nv",1,0\n\nw,x,1\n',
            {},
            "line 5: 'x' in column 'b' is not a number, but '1' in line 2 is",
            InputError,
        ),
        ("", {}, "the file is empty", InputError),
    ],
)
def test_what_cannot_be_read(tmp_path, text, options, message, error):
    path = tmp_path / "set.csv"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        data.read(path, **options)
    assert "set.csv" in str(caught.value) or error is UsageError


def test_a_column_of_free_text_is_no_category(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text("note,v,y\n" + "".join(f"note {i},{i},{i % 2}\n" for i in range(1500)))
    with pytest.raises(InputError, match=r"column 'note' has 1500 different texts in 1500 rows.*drop=note"):
        data.read(path)
    assert data.read(path, drop="note").inputs.shape == (1500, 1)


def test_separators_and_headers(tmp_path):
    (tmp_path / "a.tsv").write_text("a\ty\n1\t0\n2\t1\n")
    assert data.read(tmp_path / "a.tsv").inputs.tolist() == [[1], [2]]
    (tmp_path / "b.csv").write_text("red;x\nblue;y\nred;y\n")
    found = data.read(tmp_path / "b.csv", delimiter=";", header=False)
    assert found.classes == ("x", "y")
    assert found.inputs.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert len(data.read(tmp_path / "b.csv", delimiter=";")) == 2
    (tmp_path / "c.csv").write_text("1,2,0\n\n3,4,1\n\n")
    assert len(data.read(tmp_path / "c.csv")) == 2


def test_semicolons_and_encodings_of_spreadsheets(tmp_path):
    text = "größe;b;y\n1.5;2;ja\n3;4;nein\n"
    for name, encoding in (("utf8", "utf-8"), ("utf16", "utf-16"), ("latin", "latin-1")):
        (tmp_path / f"{name}.csv").write_text(text, encoding=encoding)
    plain = data.read(tmp_path / "utf8.csv")
    for same in (
        data.read(tmp_path / "utf16.csv"),
        data.read(tmp_path / "latin.csv", encoding="latin-1"),
    ):
        assert same.inputs.tolist() == plain.inputs.tolist() == [[1.5, 2], [3, 4]]
        assert list(same.classes) == ["ja", "nein"]
    assert set(plain.encoding.read(tmp_path / "utf16.csv")) == {"x"}
    for quoted in ('"a, b";y\n1;0\n2;1\n', '"a;b",y\n1,0\n2,1\n'):  # marks in quotes do not count
        (tmp_path / "quoted.csv").write_text(quoted)
        assert data.read(tmp_path / "quoted.csv").inputs.tolist() == [[1], [2]]
    with pytest.raises(InputError, match=r"latin.csv: cannot be read as text: .*--data-option encoding=latin-1"):
        data.read(tmp_path / "latin.csv")
    with pytest.raises(InputError, match="unknown encoding 'latin-9000'"):
        data.read(tmp_path / "latin.csv", encoding="latin-9000")
    (tmp_path / "unmarked.csv").write_bytes(text.encode("utf-16-le"))
    with pytest.raises(InputError, match=r"unmarked.csv: cannot be read as text: UTF-16 stream"):
        data.read(tmp_path / "unmarked.csv", encoding="utf-16")
    for wrong in ("hex", "a\0b", 5):
        with pytest.raises(InputError, match="unknown encoding"):
            data.read(tmp_path / "latin.csv", encoding=wrong)


COMMAS = "größe;b;y\n1,5;-2,25e1;ja\n3;;nein\n"


def test_decimal_commas_are_numbers_if_the_option_says_so(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(COMMAS)
    found = data.read(path, decimal=",", missing="zero")
    assert found.inputs.tolist() == [[1.5, -22.5], [3, 0]]
    path.write_text(COMMAS.split("\n", 1)[1])
    assert data.read(path, decimal=",", missing="zero").inputs.tolist() == [[1.5, -22.5], [3, 0]]
    path.write_text("a;y\n1.5;0,5\n2.5;1,5\n")  # a point is not a decimal mark then
    with pytest.warns(GraphkitWarning, match="column 'a' looks like numbers with points, but is read as text"):
        found = data.read(path, decimal=",")
    assert found.inputs.tolist() == [[1, 0], [0, 1]]
    assert found.targets.tolist() == [0.5, 1.5]
    with pytest.raises(UsageError, match=r'decimal must be "\." or ",", not \'x\''):
        data.read(path, decimal="x")
    path.write_text('a,y\n"1,5",2\n')
    with pytest.raises(UsageError, match="cells are separated by ',', which is also the decimal mark"):
        data.read(path, decimal=",")
    assert data.read(path, decimal=",", delimiter=",").inputs.tolist() == [[1.5]]


def test_columns_that_look_like_decimal_commas_give_a_warning(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b;y\n1,5;x;2,5\n0,25;1,5;1,5\n")
    with pytest.warns(GraphkitWarning, match="a.csv: columns 'a', 'y' look like numbers with decimal commas") as seen:
        data.read(path)
    assert "--data-option decimal=," in str(seen[0].message)
    assert str(seen[0].message).endswith("to keep the text, set categorical=a,y")
    path.write_text("1,5;0\n0,25;1\n")  # the commas in the first line are not between cells
    with pytest.warns(GraphkitWarning, match="column '0' looks like numbers with decimal commas"):
        assert data.read(path).inputs.shape == (2, 2)
    path.write_text("a;y\n1,5;0\n2;1\n")
    with pytest.raises(InputError, match=r"'1,5' in column 'a' is not a number.*set decimal=,"):
        data.read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path.write_text('a,y\n"1,500",0\n"2,500",1\n')  # a comma between thousands
        data.read(path)
        path.write_text("a;y\n1,5;0\n2,5;1\n")
        data.read(path, categorical="a")


def test_points_between_thousands_give_a_warning_or_an_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;y\n1.234,5;0\n2.000;1\n")
    with pytest.warns(GraphkitWarning, match="column 'a' looks like numbers with points, ") as seen:
        data.read(path, decimal=",")
    assert str(seen[0].message).endswith("write decimal points as commas; to keep the text, set categorical=a")
    path.write_text("a;y\n4,5;0\n1.234,5;1\n")
    with pytest.raises(InputError, match=r"line 3: '1\.234,5' in column 'a' is not a number.*remove points between"):
        data.read(path, decimal=",")


def test_numbers_beside_any_space_and_in_any_digits(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n1,8\x1c,p\n\u00a02,\u0663,q\n", encoding="utf-8")
    assert data.read(tmp_path / "a.csv").inputs.tolist() == [[1, 8], [2, 3]]


# --- Parquet ----------------------------------------------------------------------------------------


def test_parquet_and_csv_are_read_alike(tmp_path, path):
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    pa.parquet.write_table(pa.csv.read_csv(path, convert_options=convert), tmp_path / "houses.parquet")
    options = {"missing": "mean", "categories": "codes", "scale": "standard", "indicator": True}
    text, binary = data.load(path, **options), data.load(tmp_path / "houses.parquet", **options)
    for one, other in zip(text, binary, strict=True):
        assert list(one.inputs) == list(other.inputs)
        for name in one.inputs:
            np.testing.assert_array_equal(one.inputs[name], other.inputs[name])
        np.testing.assert_array_equal(one.targets, other.targets)
    assert text.train.encoding == binary.train.encoding


def test_types_of_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")

    path = tmp_path / "a.parquet"
    columns = {
        "i": pa.array([1, None, 3], pa.int8()),
        "b": pa.array([True, False, None]),
        "d": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")]),
        "f": pa.array([0.5, float("nan"), 2.0], pa.float32()),
        "c": pa.array(["u", None, "v"]).dictionary_encode(),
        "y": pa.array([0, 1, 1]),
    }
    pa.parquet.write_table(pa.table(columns), path)
    found = data.read(path, missing="zero", categories="codes")
    assert found.inputs["x"].tolist() == [[1, 1, 1.5, 0.5], [0, 0, 0, 0], [3, 0, 2.25, 2]]
    assert found.inputs["categories"].tolist() == [[1], [0], [2]]
    pa.parquet.write_table(pa.table(columns | {"t": pa.array([datetime.date(2020, 1, 1)] * 3)}), path)
    with pytest.raises(InputError, match=r"column 't' contains date32.*drop=t"):
        data.read(path, missing="zero", target="y")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
        data.read(path)
    pa.parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    with pytest.raises(InputError, match="the table has no rows"):
        data.read(path)


def test_dates_can_be_left_out(tmp_path):
    pa = pytest.importorskip("pyarrow")

    path = tmp_path / "a.parquet"
    pa.parquet.write_table(
        pa.table({"v": [1.0, 2.0], "t": pa.array([datetime.date(2020, 1, 1)] * 2), "y": [0, 1]}), path
    )
    assert data.read(path, drop="t").inputs.tolist() == [[1], [2]]


# --- ratings ----------------------------------------------------------------------------------------

RATINGS = [(10, 7, 3.0, 30), (2, 7, 4.5, 10), (10, 300, 1.0, 20), (2, 5, 2.0, 50), (2, 300, 5.0, 50)]


@in_one_item()
@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ratings.csv"])
def test_movielens(tmp_path, name):
    mark = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}[name]
    lines = [mark.join(map(str, row)) for row in RATINGS]
    if name == "ratings.csv":
        lines.insert(0, "userId,movieId,rating,timestamp")
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    for spec in (tmp_path, f"ratings:{tmp_path}", f"ratings:{tmp_path / name}"):
        found = data.read(spec)
        assert found.users == ("2", "10")
        assert found.items == ("5", "7", "300")
        assert found.inputs["user"].tolist() == [1, 0, 1, 0, 0]
        assert found.inputs["item"].tolist() == [1, 1, 2, 0, 2]
        assert found.targets.tolist() == [3.0, 4.5, 1.0, 2.0, 5.0]
    train, test = data.load(tmp_path, held_out="last")
    # Of two at the same time, the one that stands last.
    assert test.targets.tolist() == [3.0, 5.0]
    assert train.targets.tolist() == [4.5, 1.0, 2.0]
    assert [len(part) for part in data.load(tmp_path, test_fraction=0.4)] == [3, 2]


@in_one_item()
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\t2\n", "expected the columns user, item, rating and optionally time, not 2 columns"),
        ("1 2 3\n", "tabs, :: or commas"),
        ("", "tabs, :: or commas"),
        ("1\t2\tgood\t4\n2\t2\tbad\t4\n", "contains text, but ratings and times must be numbers"),
        ("1\t2\t3\t4\n1\t\t3\t4\n", "line 2: the item is missing"),
        ("1\t2\t3\t4\n1\t3\t\t4\n", "line 2: the rating is missing"),
    ],
)
def test_bad_ratings(tmp_path, text, message):
    (tmp_path / "u.data").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        data.read(f"ratings:{tmp_path}")
    assert "u.data" in str(caught.value)


def test_ratings_without_times(tmp_path):
    (tmp_path / "r.csv").write_text("1,2,3\n1,3,4\n")
    assert len(data.read(f"ratings:{tmp_path / 'r.csv'}")) == 2
    with pytest.raises(InputError, match="needs times"):
        data.load(f"ratings:{tmp_path / 'r.csv'}", held_out="last")
    with pytest.raises(UsageError, match="held_out must be random or last"):
        data.load(f"ratings:{tmp_path / 'r.csv'}", held_out="first")


# --- models -----------------------------------------------------------------------------------------


def test_a_model_reads_tables_by_its_metadata(path, tmp_path, capsys):
    import json

    import graphkit as gk
    from graphkit.cli import invoke

    (tmp_path / "more.csv").write_text("note,rooms,city,age,income\nfine,3,Chur,33,1200\n,1,Rom,,\n")
    x, c = gk.input("x", ["N", 3]), gk.input("categories", ["N", 1], "int64")
    embedded = gk.flatten(gk.nn.embedding(c, 4, 2, name="city"))
    net = gk.Model({"price": gk.nn.linear(gk.concat([x, embedded], axis=1), 1, name="fc")}, name="houses")
    net.save(tmp_path / "net.json")
    options = [f"--data-option={o}" for o in ("missing=mean", "categories=codes", "scale=standard")]
    train = ["train", str(tmp_path / "net.json"), "--data", str(path), *options, "--loss", "mse", "--lr", "0.01"]
    assert invoke([*train, "-o", str(tmp_path / "run")]) == 0
    assert invoke(["export", str(tmp_path / "run"), "-o", str(tmp_path / "net.onnx")]) == 0
    capsys.readouterr()
    assert invoke(["run", str(tmp_path / "net.onnx"), str(tmp_path / "more.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outputs"][0]
    assert found["shape"] == [2, 1]
    model = gk.load(tmp_path / "net.onnx")
    encoding = Encoding.from_json(model.meta["columns"])
    expected = model.compile().run(encoding.inputs(reading.read_table(tmp_path / "more.csv")))["price"]
    np.testing.assert_allclose(found["values"], expected, rtol=1e-6)
    assert invoke(["run", str(tmp_path / "net.json"), str(path)]) == 2
    assert "do not describe how columns of a table become inputs" in capsys.readouterr().err
    (tmp_path / "more.csv").write_text("rooms,city,age\n3,Chur,33\n")
    assert invoke(["run", str(tmp_path / "net.onnx"), str(tmp_path / "more.csv")]) == 2
    assert "no column 'income'" in capsys.readouterr().err
