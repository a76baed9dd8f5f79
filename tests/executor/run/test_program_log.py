"""Output of the levels of GRAPHKIT_DEBUG about passes and programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import config
from graphkit.errors import UsageError
from graphkit.ops import F


def _net(name: str = "net") -> gk.Model:
    x = gk.input("x", ["N", 3])
    return gk.Model(F.relu(F.neg(gk.nn.linear(x, 4, name="fc"))), name=name)


def _log(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sizes: tuple[int, ...] = (2,)
) -> list[str]:
    """The lines that running a network at these batch sizes prints."""
    monkeypatch.setenv("GRAPHKIT_DEBUG", level)
    executor = _net().compile()
    for size in sizes:
        executor.run({"x": np.ones((size, 3), np.float32)})
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("level", ["0", "", "false", "off", "No"])
def test_off_prints_nothing(level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _log(level, monkeypatch, capsys, (1, 2, 1)) == []


@pytest.mark.parametrize("level", ["1", "true", "Yes", "on"])
def test_level_1_prints_passes_and_programs(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _log(level, monkeypatch, capsys, (2, 1, 2))
    passes = [line for line in lines if line.startswith("graphkit: pass ")]
    programs = [line for line in lines if line.startswith("graphkit: program of graph 'net' for x [")]
    assert not any(line.endswith(" ms") for line in passes)
    assert len(programs) == 2
    assert "for x [2, 3] (cpu, " in programs[0]
    assert " step" in programs[0]
    assert "arena" in programs[0]
    assert len(passes) + len(programs) == len(lines)


def test_level_2_prints_times_reasons_and_hits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _log("2", monkeypatch, capsys, (2, 1, 2))
    assert all(line.endswith(" ms") for line in lines if line.startswith("graphkit: pass "))
    assert "graphkit: program of graph 'net' for x [2, 3]: made because there is no program yet" in lines
    assert (
        "graphkit: program of graph 'net' for x [1, 3]: made because the shapes have changed: "
        "x [2, 3] -> [1, 3]" in lines
    )
    assert "graphkit: program for [2, 3]: found" in lines
    assert not any(line.startswith("step ") for line in lines)


def test_level_2_names_interpreted_nodes_with_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHKIT_DEBUG", "2")
    words = gk.input("words", [3], "string")
    executor = gk.Model(F.string_concat(words, words, name="twice"), name="texts").compile()
    executor.run({"words": np.array(["a", "b", "c"], object)})
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("graphkit: node 'twice' (StringConcat) is interpreted") for line in lines)


def test_level_2_tells_when_a_program_comes_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _log("2", monkeypatch, capsys, (2, *([1] * 40)))
    assert any(line.endswith("made because these shapes occur often, so compiling pays") for line in lines)


def test_level_2_tells_what_was_dropped_and_made_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHKIT_CACHE_MB", "1")
    monkeypatch.setattr("graphkit.executor.run.program._STEP_BYTES", 1 << 20)
    monkeypatch.setattr("graphkit.executor.run.sized_program._STEP_BYTES", 1 << 20)
    lines = _log("2", monkeypatch, capsys, (1, 2, 3, 4, 5, 6, 1))
    assert any("program for [1, 3]: dropped, " in line and "GRAPHKIT_CACHE_MB" in line for line in lines)
    assert any("for x [1, 3]: made because the program for these shapes was dropped" in line for line in lines)


def test_level_2_tells_of_other_outputs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GRAPHKIT_DEBUG", "2")
    x = gk.input("x", [3])
    executor = gk.Model({"a": F.neg(x), "b": F.exp(x)}, name="two").compile()
    executor.run({"x": np.ones(3, np.float32)})
    executor.run({"x": np.ones(3, np.float32)}, ["b"])
    log = capsys.readouterr().err
    assert "for fixed shapes: made because there is no program yet" in log
    assert "made because other outputs are selected, or other parameters are fed" in log


def test_level_2_tells_of_the_cache_on_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHKIT_CACHE", str(tmp_path))
    monkeypatch.setattr("graphkit.executor.memory.plan_cache.MIN_STEPS", 1)
    first, second = (_log("2", monkeypatch, capsys) for _ in range(2))
    assert any(line.startswith(f"graphkit: cache: layout not in {tmp_path}") for line in first)
    assert any(line.startswith(f"graphkit: cache: layout read from {tmp_path}") for line in second)


def test_level_3_prints_graphs_and_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _log("3", monkeypatch, capsys)
    assert "graph net {" in lines
    assert any(line.startswith("step ") for line in lines)
    assert any(line.startswith("arena ") for line in lines)


@in_one_item()
@pytest.mark.parametrize("value", ["4", "-1", "1.5", "debug", "٣"])
def test_other_values_are_errors_that_name_the_levels(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_DEBUG", value)
    with pytest.raises(UsageError, match=r"GRAPHKIT_DEBUG=.*expected 0, 1, 2 or 3 \(true, yes and on mean 1"):
        config.DEBUG.get()


def test_log_lines_escape_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHKIT_DEBUG", "1")
    _net("evil\x1b[2J\nname").compile().run({"x": np.ones((1, 3), np.float32)})
    log = capsys.readouterr().err
    assert "\x1b" not in log
    assert all(line.startswith("graphkit: ") for line in log.splitlines())
