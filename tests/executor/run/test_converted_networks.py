"""The C library opens networks that a converter, a separate process, writes as programs."""

import concurrent.futures
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from converters import OUTPUT, opened, opened_memory, write_script
from saved_programs import assert_same_bits, random_feeds

import graphkit as gk
from graphkit.executor.run.c_runtime import CSession, library_path


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, which no test may leave anything in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("GRAPHKIT_CONVERTER", raising=False)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def copies(mlp_file, tmp_path):
    """A converter that writes `mlp_file`, and its arguments to the file `arguments`."""
    body = f'printf "%s\\0" "$@" >> "{tmp_path}/arguments"; cp "{mlp_file}" "{OUTPUT}"; chmod 644 "{OUTPUT}"'
    return write_script(tmp_path / "copies", body)


def calls(folder):
    """Return how often the converter `copies` has run."""
    path = folder / "arguments"
    return path.read_bytes().split(b"\0").count(b"export") if path.exists() else 0


def network(folder, name="net.onnx"):
    (folder / name).write_bytes(b"a network")
    return folder / name


NAMES = ["a b'\"$(x)`é;.onnx", "-o.onnx", b"\xe9\xff.json", "net-symbol.json"]


@pytest.mark.parametrize("name", NAMES)
def test_converter_gets_the_name_as_it_is(name, copies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(os.fsdecode(name)).write_bytes(b"a network")
    found = opened(name, converter=copies, converter_arguments=[b"x:4,12", b"--any size"])
    assert (found.status, found.inputs) == ("GK_OK", 1)
    command, model, *options, o, output, shape, more, end = Path("arguments").read_bytes().split(b"\0")
    assert (command, options, o, shape, more, end) == (
        b"export", [b"--no-verify", b"--json"], b"-o", b"x:4,12", b"--any size", b"",
    )  # fmt: skip
    assert model.removeprefix(b"./") == os.fsencode(name)
    assert not model.startswith(b"-")
    assert output.startswith(os.fsencode(os.environ["TMPDIR"]))


def test_only_this_user_can_read_the_program(tmp_path):
    """The converted program is in a folder of mode 0700."""
    script = write_script(tmp_path / "looks", f'stat -c %a "$(dirname "{OUTPUT}")" >&2; exit 5')
    assert opened(network(tmp_path), converter=script).text.endswith(": 700")


def test_saved_programs_open_without_a_converter(mlp_file, tmp_path):
    for name in ("net.onnx", "net.json", "net.gkp"):
        (tmp_path / name).write_bytes(mlp_file.read_bytes())
        assert opened(tmp_path / name, converter=b"").status == "GK_OK"


@pytest.mark.parametrize(
    ("ends", "status", "text"),
    [
        ("exit 1", "GK_ERROR_CONVERTER", "failed with exit code 1: reason"),
        ("exit 2", "GK_ERROR_ARGUMENT", "failed with exit code 2: reason"),
        ("exit 3", "GK_ERROR_UNSUPPORTED", "failed with exit code 3: reason"),
        ("exit 4", "GK_ERROR_FORMAT", "failed with exit code 4: reason"),
        ("exit 5", "GK_ERROR_CONVERTER", "failed with exit code 5: reason"),
        ("kill -9 $$", "GK_ERROR_CONVERTER", "was ended by signal 9: reason"),
        ("exit 0", "GK_ERROR_CONVERTER", "wrote no program"),
        (f'echo damaged > "{OUTPUT}"', "GK_ERROR_CONVERTER", "cannot be opened: not a saved graphkit program"),
    ],
)
def test_failure_of_the_converter_is_reported(ends, status, text, tmp_path):
    script = write_script(tmp_path / "fails", f'echo half > "$(dirname "{OUTPUT}")/half"; echo reason >&2; {ends}')
    found = opened(network(tmp_path), converter=script)
    assert found.status == status
    assert found.text.startswith(f"{tmp_path}/net.onnx: the converter '{tmp_path}/fails' ")
    assert text in found.text
    assert str(tmp_path / "temporary") not in found.text


def test_text_of_an_error_is_bounded(tmp_path):
    script = write_script(tmp_path / "prints", "seq 100000 >&2; seq 100000; printf 'last\\033[31m line' >&2; exit 4")
    text = opened(network(tmp_path), converter=script).text
    assert len(text) < 5000
    assert re.search(r"exit code 4: \.\.\.\n\d+\n.*\n100000\nlast\?\[31m line$", text, re.DOTALL)


def test_end_of_a_long_line_is_shown(tmp_path):
    script = write_script(tmp_path / "prints", "head -c 5000 /dev/zero | tr '\\0' x >&2; echo ' is wrong' >&2; exit 4")
    text = opened(network(tmp_path), converter=script).text
    assert len(text) < 5000
    assert re.search(r"exit code 4: \.\.\.x+ is wrong$", text)


def test_link_is_not_a_program(mlp_file, tmp_path):
    """The file behind it keeps its permissions."""
    mine = tmp_path / "mine.gkp"
    mine.write_bytes(mlp_file.read_bytes())
    mine.chmod(0o644)
    script = write_script(tmp_path / "links", f'ln -s "{mine}" "{OUTPUT}"')
    found = opened(network(tmp_path), converter=script)
    assert (found.status, mine.stat().st_mode & 0o777) == ("GK_ERROR_CONVERTER", 0o644)
    assert "wrote no program" in found.text


class TestWithoutConverter:
    def refused(self, folder, **options):
        found = opened(network(folder), **options)
        assert found.status == "GK_ERROR_CONVERTER"
        assert "graphkit export" in found.text
        assert "gk_options.converter or GRAPHKIT_CONVERTER" in found.text
        return found.text

    def test_error_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", f"{tmp_path}::")
        assert "PATH has no program 'graphkit'." in self.refused(tmp_path)
        assert "PATH has no program 'other' (gk_options.converter)" in self.refused(tmp_path, converter=b"other")
        assert "'/no/file' (gk_options.converter) is not a pro" in self.refused(tmp_path, converter=b"/no/file")
        monkeypatch.setenv("GRAPHKIT_CONVERTER", str(tmp_path))
        assert f"'{tmp_path}' (GRAPHKIT_CONVERTER) is not a program" in self.refused(tmp_path)

    def test_empty_name_forbids_processes(self, copies, tmp_path, monkeypatch):
        monkeypatch.setenv("GRAPHKIT_CONVERTER", os.fsdecode(copies))
        assert 'gk_options.converter is ""' in self.refused(tmp_path, converter=b"")
        assert calls(tmp_path) == 0

    def test_relative_folders_of_path_are_left_out(self, copies, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("graphkit").hardlink_to(os.fsdecode(copies))
        monkeypatch.setenv("PATH", ".::/usr/bin")
        self.refused(tmp_path)

    def test_program_that_cannot_start(self, tmp_path):
        (tmp_path / "empty").touch(mode=0o700)
        found = opened(network(tmp_path), converter=os.fsencode(tmp_path / "empty"))
        assert found.status == "GK_ERROR_CONVERTER"
        assert f"'{tmp_path}/empty' cannot be started: " in found.text


def test_places_of_the_converter(copies, tmp_path, monkeypatch):
    """First gk_options, then the variable, then PATH. Programs that were compiled with the first header can use it."""
    path = network(tmp_path)
    (tmp_path / "graphkit").hardlink_to(os.fsdecode(copies))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert opened(path).status == "GK_OK"
    assert opened(path, size=24).status == "GK_OK"
    monkeypatch.setenv("GRAPHKIT_CONVERTER", "/no/file")
    assert opened(path).status == "GK_ERROR_CONVERTER"
    assert opened(path, converter=b"graphkit").status == "GK_OK"
    monkeypatch.setenv("GRAPHKIT_CONVERTER", os.fsdecode(copies))
    assert opened(path).status == "GK_OK"
    assert calls(tmp_path) == 4


def test_missing_folder_for_temporary_files_is_reported(copies, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    found = opened(network(tmp_path), converter=copies)
    assert found.status == "GK_ERROR_FILE"
    assert found.text.startswith(f"{tmp_path}/none: a folder for the converted program cannot be made: No such file")
    assert found.text.endswith("Set the environment variable TMPDIR to another folder")


def has_ended(process):
    """Whether a process that was killed ends soon."""
    for _ in range(500):
        if not is_running(process):
            return True
        time.sleep(0.01)
    return False


def is_running(process):
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_time_limit_ends_all_processes(tmp_path):
    body = f'sleep 300 & echo $! > "{tmp_path}/inner"; echo begun >&2; touch "{OUTPUT}"; sleep 300'
    script = write_script(tmp_path / "sleeps", body)
    found = opened(network(tmp_path), converter=script, convert_timeout=1.5)
    assert found.status == "GK_ERROR_LIMIT"
    assert found.text.endswith("did not finish within 1.5 s (gk_options.convert_timeout): begun")
    assert has_ended((tmp_path / "inner").read_text().strip())


def test_time_limit_ends_a_converter_that_leaves_its_group(tmp_path):
    moves = "import os, time; os.setpgid(0, os.getpgid(os.getppid())); time.sleep(8); open('ended', 'w')"
    script = write_script(tmp_path / "moves", f'cd "{tmp_path}"; exec "{sys.executable}" -SEc "{moves}"')
    assert opened(network(tmp_path), converter=script, convert_timeout=0.5).status == "GK_ERROR_LIMIT"
    assert not (tmp_path / "ended").exists()


def test_process_that_outlives_the_converter_is_ended(copies, tmp_path):
    """It holds the converter's output open, so that waiting for the end of the output would take 300 seconds."""
    script = write_script(
        tmp_path / "leaves", f'sleep 300 & echo $! > "{tmp_path}/inner"; exec "{copies.decode()}" "$@"'
    )
    assert opened(network(tmp_path), converter=script).status == "GK_OK"
    assert has_ended((tmp_path / "inner").read_text().strip())


@pytest.mark.parametrize("field", ["timeout", "convert_timeout"])
def test_negative_limits_are_refused(field, mlp_file):
    for value in (-1.0, float("nan")):
        assert opened(mlp_file, **{field: value}).status == "GK_ERROR_ARGUMENT"


@contextlib.contextmanager
def handler(number, action):
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_application_that_ignores_its_children(copies, tmp_path):
    """The system then has no exit codes. The converter's JSON has them."""
    fails = write_script(tmp_path / "fails", """printf '{\n "exit_code": 3,\n "message": "no"\n}\n'; exit 3""")
    succeeds = write_script(
        tmp_path / "succeeds", f"""printf '{{\n "schema": "graphkit.export"\n}}'; exec "{copies.decode()}" "$@" """
    )
    silent = write_script(tmp_path / "silent", "exit 3")
    with handler(signal.SIGCHLD, signal.SIG_IGN):
        found = [opened(network(tmp_path), converter=each) for each in (fails, succeeds, silent)]
    assert [each.status for each in found] == ["GK_ERROR_UNSUPPORTED", "GK_OK", "GK_ERROR_CONVERTER"]
    assert "the application collected its exit code" in found[2].text


def test_application_that_collects_all_children(tmp_path):
    collected = []

    def collect(number, frame):
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                collected.append(ended)

    script = write_script(tmp_path / "fails", """printf '{\n "exit_code": 4\n}\n'; exec >&- 2>&-; exit 4""")
    with handler(signal.SIGCHLD, collect), concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            found = pool.submit(opened, network(tmp_path), converter=script)
            while not found.done():
                time.sleep(0.001)  # signals are handled in this thread
            assert found.result().status == "GK_ERROR_FORMAT"


def test_child_gets_no_state_of_the_application(tmp_path):
    """Neither descriptors nor input, nor signals that are blocked or ignored."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    # The shell itself reads its state: it blocks signals while it starts another program.
    masks = 'while read -r line; do case "$line" in SigBlk*|SigIgn*) echo "$line" >&2;; esac; done < /proc/self/status'
    script = write_script(tmp_path / "looks", f"cat; ls /proc/$$/fd >&2; {masks}; exit 5")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        with handler(signal.SIGPIPE, signal.SIG_IGN):
            lines = opened(network(tmp_path), converter=script).text.partition("exit code 5: ")[2].split("\n")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(read)
        os.close(write)
    # 10, or 255: the script itself, which the shell reads.
    assert [line for line in lines if line.isdigit() and int(line) < 10] == ["0", "1", "2"]
    assert str(write) not in lines
    standard = (1 << 31) - 1  # glibc uses some of the others
    assert [int(line.split()[1], 16) & standard for line in lines if line.startswith("Sig")] == [0, 0]


def test_application_without_standard_streams(copies, tmp_path):
    """The pipes of the converter do not take the numbers of the standard streams, which other threads may use."""
    script = f"""
import ctypes, os
library = ctypes.CDLL({str(library_path())!r})
library.gk_error.restype = ctypes.c_char_p
for number in range(3):
    os.close(number)
session = ctypes.c_void_p()
path = {os.fsencode(network(tmp_path))!r}
status = library.gk_open_checked(path, None, ctypes.byref(session), 1, ctypes.c_size_t(24))
with open({str(tmp_path / "result")!r}, "w") as file:
    file.write(f"{{status}} {{library.gk_error().decode()}}")
"""
    looks = 'for i in 0 1 2; do if [ -e "/proc/$PPID/fd/$i" ]; then echo "open: $i" >&2; fi; done'
    prints = write_script(tmp_path / "prints", f"echo out; echo err >&2; {looks}; cat; exit 5")
    for converter, expected in ((copies, "0 $"), (prints, "11 .*exit code 5: err$")):
        environment = os.environ | {"GRAPHKIT_CONVERTER": os.fsdecode(converter)}
        subprocess.run([sys.executable, "-P", "-S", "-c", script], env=environment, check=True, timeout=60)
        assert re.match(expected, (tmp_path / "result").read_text())


def test_eight_threads_open_networks(copies, tmp_path):
    paths = [network(tmp_path, f"net{i}.onnx") for i in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda path: opened(path, converter=copies, cache_folder=bytes(tmp_path / "kept")), paths * 2)
        )
    assert {each.status for each in found} == {"GK_OK"}
    assert len(os.listdir("/proc/self/fd")) == before


def test_programs_open_from_memory(mlp_file):
    found = opened_memory(mlp_file.read_bytes())
    assert (found.status, found.inputs) == ("GK_OK", 1)
    found = opened_memory(b"an ONNX message")
    assert found.status == "GK_ERROR_FORMAT"
    assert "Only the contents of .gkp files can be opened from memory" in found.text
    damaged = bytearray(mlp_file.read_bytes())
    damaged[-1] ^= 1
    assert opened_memory(bytes(damaged)).text == "the program in memory: the file is damaged (its checksum is wrong)"
    assert opened_memory(b"").status == "GK_ERROR_FORMAT"


def test_other_files_are_not_converted(copies, tmp_path):
    (tmp_path / "net.txt").write_bytes(b"a network")
    found = opened(tmp_path / "net.txt", converter=copies)
    assert found.status == "GK_ERROR_FORMAT"
    assert "file names end in .onnx or .json" in found.text
    assert opened(tmp_path / "none.onnx", converter=copies).status == "GK_ERROR_FILE"
    (tmp_path / "folder.onnx").mkdir()
    assert opened(tmp_path / "folder.onnx", converter=copies).status == "GK_ERROR_FILE"
    assert calls(tmp_path) == 0


# --- converted by graphkit ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graphkit(tmp_path_factory):
    path = tmp_path_factory.mktemp("command") / "graphkit"
    return os.fsdecode(write_script(path, f'exec "{sys.executable}" -P -m graphkit "$@"'))


@pytest.mark.full
@pytest.mark.parametrize("name", ["net.onnx", "net.json", "net-symbol.json"])
def test_converted_network_has_the_bits_of_python(name, graphkit, mlp, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_CONVERTER", graphkit)
    if name.endswith("-symbol.json"):
        mlp.save_mxnet(tmp_path / "net")
    else:
        mlp.save(tmp_path / name)
    net = gk.load(tmp_path / name)
    feeds = random_feeds(net, {"x": (8, 12)})
    with CSession(tmp_path / name) as session:
        assert_same_bits(session.run(feeds), net.run(feeds))


@pytest.mark.full
def test_graphkit_reports_its_errors(graphkit, tmp_path):
    converter = os.fsencode(graphkit)
    path = network(tmp_path)
    assert opened(path, converter=converter).status == "GK_ERROR_FORMAT"
    with handler(signal.SIGCHLD, signal.SIG_IGN):
        assert opened(path, converter=converter).status == "GK_ERROR_FORMAT"
    found = opened(path, converter=converter, converter_arguments=[b"--none"])
    assert found.status == "GK_ERROR_ARGUMENT"
    assert "--none" in found.text
    long = [b"--" + b"n" * 5000]
    with handler(signal.SIGCHLD, signal.SIG_IGN):
        assert opened(path, converter=converter, converter_arguments=long).status == "GK_ERROR_ARGUMENT"
    places = gk.Model({"y": gk.non_zero(gk.input("x", [2, 3]))})
    places.save(tmp_path / "places.onnx")
    found = opened(tmp_path / "places.onnx", converter=converter)
    assert found.status == "GK_ERROR_UNSUPPORTED"
    assert "NonZero" in found.text
