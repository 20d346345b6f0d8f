"""Convert file system errors to store errors with advice, and report the mount of an unsuitable location."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.locations import BUCKET_REMEDY
from sparklog.storage.store import missing_object

_ADVICE = {
    errno.ENOSPC: "no space left on device: free some space and try again",
    errno.EDQUOT: "the disk quota is exceeded: free some space and try again",
    errno.EACCES: "permission denied: the process needs read and write access",
    errno.EPERM: "operation not permitted: the process needs read and write access",
    errno.EROFS: "the file system is read-only: remount it writable or use another location",
    errno.EIO: "the device reports an I/O error: check the disk",
    errno.EMFILE: "too many open files in this process: raise its limit (ulimit -n)",
    errno.ENFILE: "too many open files on this host: raise its limit",
    errno.ESTALE: "the network file system lost the file: try again",
    errno.ENAMETOOLONG: "the name is too long for this file system: use a shorter path",
    errno.ELOOP: "too many symbolic links: check the path",
}
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)
"""Errors that a retry returns as well until an operator acts."""


def store_error(error: OSError, action: str, key: str, location: str, *, may_be_written: bool = False) -> SparklogError:
    """Return the error to raise if the system failed to `action` the object `key` below `location`.

    The error is `NotFound` if an object to read does not exist. Most other errors are `Unavailable`. In this case, a
    write may have taken effect, unless the error is `is_denied`, which requires that `may_be_written` is false.
    """
    if isinstance(error, SparklogError):
        return error
    what = f"{key} in {location}" if key else location
    if error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR) and action == "read":
        return missing_object(what)
    if error.errno in (errno.ELOOP, errno.ENXIO) and action == "read":
        return NotFound(f"no object {what}: the path is a link or a socket, expected a file")
    if error.errno == errno.ENOTDIR:
        return BadRequest(f"cannot {action} {what}: a part of the path is a file, expected a directory")
    advice = _ADVICE.get(error.errno or 0) or f"{error.strerror or error} (errno {error.errno})"
    is_denied = error.errno in _DENIED and not may_be_written
    return Unavailable(f"cannot {action} {what}: {advice}", is_denied=is_denied)


def reject_location(location: str, reason: str) -> NoReturn:
    """Raise `BadRequest` for a location that does not have the guarantees of a store."""
    mount = mount_of(location)
    remedy = "use another file system"
    if "(fuse" in mount:
        remedy = f"if it is a mounted bucket, {BUCKET_REMEDY}; otherwise {remedy}"
    raise BadRequest(f"{location} on {mount} cannot hold a sparklog root: {reason}; {remedy}")


def mount_of(path: str) -> str:
    """Return the mount of a path for messages: `/mnt/usb (vfat)`, without the type if it is unknown."""
    point, kind = mount_and_type(path)
    return f"{point} ({kind})" if kind else point


def mount_and_type(path: str) -> tuple[str, str]:
    """Return the mount point of a path and the file system type. The type is an empty string if it is unknown."""
    point = os.path.realpath(path)
    while not os.path.ismount(point) and os.path.dirname(point) != point:
        point = os.path.dirname(point)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            types = [fields[2] for fields in map(str.split, mounts) if len(fields) > 2 and fields[1] == point]
    except OSError:
        types = []
    return point, types[-1] if types else ""
