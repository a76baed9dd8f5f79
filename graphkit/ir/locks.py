"""Locks on files that end with the process that holds them, however it ends."""

from __future__ import annotations

import errno

try:
    import fcntl
except ImportError:  # a system without POSIX
    fcntl = None  # type: ignore[assignment]

# What a file system says that knows no locks (some network file systems, mounted without them).
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file, which is writable, for as long as the descriptor is open; whether nobody else has it.

    None where the file system, or the system, has no locks. Locks are seen by all processes, of other machines too on
    NFS, and by other descriptors of the same process; children that are forked share them.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True
