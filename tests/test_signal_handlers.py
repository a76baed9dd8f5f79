"""A test module that changes a signal's handler fails, and the next module has the handler back."""

import signal

import pytest
from signal_handlers import handlers_unchanged


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_changed_handler_fails_the_module(number):
    before = signal.getsignal(number)
    with (
        pytest.raises(pytest.fail.Exception, match=rf"^tests/some\.py changes handlers of signals: {number.name} from"),
        handlers_unchanged("tests/some.py"),
    ):
        signal.signal(number, signal.SIG_IGN)
    assert signal.getsignal(number) is before


def test_restored_handler_is_no_error():
    with handlers_unchanged("tests/some.py"):
        signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
