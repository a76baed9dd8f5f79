"""Simulate hosts: run the processes of a job in network namespaces, connected by lines of limited rate.

Their messages cross TCP and a token bucket (tc-tbf(8)) of the Linux kernel. Needs root, `ip`, `tc` and MPICH. MPICH's
launcher starts a process on each address with a script instead of ssh.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphkit.dist.job import launch

_BRIDGE, _NAME, _NETWORK = "gkbench", "gkbench-{}", "10.77.0.{}"
_SSH = """#!/bin/sh
# As ssh is called: options, a host, and a command.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "gkbench-$(( ${host##*.} - 1 ))" sh -c "$*"
"""
# UCX finds memory that processes share otherwise, whatever their namespaces.
_OVER_TCP = {"UCX_TLS": "tcp"}


@contextmanager
def line(ranks: int, gbit: float) -> Iterator[list[str]]:
    """Set up `ranks` hosts that send at `gbit` Gbit/s each. Yield the words that start a program on them."""
    try:
        _ip(f"link add {_BRIDGE} type bridge")
        _ip(f"addr add {_NETWORK.format(254)}/24 dev {_BRIDGE}")
        _ip(f"link set {_BRIDGE} up")
        for rank in range(ranks):
            _host(rank, gbit)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "ssh")
            script.write_text(_SSH)
            script.chmod(0o755)
            hosts = ",".join(_NETWORK.format(rank + 1) for rank in range(ranks))
            words = [launch.find_mpiexec(), "-n", str(ranks), "-ppn", "1", "-hosts", hosts]
            words += ["-launcher", "ssh", "-launcher-exec", str(script), "-localhost", _NETWORK.format(254)]
            yield [*words, "env", *(f"{name}={value}" for name, value in _OVER_TCP.items())]
    finally:
        for rank in range(ranks):
            subprocess.run(["ip", "netns", "del", _NAME.format(rank)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", _BRIDGE], check=False, capture_output=True)


def first_host() -> str:
    """The address of rank 0's host."""
    return _NETWORK.format(1)


def _host(rank: int, gbit: float) -> None:
    name = _NAME.format(rank)
    _ip(f"netns add {name}")
    _ip(f"link add gkbench{rank} type veth peer name eth0 netns {name}")
    _ip(f"link set gkbench{rank} master {_BRIDGE} up")
    _ip(f"-n {name} addr add {_NETWORK.format(rank + 1)}/24 dev eth0")
    _ip(f"-n {name} link set eth0 up")
    _ip(f"-n {name} link set lo up")
    shaped = f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {gbit}gbit burst 128kb latency 200ms"
    subprocess.run(shaped.split(), check=True)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
