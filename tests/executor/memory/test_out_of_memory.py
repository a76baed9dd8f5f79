"""Want of memory, and sizes that cannot be counted, are errors that name the node and the bytes."""

import json
import subprocess
import sys
import textwrap

HEAD = """
    import json, resource, sys
    import numpy as np, graphkit as gk
    from graphkit.errors import OutOfMemory, RuntimeFailure
    limit = 4 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    constant = lambda value, dtype=np.float32: gk.constant(value=np.array(value, dtype))
    x = gk.input("x", ["N"])
    n = gk.input("n", [1], dtype="int64")
    data = np.ones(4, np.float32)
    def run(y, **feeds):
        return gk.Model({"y": y}).compile(threads=1).run(feeds)
    def wide(h):
        return gk.mat_mul(gk.reshape(h, (-1, 1)), gk.reshape(h, (1, -1)))
    SIZED = {
        "constant_of_shape": lambda: gk.constant_of_shape(n),
        "expand": lambda: gk.expand(constant(1), n),
        "tile": lambda: gk.tile(constant([1, 2]), n),
        "range": lambda: gk.range(constant(0, np.int64), gk.squeeze(n), constant(1, np.int64)),
        "one_hot": lambda: gk.one_hot(constant([1, 2], np.int64), gk.squeeze(n), constant([0, 1])),
        "pad": lambda: gk.pad(constant([1, 2]), gk.concat(constant([0], np.int64), n, axis=0)),
        "resize": lambda: gk.resize(constant([[[1, 2]]]), None, None, gk.concat(constant([1, 1], np.int64), n, axis=0)),
    }
    found = []
    for case in json.loads(sys.argv[1]):
        try:
            exec(case)
            found.append("no error")
        except RuntimeFailure as error:
            # A dimension above 2^63 has no type, and needs no memory to be an error.
            assert isinstance(error, OutOfMemory) or "above 2^63" in str(error), case
            assert isinstance(error, MemoryError) or not isinstance(error, OutOfMemory), case
            assert error.exit_code == 5, case
            found.append(str(error))
        assert float(run(gk.exp(x), x=np.zeros(1, np.float32))["y"][0]) == 1, case
    print(json.dumps(found))
"""


def failures(cases):
    """Run the cases in a process with little memory; return the message of each."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(HEAD), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def test_sizes_that_a_run_tells():
    operators = ("constant_of_shape", "pad", "one_hot", "expand", "tile", "range", "resize")
    names = {f'run(SIZED["{o}"](), n=np.array([1 << {n}]))': o for o in operators for n in (34, 62)}
    for case, text in failures([*names]).items():
        name = "".join(part.title() for part in names[case].split("_"))
        assert names[case] in text.lower() or name in text, (case, text)
        assert any(word in text for word in ("bytes", "counted", "shape", "too big", "above 2^63")), (case, text)


KNOWN_BEFORE = {
    "run(gk.reduce_sum(gk.sin(gk.softmax(wide(x)))), x=np.ones(1 << 15, np.float32))": ["MatMul", "4294967296"],
    "run(wide(x), x=np.ones(1 << 15, np.float32))": ["MatMul", "4294967296 bytes"],
    "gk.Model(gk.nn.linear(gk.input('z', ['N', 4]), 1 << 40, name='fc'))": ["'fc_weight'", "17592186044416 bytes"],
    "gk.Model(gk.nn.linear(gk.input('z', ['N', 4]), 1 << 62, name='fc'))": ["'fc_weight'", "bytes"],
    "run(gk.exp(x), x=np.broadcast_to(np.float32(1), (1 << 33,)))": ["input 'x'", "32.0 GiB"],
    "gk.Model(gk.exp(gk.input('z', [1 << 20, 1 << 20]))).compile().plan and run(x, x=data[:0])": ["no error"],
    "gk.Model(gk.exp(gk.input('z', [1 << 40, 1 << 40]))).compile().plan": ["'z'", "bytes"],
    "run(gk.reduce_sum(gk.exp(gk.expand(constant(1), constant([1 << 33], np.int64)))) + x, x=data)": ["bytes"],
    "run(gk.reduce_sum(gk.exp(gk.expand(constant(1), constant([1 << 62], np.int64)))) + x, x=data)": ["bytes"],
}


def test_sizes_that_are_known_before():
    for case, text in failures([*KNOWN_BEFORE]).items():
        assert all(message in text for message in KNOWN_BEFORE[case]), (case, text)
