"""Threads that wake up while other threads compute."""

from __future__ import annotations

import os
import platform
import sys
import threading

import numpy as np
import pytest

from graphkit.dist.wire import scheduling

# Kernels from 6.12 on know slices of single threads.
KNOWN = (
    sys.platform.startswith("linux")
    and platform.machine() in ("x86_64", "aarch64")
    and tuple(int(n) for n in os.uname().release.split(".")[:2]) >= (6, 12)
)


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(not KNOWN, reason="this system has no slices of single threads")
def test_slices_are_of_the_thread_that_asks_and_of_no_other():
    mine = scheduling.time_slice()
    assert in_a_thread(lambda: (scheduling.reduce_wakeup_latency(), scheduling.time_slice())) == (
        True,
        scheduling.SLICE,
    )
    assert scheduling.time_slice() == mine != scheduling.SLICE
    assert in_a_thread(scheduling.time_slice) != scheduling.SLICE


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert in_a_thread(scheduling.reduce_wakeup_latency) is False
    assert scheduling.time_slice() is None


@pytest.mark.skipif(not KNOWN, reason="this system has no slices of single threads")
def test_the_thread_of_sums_is_prompt(on_ranks):
    seen = {}

    def updater(key, gradient, stored):  # called where sums arrive
        seen[threading.current_thread().name] = scheduling.time_slice()

    def work(store):
        store.init("x", np.zeros(3))
        store.set_updater(updater)
        store.push("x", np.ones(3))
        for _ in range(6000):
            if seen:
                break
            threading.Event().wait(0.01)
        store.pull("x")

    on_ranks(work)
    assert seen["graphkit-progress"] == scheduling.SLICE
