"""graphkit reduce"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from graphkit.checks.reduction import MAX_TRIES, Candidate, Reduction, reduce_message
from graphkit.cli._groups import COMPARISON, INPUTS, OUTPUT, option
from graphkit.cli._limits import limit_options
from graphkit.cli._options import json_option, model_file_options, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import UsageError
from graphkit.ir.atomic import scratch_folder, write_whole
from graphkit.ir.npz import npz_bytes
from graphkit.text import quantity
from graphkit.transforms.rewritten import message_of

_FILE, _ARRAYS = "{}", "{npz}"


@click.command()
@click.argument("model")
@click.argument("command_line", nargs=-1, required=True, metavar="-- COMMAND...")
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False), required=True,
    help="Write the smallest part to this .onnx file at each improvement, and the values of its inputs next to it "
    "(.npz).",
)  # fmt: skip
@option(
    "--input", "inputs", group=INPUTS, multiple=True, metavar="NAME:SHAPE | NAME=FILE",
    help="Input of the run in which the values of cut tensors are recorded. Others are generated. Repeatable.",
)  # fmt: skip
@option("--seed", group=INPUTS, type=int, default=0, show_default=True, help="Seed of generated inputs.")
@option(
    "--fail-code", group=COMPARISON, type=int, default=None,
    help="The command fails if it ends with this exit code. Default: any code but 0. A signal N is the code 128 + N.",
)  # fmt: skip
@option(
    "--fail-text", group=COMPARISON, metavar="REGEX", default=None,
    help="The command fails if its output contains this regular expression, and its exit code is that of --fail-code, "
    "if given.",
)  # fmt: skip
@option(
    "--timeout-each", group=COMPARISON, type=FloatRange(0, min_open=True), default=None, metavar="SECONDS",
    help="Stop a run of the command after this time. It does not count as a failure, unless --fail-timeout is given.",
)  # fmt: skip
@option(
    "--fail-timeout", group=COMPARISON, is_flag=True,
    help="The command fails if it exceeds --timeout-each. Its exit code and output do not matter.",
)  # fmt: skip
@option(
    "--max-tries", group=COMPARISON, type=IntRange(2), default=MAX_TRIES, show_default=True,
    help="Largest number of runs of the command.",
)  # fmt: skip
@model_file_options
@limit_options
@json_option
def command(
    model: str, command_line: tuple[str, ...], output: str, inputs: tuple[str, ...], seed: int, fail_code: int | None,
    fail_text: str | None, timeout_each: float | None, fail_timeout: bool, max_tries: int, external_root: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Find the smallest part of MODEL for which COMMAND still fails.

    The command gets the path of an ONNX file in place of {}, or as its last argument. {npz} is replaced by the path of
    an .npz file with values of its inputs, which are recorded in a run of the whole MODEL.

    Parts are tried in a fixed order: single outputs, then ranges of nodes (delta debugging), then single nodes, outputs
    and operands, then the same inside of branches and loops. Ctrl-C stops the search; the smallest part so far is in
    the output file. Exit code 2 if the command does not fail for the whole MODEL.

    \b
    graphkit reduce net.onnx -o small.onnx -- python convert.py {}
    graphkit reduce net.onnx -o small.onnx --fail-text "not finite" -- graphkit run {} {npz} --check-nan
    """
    if not output.endswith(".onnx"):
        raise UsageError(f"-o {output}: the name of the output file must end in .onnx")
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(f"-o {output}: there is no folder {Path(output).absolute().parent}")
    if fail_timeout and timeout_each is None:
        raise UsageError("--fail-timeout needs a time limit: give --timeout-each")
    trial = _Trial(command_line, fail_code, _pattern(fail_text), timeout_each, fail_timeout)
    net = read_model(model, external_root)
    message = message_of(model, external_root) if model.endswith(".onnx") else net.to_onnx()
    given = _given(net, inputs, seed)
    with scratch_folder() as folder:
        writer = _Writer(output)
        try:
            found = reduce_message(
                message, lambda part: trial.fails(part, folder), inputs=given, max_tries=max_tries, seed=seed,
                label=model, on_try=writer.show, on_smaller=writer.write,
            )  # fmt: skip
        except KeyboardInterrupt:
            writer.end()
            if writer.written:
                log(f"stopped: the smallest part so far, {quantity(writer.nodes, 'node')}, is in {output}")
            raise
        finally:
            writer.end()
    _print(found, output, as_json)
    return 0


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--fail-text {text!r} is not a regular expression: {error}") from None


