"""Saved files (.gkp) with programs for several shapes."""

import numpy as np
import pytest
from saved_programs import assert_same_bits, random_feeds

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, UnsupportedError, UsageError
from graphkit.executor.run.c_runtime import CSession


def test_a_file_has_programs_for_several_shapes(mlp, tmp_path):
    path, shapes = tmp_path / "net.gkp", [{"x": (rows, 12)} for rows in (1, 4, 33)]
    mlp.save(path, shapes=shapes)
    with CSession(path) as session:
        assert [inputs["x"][1] for inputs, _ in session.programs] == [(1, 12), (4, 12), (33, 12)]
        for each in (*shapes, shapes[0]):
            feeds = random_feeds(mlp, each)
            assert_same_bits(session.run(feeds), mlp.compile().run(feeds))
        with pytest.raises(
            InputError,
            match=r"no program for these shapes, but for: x \[1, 12\]; x \[4, 12\]; x \[33, 12\]; given: x \[4, 11\]",
        ):
            session.run({"x": np.zeros((4, 11), np.float32)})
        with pytest.raises(InputError, match="'x' must be float32"):
            session.run({"x": np.zeros(12, np.float32)})


def test_programs_of_a_file_share_weights_and_random_state(tmp_path):
    x = gk.input("x", ["N", 256])
    h = gk.dropout(gk.nn.linear(x, 256, name="fc"), 0.5, training_mode=True)[0]
    net, sizes = gk.Model({"y": h}), {}
    for rows in ([2], [2, 3]):
        net.save(tmp_path / "net.gkp", shapes=[{"x": (n, 256)} for n in rows])
        sizes[len(rows)] = (tmp_path / "net.gkp").stat().st_size
    weights = 256 * 256 * 4
    assert weights < sizes[1] <= sizes[2] < 1.5 * weights
    executor = net.compile(deterministic=True)
    net.save(tmp_path / "net.gkp", shapes=[{"x": (2, 256)}, {"x": (3, 256)}], deterministic=True)
    with CSession(tmp_path / "net.gkp") as session:
        for rows in (2, 3, 3):
            feeds = random_feeds(net, {"x": (rows, 256)})
            assert_same_bits(session.run(feeds), executor.run(feeds))
        assert session.rng == executor.rng == (0, 3)


def test_one_shape_is_saved_once(mlp, tmp_path):
    with pytest.raises(UsageError, match="no shapes are given"):
        mlp.save(tmp_path / "net.gkp", shapes=[])
    with pytest.raises(UsageError, match=r"two programs for the same shapes .*: x \[4, 12\]"):
        mlp.save(tmp_path / "net.gkp", shapes=[{"x": (4, 12)}] * 2)
    with pytest.raises(UsageError, match=r"two programs for the same shapes .*: no inputs"):
        gk.Model({"y": gk.random_uniform(shape=(3,))}).save(tmp_path / "net.gkp", shapes=[{}, {}])


def test_ranks_that_depend_on_the_shapes_are_refused(tmp_path):
    net = gk.Model({"y": gk.squeeze(gk.input("x", ["N", 3]))})
    with pytest.raises(UnsupportedError, match=r"output 'y' is float32\[3\] in one program, but float32\[2, 3\]"):
        net.save(tmp_path / "net.gkp", shapes=[{"x": (1, 3)}, {"x": (2, 3)}])
    assert not list(tmp_path.iterdir())


def test_command_exports_programs_for_several_shapes(mlp, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mlp.save("net.json")
    assert cli.invoke(["export", "net.json", "x:4,12", "--also", "x:1,12", "--also", "x:9,12", "-o", "net.gkp"]) == 0
    said = capsys.readouterr().err
    assert "same bits" in said
    assert "runs inputs of the shapes x [N, 12]\n" in said
    with CSession("net.gkp") as session:
        assert [inputs["x"][1] for inputs, _ in session.programs] == [(4, 12), (1, 12), (9, 12)]
    assert cli.invoke(["export", "net.json", "x:4,12", "--also", "x:1,12", "-o", "net.onnx"]) == 2
    assert "--also is for .gkp files" in capsys.readouterr().err
