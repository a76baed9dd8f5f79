"""The number of cores that a process may use, with quotas of control groups from fake files."""

import os
from pathlib import Path

import pytest
from combinations import in_one_item

from graphkit import cores


def groups(tmp_path: Path, membership: str, **files: str) -> tuple[Path, Path]:
    """/proc/self/cgroup and /sys/fs/cgroup with these files; `__` stands for a slash, `_DOT_` for a dot."""
    proc = tmp_path / "cgroup"
    proc.write_text(membership)
    mounted = tmp_path / "mounted"
    for name, text in files.items():
        path = mounted / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, mounted


@in_one_item()
@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu_DOT_max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu_DOT_max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a__cpu_DOT_max": "200000 100000", "a__b__cpu_DOT_max": "max 100000"}, 2.0),
        ("0::/a/b\n", {"a__cpu_DOT_max": "400000 100000", "a__b__cpu_DOT_max": "50000 100000"}, 0.5),
        # The path is the host's, and the container sees its own group as the root.
        ("0::/docker/1234\n", {"cpu_DOT_max": "300000 100000"}, 3.0),
        (
            "4:cpu,cpuacct:/jobs/7\n3:memory:/jobs\n",
            {
                "cpu,cpuacct__jobs__7__cpu_DOT_cfs_quota_us": "250000",
                "cpu,cpuacct__jobs__7__cpu_DOT_cfs_period_us": "100000",
            },
            2.5,
        ),
        # Printed in another order than that of the folder, or linked under one name.
        (
            "4:cpuacct,cpu:/docker/x\n",
            {
                "cpu,cpuacct__docker__x__cpu_DOT_cfs_quota_us": "200000",
                "cpu,cpuacct__docker__x__cpu_DOT_cfs_period_us": "100000",
            },
            2.0,
        ),
        (
            "4:cpuacct,cpu:/x\n",
            {"cpu__x__cpu_DOT_cfs_quota_us": "200000", "cpu__x__cpu_DOT_cfs_period_us": "100000"},
            2.0,
        ),
        ("2:cpuacct,a,b,c,d,e,f,g,h,i,j,k,cpu:/\n", {}, None),
        ("not a line\n", {}, None),
        ("2:cpu:/\n", {"cpu__cpu_DOT_cfs_quota_us": "-1", "cpu__cpu_DOT_cfs_period_us": "100000"}, None),
        ("3:memory:/jobs\n", {"memory__cpu_DOT_max": "100000 100000"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_the_least_quota_of_all_groups_counts(tmp_path, membership, files, quota):
    assert cores.cgroup_quota(*groups(tmp_path, membership, **files)) == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cores.cgroup_quota(tmp_path / "none", tmp_path) is None


@in_one_item()
@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (1.5, 2), (0.2, 1), (4.0, 4), (64.0, 4)])
def test_a_quota_limits_the_cores_of_the_affinity(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5, 7}, raising=False)
    monkeypatch.setattr(cores, "cgroup_quota", lambda: quota)
    assert cores.allowed_cores() == expected


def topology(tmp_path: Path, nodes: list[str], siblings: dict[int, str]) -> Path:
    """/sys/devices/system with these lists of cores."""
    for number, listed in enumerate(nodes):
        (tmp_path / f"node/node{number}").mkdir(parents=True)
        (tmp_path / f"node/node{number}/cpulist").write_text(f"{listed}\n")
    for core, listed in siblings.items():
        (tmp_path / f"cpu/cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{core}/topology/thread_siblings_list").write_text(f"{listed}\n")
    return tmp_path


@in_one_item()
@pytest.mark.parametrize(
    ("allowed", "running_on", "expected"),
    [
        (range(8), 2, [2, 3, 6, 7, 0, 1, 4, 5]),
        (range(8), 5, [0, 1, 4, 5, 2, 3, 6, 7]),
        ([7, 6, 1], 7, [6, 7, 1]),
        ([3], 0, [3]),
    ],
)
def test_nearest_cores_come_first(tmp_path, monkeypatch, allowed, running_on, expected):
    """Two nodes of two cores with two hardware threads each: 0 and 4 are one core."""
    system = topology(tmp_path, ["0-1,4-5", "2-3,6-7"], {c: f"{c % 4},{c % 4 + 4}" for c in range(8)})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed), raising=False)
    assert cores.nearest(system, running_on) == expected


def test_cores_of_an_unknown_machine_come_by_number(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 0, 5}, raising=False)
    assert cores.nearest(tmp_path, 5) == [0, 2, 5]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
def test_nearest_cores_of_this_machine():
    assert set(cores.nearest()) == os.sched_getaffinity(0)
