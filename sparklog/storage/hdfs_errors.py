"""Errors of HDFS in one line: which request failed, and what to do about it.

hdfs-native raises built-in errors where it knows one. All others are a RuntimeError with Rust's text of the failure,
such as `RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create...\\n\\tat ...")`: the
namenode's exception, its message and its stack trace.
"""

from __future__ import annotations

import re

from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.storage.locations import StoreUrl
from sparklog.storage.store import missing_object

FAILURES = (OSError, RuntimeError)
"""Everything that hdfs-native raises."""
NO_FOLDER = "(is not a directory)"
_REMOTE = re.compile(r'RPCError\("(?:[\w]+\.)*([\w$]+)", "((?:[^"\\]|\\.)*)')
_LOCAL = re.compile(r'([A-Z]\w+)(?:\((?:"([^"]*))?|\Z)')
_MESSAGE_LENGTH = 200

# A word of the exception's name or message -> what to do. The first that fits counts.
_REMEDIES = (
    ("SafeMode", "the namenode is in safe mode: wait until it has started, or see `hdfs dfsadmin -safemode get`"),
    ("SnapshotAccessControl", "it is a snapshot, which is read-only: give the folder itself"),
    ("QuotaExceeded", "a quota is used up: free some space, or have it raised with `hdfs dfsadmin`"),
    ("QuotaByStorageType", "a quota is used up: free some space, or have it raised with `hdfs dfsadmin`"),
    ("StandbyException", "no namenode is active there: give hdfs://<nameservice>/... and set HADOOP_CONF_DIR"),
    ("could only be written to", "no datanode takes its blocks: see `hdfs dfsadmin -report`"),
    ("could only be replicated to", "no datanode takes its blocks: see `hdfs dfsadmin -report`"),
    ("complete file in time", "no datanode has reported its last block: see `hdfs dfsadmin -report`"),
    ("BlocksNotFound", "no datanode gives its blocks: see `hdfs fsck`"),
    ("BlockMissing", "no datanode gives its blocks: see `hdfs fsck`"),
    ("ChecksumError", "the bytes of a datanode do not match their checksum: see `hdfs fsck`"),
    ("DataTransferError", "a datanode failed: see `hdfs dfsadmin -report`"),
    ("GSSAPI", "Kerberos refuses: log in with `kinit`, or name a ticket cache in KRB5CCNAME"),
    ("SASL", "the namenode asks for Kerberos: log in with `kinit`, and set HADOOP_CONF_DIR"),
    ("SIMPLE authentication", "the namenode asks for Kerberos: log in with `kinit`, and set HADOOP_CONF_DIR"),
    ("XmlParseError", "core-site.xml or hdfs-site.xml in HADOOP_CONF_DIR is no XML"),
)  # fmt: skip


def remote_error(error: BaseException) -> tuple[str, str]:
    """Return the name of the exception and the first line of its message; two empty texts if the error has neither."""
    match = _REMOTE.search(str(error))
    if match is None:
        local = _LOCAL.match(str(error))
        return (local[1], _first_line(local[2] or "")) if local else ("", "")
    return match[1], _first_line(match[2].replace('\\"', '"'))


def is_busy(error: BaseException) -> bool:
    """True if the namenode refuses for a while: it is starting, or in safe mode. The request has had no effect."""
    text = str(error)
    return isinstance(error, FAILURES) and ("SafeModeException" in text or "RetriableException" in text)


def hdfs_error(error: Exception, action: str, key: str, url: StoreUrl) -> SparklogError:
    """Return the error to raise when a request to `action` (read, list, create, delete, open) an object failed.

    `NotFound` for an object that does not exist, `BadRequest` where a name or the folder is wrong, else `Unavailable`:
    the effect of a create is then unknown.
    """
    if isinstance(error, SparklogError):
        return error
    what = f"{key} in {url}" if key else str(url)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return _missing(action, what)
    text = str(error)
    if isinstance(error, OSError):
        return Unavailable(
            f"cannot {action} {what}: {url.host} does not answer ({_first_line(text) or type(error).__name__}); check "
            "the host, the port and that HDFS runs"
        )
    name, message = remote_error(error)
    if name == "UrlParseError":
        return BadRequest(f"{url} names no namenode; expected a URL such as hdfs://namenode:8020/log")
    if NO_FOLDER in message:
        if action in ("read", "list"):
            return _missing(action, what)
        return BadRequest(f"cannot {action} {what}: a part of the path is a file, expected a directory")
    for word, remedy in _REMEDIES:
        if word in text:
            return Unavailable(f"cannot {action} {what}: {remedy}")
    if name in ("AccessControlException", "AuthorizationException"):
        advice = f"{message or 'permission denied'}; see `hdfs dfs -ls` and -chmod"
        return Unavailable(f"cannot {action} {what}: {advice}", is_denied=True)
    if name in ("HadoopIllegalArgumentException", "InvalidPathException"):
        return BadRequest(f"cannot {action} {what}: {message}")
    if "erasure-coded" in text:
        return BadRequest(
            f"{url} cannot hold a sparklog root: its files are erasure-coded, and hsync does not work there; give the "
            "folder replication with `hdfs ec -setPolicy -replicate`"
        )
    if not name:
        return BadRequest(f"{url} cannot hold a sparklog root: hdfs-native does not support this: {_first_line(text)}")
    return Unavailable(f"cannot {action} {what}: HDFS says {name}{': ' if message else ''}{message}")


def _missing(action: str, what: str) -> SparklogError:
    if action in ("read", "list"):
        return missing_object(what)
    return Unavailable(f"cannot {action} {what}: its temporary file was deleted meanwhile; try again")


def _first_line(text: str) -> str:
    line = re.split(r"\\n|\n", text, maxsplit=1)[0].strip()
    return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 3] + "..."
