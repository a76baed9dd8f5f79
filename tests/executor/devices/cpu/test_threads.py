"""The allowed numbers of threads, and systems that give fewer threads than requested."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from combinations import full, in_one_item

import graphkit as gk
from graphkit import config
from graphkit.cores import allowed_cores
from graphkit.errors import UsageError
from graphkit.executor.run.engine import Engine
from graphkit.onnx_io.compare import OnnxRuntimeModel

TOO_MANY = config.THREADS_PER_CORE * allowed_cores() + 1


def model():
    x = gk.input("x", ["N", 8, 16, 16])
    h = gk.relu(gk.nn.conv2d(x, 32, kernel=3, pad=1, name="c"))
    h = gk.softmax(gk.nn.linear(gk.flatten(h), 64, name="f"))
    return gk.Model(gk.reduce_sum(gk.exp(h), axes=(1,), keepdims=False) + gk.reduce_max(h), name="net")


@pytest.mark.full
@in_one_item()
@pytest.mark.parametrize(
    "ask",
    [
        lambda n: model().compile(threads=n),
        lambda n: gk.Trainer(model(), "mse", threads=n),
        lambda n: gk.verify(model(), threads=n),
        lambda n: OnnxRuntimeModel(model().to_onnx(), threads=n),
    ],
    ids=["compile", "Trainer", "verify", "onnxruntime"],
)
@pytest.mark.parametrize("threads", [TOO_MANY, 100_000, 2**40, 0, -1])
def test_too_many_threads_are_refused(ask, threads):
    with pytest.raises(UsageError, match=f"threads={threads}: (at most .* cores|expected a positive)"):
        ask(threads)


def test_as_many_threads_as_are_allowed_compute_the_same():
    x = np.random.default_rng(0).standard_normal((4, 8, 16, 16)).astype(np.float32)
    one, most = (model().compile(threads=n, seed=0).run({"x": x}) for n in (1, TOO_MANY - 1))
    for name in one:
        np.testing.assert_allclose(most[name], one[name], rtol=1e-5)


def test_too_many_by_the_environment_are_refused(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_NUM_THREADS", "100000")
    with pytest.raises(UsageError, match="GRAPHKIT_NUM_THREADS=100000: at most"):
        model().compile()


@in_one_item()
@pytest.mark.parametrize("workers", [0, -1, config.MOST_WORKERS + 1, 100_000])
def test_engines_have_a_limited_number_of_workers(workers):
    with pytest.raises(UsageError, match=f"workers={workers}: expected a number from 1 to {config.MOST_WORKERS}"):
        Engine(workers=workers)


@pytest.mark.parametrize("command", ["run", "bench", "train"])
def test_commands_exit_with_2(tmp_path, command, capsys):
    from graphkit.cli import invoke

    model().save(tmp_path / "net.json")
    more = ["--data", "digits"] if command == "train" else []
    assert invoke([command, str(tmp_path / "net.json"), "--threads", "100000", *more]) == 2
    assert "threads=100000: at most" in capsys.readouterr().err


def python(code, **environment):
    code = textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | environment,
    )  # fmt: skip


COMPARE = """
    import threading, numpy as np, graphkit as gk
    x = gk.input("x", ["N", 8, 16, 16])
    h = gk.relu(gk.nn.conv2d(x, 32, kernel=3, pad=1, name="c"))
    y = gk.softmax(gk.nn.linear(gk.flatten(h), 64, name="f"))
    loss = gk.reduce_mean(y * gk.constant(value=np.arange(64, dtype=np.float32)))
    net = gk.Model({"y": h, "loss": loss})
    whole = gk.grad(net, of="loss", wrt=["x", "c_weight", "f_weight"])
    data = np.random.default_rng(0).standard_normal((4, 8, 16, 16)).astype(np.float32)
    def compare():
        for made in (net, whole):
            one, several = (made.compile(threads=n).run({"x": data}) for n in (1, 2))
            for name in one:
                np.testing.assert_allclose(several[name], one[name], rtol=1e-4, atol=1e-6, err_msg=name)
    compare()
    second = threading.Thread(target=compare)
    second.start()
    second.join()
    print(len(__import__("os").listdir("/proc/self/task")) < 64, "done")
"""


FEWER_THREADS = {"OMP_THREAD_LIMIT": "1", "OMP_DYNAMIC": "true", "OMP_MAX_ACTIVE_LEVELS": "0"}


@pytest.mark.parametrize(
    "environment",
    [
        FEWER_THREADS,
        full({"OMP_NUM_THREADS": "100000"}),
        *(pytest.param({name: value}, marks=pytest.mark.full) for name, value in FEWER_THREADS.items()),
    ],
    ids=lambda e: "-".join(e),
)
def test_what_openmp_is_told_changes_nothing(environment):
    done = python(COMPARE, **environment)
    assert (done.returncode, done.stdout) == (0, "True done\n"), done.stderr


NO_THREADS = """
    import resource, sys
    import numpy as np, graphkit as gk
    from graphkit.errors import RuntimeFailure
    from graphkit.executor.run.engine import Engine
    x = gk.input("x", [1 << 20])
    net = gk.Model(gk.exp(x))
    feeds = {"x": np.zeros(1 << 20, np.float32)}
    np.testing.assert_array_equal(net.compile(threads=1).run(feeds)["exp"], 1)
    runner, engine = net.compile(threads=4), Engine(workers=4)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    # The stack of a thread takes 8 MB of addresses, but only 7 MB are left. The result takes 4 MB.
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (7 << 20), resource.RLIM_INFINITY))
    for call in (lambda: runner.run(feeds), lambda: engine.push(print)):
        try:
            call()
        except RuntimeFailure as error:
            print(error)
"""


def test_a_system_without_threads_is_an_error():
    done = python(NO_THREADS)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "the system gives no more than 1 of 4 threads" in first
    assert "the system gives no further thread" in second
