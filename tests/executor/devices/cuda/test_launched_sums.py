"""All-reduces that a device launches itself: their order, their stream, and their recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from stand_in import Card
from together import together

from graphkit.executor.devices.bound_steps import BoundStep
from graphkit.executor.lower.arrays.launched_sum import SumQueue, _order
from graphkit.executor.lower.collaborators import RunAgreement
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.internal.collective import AllReduceStart


class Told:
    """DeviceSums that record the launches."""

    broken = False

    def __init__(self, met: Sequence[RunAgreement] = ()) -> None:
        self.left: list[BaseException] = []
        self._met = list(met)

    def agree(self, order: str, nbytes: int, can_record: bool, recording: int, structure: int) -> RunAgreement:
        assert 0 < structure < 2**20
        return self._met.pop(0)

    def wait(self, done: Callable[[], bool]) -> None:
        assert done()

    def fail(self, error: BaseException) -> None:
        self.left.append(error)


def queue_of(keys: Sequence[str], steps: Sequence[Any], sums: Any) -> tuple[SumQueue, Card, Any]:
    card = Card(None)  # type: ignore[arg-type]
    nodes = [Node(AllReduceStart(key=key), [Value(TensorType("float32", (3,)))]) for key in keys]
    stream = card.stream()
    made = SumQueue(card, stream, sums, nodes, steps)  # type: ignore[arg-type]
    made.set_recordings([keys])
    return made, card, stream


STEPS = [("b", None), ("a", None), ("c", None), (None, ("a", "b", "c"))]


def test_launches_are_in_the_order_of_the_graph() -> None:
    done: list[str] = []
    queue, card, stream = queue_of("abc", STEPS, Told([RunAgreement(False, 0, 0)] * 2))
    for _ in range(2):
        with card.on(stream), queue.taking_part():
            queue.agree(False)
            for key, _ in STEPS[:3]:
                queue.begin(key, launch(card, done, key))
            assert done == []
            queue.stream_wait(["a", "c", "b"])
        assert done == ["a", "b", "c"]
        done.clear()


def launch(card: Card, done: list[str], key: str) -> Callable[[], None]:
    return lambda: card.current.queue(lambda: done.append(key))


def test_recordings_without_sums_are_each_process_s_own() -> None:
    queue, _, _ = queue_of("ab", STEPS[:2], Told())
    found = []
    for recordings in ([["a"], ["b"]], [[], ["a"], [], ["b"]], [["a", "b"]], [["a"]], []):
        queue.set_recordings(recordings)
        found.append(queue._structure)
    assert found[0] == found[1]
    assert len({*found}) == 4


def test_an_order_in_which_a_step_would_wait_for_ever_is_not_taken() -> None:
    assert _order("abc", STEPS) == "abc"
    assert _order("abc", [("b", None), (None, ("b",)), ("a", None), ("c", None), (None, ("a", "c"))]) == ["b", "a", "c"]
    assert _order("ab", [("a", None), (None, ()), ("b", None), (None, ("a", "b"))]) == "ab"


def test_a_recording_has_what_is_beside_the_stream() -> None:
    """Behind a replay a run is as far as behind the steps; the sum is between what was before it and what follows."""
    done: list[str] = []
    queue, card, stream = queue_of(
        "ab", [("b", None), ("a", None), (None, ("a", "b"))], Told([RunAgreement(True, 0, 1)])
    )

    class Steps:
        can_be_recorded = True

        def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
            card.current.queue(lambda: done.append("before"))
            queue.begin("b", launch(card, done, "b"))

    for early in (False, True):
        card.early = early
        with card.on(stream):
            queue._launched, queue._ready = 0, {}
            with queue.recording():
                replay = card.record(stream, [BoundStep(Steps(), (), (), None), queue.join_step])
            progress = queue.progress
            assert progress.launched == 0
            for _ in range(2):
                replay()
                queue.resume(progress)
                queue.begin("a", launch(card, done, "a"))
                card.current.queue(lambda: done.append("beside"))
                queue.stream_wait(["b"])
                card.current.queue(lambda: done.append("after"))
                queue.join()
                card.synchronize(stream)
                assert done.index("before") < done.index("a") < done.index("b") < done.index("after")
                done.clear()


@together()
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(("meets", "begun", "told"), [(False, 0, 0), (True, 0, 1), (True, 2, 1), (True, 3, 0)])
def test_who_leaves_before_the_last_sum_says_so(error: type[BaseException], meets: bool, begun: int, told: int) -> None:
    """Before the first collective and after the last one, no notification is needed."""
    sums = Told([RunAgreement(False, 0, 0)])
    queue, card, stream = queue_of("abc", STEPS, sums)

    def leave() -> None:
        with card.on(stream), queue.taking_part():
            if meets:
                queue.agree(False)
            for key, _ in STEPS[:begun]:
                queue.begin(key, lambda: None)
            raise error

    with pytest.raises(error):
        leave()
    assert len(sums.left) == told
