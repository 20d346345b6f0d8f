"""Where Kafka's DumpLogSegments would end with an exception: how that is told.

Kafka's tool prints until it cannot, and dies. Here a file that makes it die ends at the same line, with the text of the
same exception as an error, and the other files are dumped all the same.
"""

from __future__ import annotations

from sparklog.errors import Corrupt

KAFKA = "org.apache.kafka.common.KafkaException"
INVALID_RECORD = "org.apache.kafka.common.InvalidRecordException"
CORRUPT_RECORD = "org.apache.kafka.common.errors.CorruptRecordException"
CORRUPT_INDEX = "org.apache.kafka.storage.internals.log.CorruptIndexException"
ILLEGAL_ARGUMENT = "java.lang.IllegalArgumentException"
NO_SUCH_ELEMENT = "java.util.NoSuchElementException"
RUNTIME = "java.lang.RuntimeException"
UNDERFLOW = "java.nio.BufferUnderflowException"


class Halt(Corrupt):
    """What a file's dump ends with. `exception`: Kafka's class; `printed`: the piece of a line it prints before."""

    def __init__(self, exception: str, message: str = "", *, printed: str = "") -> None:
        super().__init__(message or exception)
        self.exception = exception
        self.printed = printed

    def __reduce__(self) -> tuple[object, ...]:
        return Halt, (self.exception, self.message)

    @property
    def java(self) -> str:
        """As Java prints an exception: class and message."""
        return self.exception if self.message == self.exception else f"{self.exception}: {self.message}"
