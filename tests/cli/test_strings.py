"""Strings on the command line: in and out of files without pickle, and as JSON."""

from __future__ import annotations

import json

import numpy as np

import graphkit as gk


def test_strings_through_npz(call, tmp_path):
    words = gk.input("words", ["N"], dtype="string")
    net = gk.Model({"joined": gk.string_concat(words, words), "n": gk.size(words)}, name="words")
    net.save(tmp_path / "net.json")
    np.savez(tmp_path / "in.npz", words=np.array(["a", "zwölf", ""]))
    code, _, _ = call("run", tmp_path / "net.json", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert code == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as written:
        assert written["joined"].tolist() == ["aa", "zwölfzwölf", ""]
    code, out, _ = call("run", tmp_path / "net.json", tmp_path / "in.npz", "--json")
    assert json.loads(out)["outputs"][0]["values"] == ["aa", "zwölfzwölf", ""]


def test_a_string_that_npz_cannot_hold(call, tmp_path):
    gk.Model({"y": gk.identity(gk.constant(np.array(["a\0"], object)))}, name="zero").save(tmp_path / "net.json")
    code, _, err = call("run", tmp_path / "net.json", "-o", tmp_path / "out.npz")
    assert code == 2
    assert "ends with a zero byte" in err
    assert not (tmp_path / "out.npz").exists()
