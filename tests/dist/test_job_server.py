"""Jobs that run the code of tests: failures name the rank, and others start in place of a broken one."""

import pytest
from job_server import JobError, running


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("if kv.rank == 1: raise ValueError('no data')\nkv.barrier()", r"rank 1: .*ValueError: no data"),
        ("import os\nif kv.rank == 1: os._exit(0)\nkv.barrier()", r"rank 1: it has ended"),
        ("kv.push('w', 1.0) if kv.rank else None", r"rank 1: .*'w' is not initialised"),
    ],
)
def test_code_that_fails_is_an_error_and_another_job_starts(code, message):
    with running() as jobs:
        assert jobs.run("print(kv.rank)") == ["0\n", "1\n"]
        with pytest.raises(JobError, match=f"(?s){message}"):
            jobs.run(code)
        assert jobs.run("import sys\nprint('warned', file=sys.stderr)") == ["warned\n"] * 2


@pytest.mark.full
def test_a_job_that_does_not_end_in_time_is_an_error():
    with running() as jobs:
        assert jobs.run("pass") == ["", ""]
        (job,) = jobs._jobs.values()
        with pytest.raises(JobError, match="rank 1 does not answer"):
            job.run("import time\nif kv.rank == 1: time.sleep(1000)", timeout=1)
        assert job.broken


@pytest.mark.full
def test_calls_of_one_code_do_not_meet_those_of_the_next():
    with running() as jobs, pytest.raises(JobError, match="make different calls"):
        jobs.run("kv.init('w', 0.0)\nif kv.rank: kv.push('w', 1.0)")
