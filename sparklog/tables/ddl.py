"""Column types in the DDL of Spark, such as `id BIGINT NOT NULL, tags ARRAY<STRING>`, as Arrow types."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from sparklog.errors import BadRequest, shortened
from sparklog.tables.option_names import option_name

TYPES = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(),
    "real": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
NAMES = {kind: name for name, kind in reversed(TYPES.items())}
MAX_DEPTH = 50
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")


def parse_ddl(text: str) -> pa.Schema:
    """Return the columns of a DDL string. Raises `BadRequest` if the string is invalid."""
    parser = _Parser(text, _tokens(text))
    columns = parser.fields("")
    if parser.position < len(parser.tokens):
        raise parser.error("a comma or the end")
    names = [column.name.lower() for column in columns]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise BadRequest(f"{option_name('schema')} contains column {duplicates[0]} more than once")
    return pa.schema(columns)


def type_name(kind: pa.DataType) -> str:
    """Return the name of an Arrow type in DDL."""
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return NAMES.get(kind, str(kind))


@dataclass(frozen=True)
class _Token:
    text: str
    is_name: bool
    is_quoted: bool = False


def _tokens(text: str) -> list[_Token]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadRequest(
                f"{option_name('schema')} must be a list of columns such as 'id BIGINT, name STRING': {shortened(text)}"
            )
        quoted, word, sign = match.groups()
        tokens.append(_Token((quoted or "").replace("``", "`") or word or sign, sign is None, quoted is not None))
        position = match.end()
    return tokens


@dataclass
class _Parser:
    text: str
    tokens: list[_Token]
    position: int = 0
    depth: int = 0

    def error(self, expected: str) -> BadRequest:
        is_end = self.position >= len(self.tokens)
        found = "the end" if is_end else f"'{self.tokens[self.position].text}'"
        return BadRequest(
            f"{option_name('schema')} must be a list of columns such as 'id BIGINT, name STRING': expected {expected}, "
            f"found {found} in {shortened(self.text)}"
        )

    def accept(self, *words: str) -> bool:
        """Consume these words, if they are next, in any case."""
        following = self.tokens[self.position : self.position + len(words)]
        if [token.text.lower() for token in following if not token.is_quoted] != list(words):
            return False
        self.position += len(words)
        return True

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.error(f"'{sign}'")

    def name(self, what: str) -> str:
        if self.position >= len(self.tokens) or not self.tokens[self.position].is_name:
            raise self.error(what)
        self.position += 1
        return self.tokens[self.position - 1].text

    def fields(self, separator: str) -> list[pa.Field]:
        found = []
        while True:
            name = self.name("a column name")
            if separator:
                self.expect(separator)
            kind = self.type()
            found.append(pa.field(name, kind, nullable=not self.accept("not", "null")))
            if not self.accept(","):
                return found

    def type(self) -> pa.DataType:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadRequest(f"{option_name('schema')} is nested more than {MAX_DEPTH} levels deep")
        kind = self._type()
        self.depth -= 1
        return kind

    def _type(self) -> pa.DataType:
        if self.accept("array", "<"):
            kind = pa.list_(self.type())
        elif self.accept("struct", "<"):
            kind = pa.struct(self.fields(":"))
        elif self.accept("map", "<"):
            key = self.type()
            self.expect(",")
            kind = pa.map_(key, self.type())
        elif self.accept("decimal") or self.accept("numeric") or self.accept("dec"):
            return self.decimal()
        else:
            name = self.name("a type")
            if name.lower() not in TYPES:
                self.position -= 1
                raise self.error("a type such as BIGINT, DOUBLE, STRING or TIMESTAMP")
            return TYPES[name.lower()]
        self.expect(">")
        return kind

    def decimal(self) -> pa.DataType:
        if not self.accept("("):
            return pa.decimal128(10, 0)
        precision = self.number()
        scale = self.number() if self.accept(",") else 0
        self.expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise BadRequest(
                f"{option_name('schema')}: decimal({precision},{scale}) must have at most 38 digits, scale <= precision"
            )
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        text = self.name("a number")
        if not (text.isascii() and text.isdecimal() and len(text) < 4):
            self.position -= 1
            raise self.error("a number")
        return int(text)
