"""File locks that the system releases when the process that holds them ends, for any reason."""

from __future__ import annotations

import errno

try:
    import fcntl
except ImportError:  # a system without POSIX
    fcntl = None  # type: ignore[assignment]

# Errors of file systems without locks, such as network file systems that are mounted without them.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def try_lock(descriptor: int) -> bool | None:
    """Lock a file until the descriptor, which must be writable, is closed. Return whether it succeeded.

    False: another process, or another descriptor of this process, holds the lock. None: the system, or the file system,
    has no locks. On NFS, a lock also holds for other machines. Forked children share the lock.
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
