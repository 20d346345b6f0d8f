r"""Convert errors of HDFS to one line: the failed request, and a remedy.

hdfs-native raises built-in errors if there is a matching one. Other errors are a RuntimeError with Rust's text of the
failure, such as `RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create...\\n\\tat ...")`:
the exception of the namenode, its message and its stack trace.
"""

from __future__ import annotations

import re

from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.storage.locations import StoreUrl
from sparklog.storage.store import missing_object

FAILURES = (OSError, RuntimeError)
"""All types of errors that hdfs-native raises."""
NOT_A_DIRECTORY = "(is not a directory)"
_REMOTE = re.compile(r'RPCError\("(?:[\w]+\.)*([\w$]+)", "((?:[^"\\]|\\.)*)')
_LOCAL = re.compile(r'([A-Z]\w+)(?:\((?:"([^"]*))?|\Z)')
_MESSAGE_LENGTH = 200

# Pairs of a word in the name or the message of an exception, and the remedy. The first match applies.
_REMEDIES = (
    ("SafeMode", "the namenode is in safe mode: wait until it has started, or run `hdfs dfsadmin -safemode get`"),
    ("SnapshotAccessControl", "snapshots are read-only: use the directory itself"),
    ("QuotaExceeded", "a quota is exceeded: free some space, or raise the quota with `hdfs dfsadmin`"),
    ("QuotaByStorageType", "a quota is exceeded: free some space, or raise the quota with `hdfs dfsadmin`"),
    ("StandbyException", "the namenode is not active: use hdfs://<nameservice>/... and set HADOOP_CONF_DIR"),
    ("could only be written to", "no datanode accepts its blocks: see `hdfs dfsadmin -report`"),
    ("could only be replicated to", "no datanode accepts its blocks: see `hdfs dfsadmin -report`"),
    ("complete file in time", "no datanode has reported its last block: see `hdfs dfsadmin -report`"),
    ("BlocksNotFound", "no datanode returns its blocks: see `hdfs fsck`"),
    ("BlockMissing", "no datanode returns its blocks: see `hdfs fsck`"),
    ("ChecksumError", "data of a datanode does not match its checksum: see `hdfs fsck`"),
    ("DataTransferError", "a datanode failed: see `hdfs dfsadmin -report`"),
    ("GSSAPI", "Kerberos authentication failed: log in with `kinit`, or set KRB5CCNAME to a ticket cache"),
    ("SASL", "the namenode requires Kerberos: log in with `kinit`, and set HADOOP_CONF_DIR"),
    ("SIMPLE authentication", "the namenode requires Kerberos: log in with `kinit`, and set HADOOP_CONF_DIR"),
    ("XmlParseError", "core-site.xml or hdfs-site.xml in HADOOP_CONF_DIR is not valid XML"),
)  # fmt: skip


def remote_error(error: BaseException) -> tuple[str, str]:
    """Return the name of the exception and the first line of its message, or two empty strings."""
    match = _REMOTE.search(str(error))
    if match is None:
        local = _LOCAL.match(str(error))
        return (local[1], _first_line(local[2] or "")) if local else ("", "")
    return match[1], _first_line(match[2].replace('\\"', '"'))


def is_busy(error: BaseException) -> bool:
    """Return True if the namenode is starting or in safe mode, so that the request had no effect."""
    text = str(error)
    return isinstance(error, FAILURES) and ("SafeModeException" in text or "RetriableException" in text)


def hdfs_error(error: Exception, action: str, key: str, url: StoreUrl) -> SparklogError:
    """Return the error to raise if a request to `action` (read, list, create, delete, open) an object failed.

    The error is `NotFound` if the object does not exist, and `BadRequest` for a wrong name or directory. All other
    errors are raised as `Unavailable`, and it is then unknown whether a create had an effect.
    """
    if isinstance(error, SparklogError):
        return error
    what = f"{key} in {url}" if key else str(url)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return _missing(action, what)
    text = str(error)
    if isinstance(error, OSError):
        return Unavailable(
            f"cannot {action} {what}: {url.host} does not respond ({_first_line(text) or type(error).__name__}); check "
            "the host and the port, and that HDFS is running"
        )
    name, message = remote_error(error)
    if name == "UrlParseError":
        return BadRequest(f"{url} has no valid namenode; expected a URL such as hdfs://namenode:8020/log")
    if NOT_A_DIRECTORY in message:
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
            f"{url} cannot hold a sparklog root: its files are erasure-coded, so hsync does not work; set the "
            "directory to replication with `hdfs ec -setPolicy -replicate`"
        )
    if not name:
        return BadRequest(f"{url} cannot hold a sparklog root: hdfs-native does not support this: {_first_line(text)}")
    return Unavailable(f"cannot {action} {what}: HDFS returned {name}{': ' if message else ''}{message}")


def _missing(action: str, what: str) -> SparklogError:
    if action in ("read", "list"):
        return missing_object(what)
    return Unavailable(f"cannot {action} {what}: its temporary file was deleted in the meantime; try again")


def _first_line(text: str) -> str:
    line = re.split(r"\\n|\n", text, maxsplit=1)[0].strip()
    return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 3] + "..."
