"""Log lines, also on a stream that is not read."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import threading
import time
import weakref

import numpy as np

from graphkit.serving.logs import _Lines, _Pauses, json_logs

logger = logging.getLogger("graphkit.serve")


def test_a_pipe_that_nobody_reads_does_not_stop_the_server(monkeypatch):
    """Lines beyond the limit are counted, and written once the pipe is read."""
    monkeypatch.setattr("graphkit.serving.logs._MOST_WAITING", 8)
    monkeypatch.setattr("graphkit.serving.logs._LAST_LINES", 0.05)
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    with os.fdopen(writes, "w") as stream, os.fdopen(reads, "rb") as pipe:
        with json_logs(stream):
            for _ in range(20):
                logger.info("x" * (1 << 16))
        (thread,) = (each for each in threading.enumerate() if each.name == "graphkit-logs")
        found = b""
        while thread.is_alive():
            found += pipe.read() or b""
            time.sleep(0.001)
        found += pipe.read() or b""
    lines = [json.loads(line) for line in found.splitlines()]
    lost = [line["lines"] for line in lines if "lost" in line["event"]]
    assert 8 <= len(lines) - len(lost) <= 10
    assert len(lines) - len(lost) + sum(lost) == 20


def test_streams_without_a_descriptor():
    stream = io.StringIO()
    with json_logs(stream):
        logger.warning("event", extra={"model": "m"})
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["level"], line["event"], line["model"]) == ("warning", "event", "m")


def test_many_lines_are_written_together():
    class Stream(io.StringIO):
        writes = 0

        def write(self, text):
            self.writes += 1
            return super().write(text)

    stream = Stream()
    with json_logs(stream):
        for number in range(100):
            logger.info("event", extra={"number": number})
    assert [json.loads(line)["number"] for line in stream.getvalue().splitlines()] == list(range(100))
    assert stream.writes < 50


def test_pauses_grow_while_lines_keep_coming():
    """80 lines per second wake the thread 3 times per second. A line after a silence is written soon."""
    pauses, now, wakes = _Pauses(), 0.0, 0
    while now < 10:
        now += pauses.next(now)
        pauses.written(now)
        wakes += 1
        now += 1 / 80
    assert wakes < 40
    assert [pauses.next(now + 1), pauses.next(now + 2)] == [0.02, 0.02]


def test_stop_while_lines_are_taken_ends_the_thread():
    lines = _Lines(io.StringIO())
    clear = lines._new.clear

    def stop_and_clear():
        lines._stopping.set()
        lines._hurry.set()
        lines._new.set()
        clear()

    lines._new.clear = stop_and_clear
    lines.start()
    lines._new.set()
    lines._thread.join(10)
    assert not lines._thread.is_alive()


def test_many_lines_are_written_before_the_pause_ends(monkeypatch):
    """Otherwise lines beyond the limit would be lost, although the stream is fast."""
    monkeypatch.setattr("graphkit.serving.logs._MOST_WAITING", 8)
    monkeypatch.setattr("graphkit.serving.logs._COLLECTING", 60)
    stream, patience = io.StringIO(), time.monotonic() + 10
    with json_logs(stream):
        for _ in range(4):
            logger.info("line")
        while stream.getvalue().count("\n") < 4 and time.monotonic() < patience:
            time.sleep(0.001)
        assert stream.getvalue().count("\n") == 4


def test_a_line_that_cannot_be_written_does_not_end_the_others():
    stream = io.StringIO()
    with json_logs(stream):
        logger.info("%d rows", "three")
        logger.info("event")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["text"]) == ("a log line cannot be written", "%d rows")
    assert second["event"] == "event"


def test_a_full_pipe_that_does_not_block_loses_nothing():
    """Processes that share a pipe share this flag."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    found = []
    with os.fdopen(writes, "w") as stream, os.fdopen(reads) as pipe:
        reader = threading.Thread(target=lambda: found.extend(pipe))
        with json_logs(stream):
            for _ in range(10):
                logger.info("x" * (1 << 16))
            until = time.monotonic() + 60
            while select.select([], [writes], [], 0)[1]:  # until the pipe is full
                assert time.monotonic() < until
                time.sleep(0.001)
            reader.start()
        stream.close()
        reader.join(60)
    assert [json.loads(line)["event"] for line in found] == ["x" * (1 << 16)] * 10


def test_waiting_lines_do_not_keep_the_frames_of_errors():
    writes, go, kept = threading.Event(), threading.Event(), []

    class Stream(io.StringIO):
        def write(self, text):
            writes.set()
            assert go.wait(60)
            return super().write(text)

    def fail():
        body = np.zeros(3)
        kept.append(weakref.ref(body))
        raise ValueError("no")

    stream = Stream()
    with json_logs(stream):
        logger.info("event")
        assert writes.wait(60)
        try:
            fail()
        except ValueError:
            logger.exception("request failed")
        assert kept[0]() is None
        go.set()
    assert "ValueError: no" in json.loads(stream.getvalue().splitlines()[1])["traceback"]
