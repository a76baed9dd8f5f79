"""Measurements of `graphkit bench allreduce` in a job of two ranks."""

import json

import pytest


@pytest.mark.parametrize("compression", [None, "2bit:0.5"])
def test_all_reduce_is_compared_and_measured(jobs, compression):
    outputs = jobs.run(
        f"""
        import json
        from graphkit.dist.measure import measure
        print(json.dumps(measure([4, 6000], 2, {compression!r})))
        """,
        2,
    )
    first, second = map(json.loads, outputs)
    assert first == second
    assert first["processes"] == 2
    assert [row["bytes"] for row in first["rows"]] == [4, 6000]
    for row in first["rows"]:
        assert compression or row["sent_bytes"] == row["bytes"]
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in row["seconds"].values())


def test_a_wrong_sum_is_an_error(jobs):
    jobs.run(
        """
        from unittest import mock
        from graphkit.dist.job.mpi import MpiCommunicator
        from graphkit.dist.measure import measure
        from graphkit.errors import RuntimeFailure
        with mock.patch.object(MpiCommunicator, "raw_allreduce", lambda self, given, out: out.fill(0.5)):
            try:
                measure([400], 1, "2bit:0.5")
            except RuntimeFailure as error:
                assert "the sum of 400 bytes by mpi is wrong" in str(error), error
            else:
                raise AssertionError("the wrong sum was not seen")
        """,
        2,
    )