def _given(net: Any, texts: tuple[str, ...], seed: int) -> Mapping[str, Any]:
    """Return arrays for the inputs that `--input` names, and for all others if it gives shapes."""
    from graphkit.checks.inputs import make_feeds
    from graphkit.cli._inputs import parse_inputs
    from graphkit.data.images.feeding import Said

    if not texts:
        return {}
    given, shapes = parse_inputs(net.input_types, texts, Said(None, None, None, None), net.meta)
    return make_feeds(net, given=given, shapes=shapes, seed=seed).arrays


@dataclass(frozen=True)
class _Trial:
    """Runs the command, and decides whether it failed."""

    command_line: tuple[str, ...]
    code: int | None
    pattern: re.Pattern[str] | None
    timeout: float | None
    by_timeout: bool

    def fails(self, part: Candidate, folder: Path) -> bool:
        """Whether the command fails for a part, which is written to a scratch folder."""
        from graphkit.onnx_io.writing import EXTERNAL_ABOVE, raw_bytes, write_proto

        path, arrays = folder / "candidate.onnx", folder / "candidate.npz"
        write_proto(part.message, path, external=raw_bytes(part.message) > EXTERNAL_ABOVE)
        if any(_ARRAYS in word for word in self.command_line):
            if missing := [name for name in part.model.inputs if name not in part.feeds]:
                log(f"no value is recorded for input {missing[0]!r}, so {_ARRAYS} lacks it")
            write_whole(arrays, [npz_bytes(part.feeds, instead="a model with other names")])
        words = [word.replace(_ARRAYS, str(arrays)).replace(_FILE, str(path)) for word in self.command_line]
        if not any(_FILE in word for word in self.command_line):
            words.append(str(path))
        return self._run(words)

    def _run(self, words: list[str]) -> bool:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"the command {words[0]!r} cannot be started: {error.strerror or error}") from None
        try:
            output, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            return self.by_timeout
        finally:
            # Also after Ctrl-C: no process of the command stays behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
        if self.by_timeout:
            return False
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if self.pattern is not None and not self.pattern.search(output.decode(errors="replace")):
            return False
        if self.code is not None:
            return code == self.code
        return self.pattern is not None or code != 0


class _Writer:
    """Writes the smallest part so far, and shows the progress on a terminal."""

    def __init__(self, output: str):
        self.output = Path(output)
        self.written = False
        self.nodes = 0
        self._shows = sys.stderr is not None and sys.stderr.isatty()

    def show(self, nodes: int, tries: int) -> None:
        """Show the size of the smallest part, and the number of tries."""
        if self._shows:
            click.echo(f"\r{nodes:,} nodes, {tries:,} tries ", nl=False, err=True)

    def end(self) -> None:
        """End the line of the progress."""
        if self._shows:
            self._shows = False
            click.echo(err=True)

    def write(self, part: Candidate) -> None:
        """Write a part and the values of its inputs."""
        from graphkit.onnx_io.writing import EXTERNAL_ABOVE, raw_bytes, write_proto

        self.nodes = len(part.operators)
        write_proto(part.message, self.output, external=raw_bytes(part.message) > EXTERNAL_ABOVE)
        arrays = {name: value for name, value in part.feeds.items() if hasattr(value, "dtype")}
        write_whole(self.output.with_suffix(".npz"), [npz_bytes(arrays, instead="a model with other names")])
        self.written = True


def _print(found: Reduction, output: str, as_json: bool) -> None:
    part = found.smallest
    nodes = len(part.operators)
    if as_json:
        print_json("reduce", {
            "file": output, "nodes": nodes, "original_nodes": found.nodes, "tries": found.tries,
            "complete": found.is_complete, "operators": list(part.operators), "inputs": list(part.model.inputs),
            "recorded_by": found.recorded or None,
        })  # fmt: skip
        return
    print_table("Operators", ["operator"], [(name,) for name in part.operators[:20]])
    for name, kind in part.model.input_types.items():
        show(f"input {name}: {kind}" + ("" if name in part.feeds else ", no recorded value"))
    ending = "" if found.is_complete else " (the limit of tries, --max-tries, is reached)"
    runs = quantity(found.tries, "run")
    show(f"{quantity(nodes, 'node')} of {found.nodes:,} after {runs} of the command{ending}: {output}")
