"""Generate the source of functions that read and write a version of a Kafka message.

`message_codec` compiles the source.

Generated code makes far fewer function calls than an interpreter of schemas. Consecutive numbers of fixed size,
including a following length, are read or written with a single `struct` call. Code for structs and arrays is generated
inline. Rare cases are handled by functions of `message_codec`. To print an example, run
`print(reader_source(message("protocol", "ProduceRequest"), 9))`.

The value of each field is a local variable. The name of the variable consists of the field name, `_` and the number of
the struct. The other variables are `p`, a position in the bytes; `n`, a length or a number of elements; `q`, the end of
a value; `left`, the number of elements that may still follow; `small`, the bytes written since the last records; and
names that end with a number. The source contains only names and constants (formatted with `repr`) of Kafka's schemas in
this package, and never bytes from clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from struct import calcsize

from sparklog.kafka.messages.message_schema import Field, Struct

NUMBERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "bool": "?", "float64": "d"}
MAX_STRING_BYTES = 0x7FFF


def reader_source(message: Struct, version: int) -> str:
    """Return the source of `read(data, p, errors, left)`, which returns the fields and the position after the message.

    `errors` is passed to `bytes.decode`, and `left` is the maximum number of array elements and unknown fields.
    """
    function = _ReaderSource(message, version, "def read(data, p, errors, left):", "size = len(data)")
    function.add(f"return {function.struct(message)}, p")
    return function.text()


def writer_source(message: Struct, version: int) -> str:
    """Return the source of `write(output, values)`, which appends a message to a `MessageBytes`."""
    function = _WriterSource(message, version, "def write(output, values):", "small = output.small")
    function.struct(message, "values")
    return function.text()


class _FunctionSource:
    """The lines of a function.

    `pending` contains the formats and expressions of numbers that will be combined into one `struct` call.
    """

    def __init__(self, message: Struct, version: int, head: str, first: str) -> None:
        self.version, self.flexible = version, message.is_flexible(version)
        self.structs = 0
        self.pending: list[tuple[str, str]] = []
        self.constants: dict[str, str] = {}
        self._lines, self._indent = [head], "    "
        self.add(first)

    def text(self) -> str:
        return "\n".join([*(f"{name} = {text}" for name, text in self.constants.items()), *self._lines, ""])

    def add(self, *lines: str) -> None:
        self._lines += [self._indent + line for line in lines]

    def reject(self, condition: str, kind: str, text: str) -> None:
        """Add code that raises an exception if a condition is true. The message `text` may contain expressions in
        braces.
        """
        self.add(condition, f"    raise {kind}(f{text!r})")

    def take_pending(self, call: str) -> tuple[str, str, str]:
        """Remove the pending numbers. Return the name of their `struct` call, its format and the expressions."""
        letters, expressions = zip(*self.pending, strict=True)
        self.pending = []
        formats = "".join(letters)
        name = f"{call.removesuffix('_from')}_{formats.replace('?', '_')}"
        self.constants[name] = f"Struct({'>' + formats!r}).{call}"
        return name, formats, ", ".join(expressions)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.add(head)
        outer, self._indent = self._indent, self._indent + "    "
        yield
        self._indent = outer


class _ReaderSource(_FunctionSource):
    def struct(self, schema: Struct) -> str:
        """Add code that reads a struct.

        Return the expression of the dict. The lists in each dict are new, so callers may store these lists.
        """
        self.structs += 1
        number, expressions = self.structs, {field.name: repr(field.initial()) for field in schema.fields}
        for field in schema.untagged(self.version):
            expressions[field.name] = f"{field.name}_{number}"
            self.field(field, expressions[field.name])
        if self.flexible:
            self.tagged(schema.tagged(self.version), number, expressions)
        self.flush()
        return "{" + ", ".join(f"{name!r}: {text}" for name, text in expressions.items()) + "}"

    def tagged(self, fields: Sequence[Field], number: int, expressions: dict[str, str]) -> None:
        for field in fields:
            self.add(f"{field.name}_{number} = {expressions[field.name]}")
            expressions[field.name] = f"{field.name}_{number}"
        self.byte()
        with self.block("if n:"), self.block(f"for tag{number}, p in _tagged_fields(data, p - 1):"):
            self.count("1")
            for field in fields:
                with self.block(f"if tag{number} == {field.tag}:"):
                    self.field(field, expressions[field.name])
                    self.flush()
            if not fields:
                self.add("pass")

    def count(self, elements: str) -> None:
        """Add code that rejects a message with too many elements."""
        self.add(f"left -= {elements}")
        self.reject("if left < 0:", "Corrupt", "the message has too many array elements or unknown fields")

    def field(self, field: Field, name: str) -> None:
        if not field.array:
            text = self.value(field, name)
            if text != name:
                self.add(f"{name} = {text}")
            return
        with self.length("i", field, name):
            message = f"field {field.name} has {{n}} elements, but only {{size - p}} bytes remain"
            self.reject("if n > size - p:", "Corrupt", message)
            self.count("n")
            letter = NUMBERS.get(str(field.kind))
            if letter:
                self.add(f"{name} = list(unpack_from(f'>{{n}}{letter}', data, p))")
                self.add(f"p += n * {calcsize('>' + letter)}")
                return
            self.add(f"{name} = []")
            with self.block("for _ in range(n):"):
                self.add(f"{name}.append({self.value(field.element(), 'value')})")

    def value(self, field: Field, name: str) -> str:
        """Add code that reads a value other than an array, and return the expression of the value. Numbers are added to
        `pending`.
        """
        kind = field.kind
        if isinstance(kind, Struct):
            if not field.may_be_null(self.version):
                return self.struct(kind)
            with self.length("b", field, name):
                self.add(f"{name} = {self.struct(kind)}")
        elif kind in NUMBERS:
            self.pending.append((NUMBERS[kind], name))
        elif kind == "uuid":
            self.flush()
            self.add(f"{name} = _uuid_text(data[p:p + 16])", "p += 16")
        else:
            self.sized(field, name, kind)
        return name

    def sized(self, field: Field, name: str, kind: str) -> None:
        """Add code that reads a length, followed by a string, bytes or records."""
        with self.length("h" if kind == "string" else "i", field, name):
            self.add("q = p + n")
            has = f"field {field.name} has {{n}} bytes"
            self.reject("if q > size:", "Corrupt", f"{has}, but only {{size - p}} bytes remain")
            if kind == "string" and self.flexible and field.compact:
                longest = f"the maximum is {MAX_STRING_BYTES}"
                self.reject(f"if n > {MAX_STRING_BYTES}:", "Corrupt", f"{has} of text, but {longest}")
            values = {"string": "data[p:q].decode('utf-8', errors)", "records": "memoryview(data)[p:q]"}
            self.add(f"{name} = {values.get(kind, 'data[p:q]')}", "p = q")

    @contextmanager
    def length(self, letter: str, field: Field, name: str) -> Iterator[None]:
        """Add code that reads a length into `n`. The length is a number of fixed size, or a uvarint that is one higher
        than the length.

        If `n` is negative, the value is null. Lines that are added in the `with` block are executed only if the value
        is not null.
        """
        if field.tag is not None if letter == "b" else self.flexible and field.compact:
            self.byte()
            self.add("if n > 127:", "    n, p = _uvarint_at(data, p - 1)", "n -= 1")
        else:
            self.pending.append((letter, "n"))
            self.flush()
        if field.may_be_null(self.version):
            self.add("if n < 0:", f"    {name} = None")
            with self.block("else:"):
                yield
        else:
            self.reject("if n < 0:", "Corrupt", f"field {field.name} must not be null")
            yield

    def byte(self) -> None:
        """Add code that reads the pending numbers and a byte, and assigns the byte to `n`."""
        if self.pending:
            self.pending.append(("B", "n"))
            self.flush()
        else:
            self.add("n = data[p]", "p += 1")

    def flush(self) -> None:
        if self.pending:
            unpack, formats, names = self.take_pending("unpack_from")
            self.add(f"[{names}] = {unpack}(data, p)", f"p += {calcsize('>' + formats)}")


class _WriterSource(_FunctionSource):
    out = "small"
    """The variable that bytes are appended to."""

    def struct(self, schema: Struct, values: str) -> None:
        """Add code that writes the struct in the variable `values`."""
        self.structs += 1
        number = self.structs
        self.constants[f"names{number}"] = f"frozenset({[field.name for field in schema.fields]!r})"
        unknown = f"{schema.name} has no field {{min({values}.keys() - names{number})!r}}"
        self.reject(f"if not names{number}.issuperset({values}):", "BadRequest", unknown)
        for field in schema.untagged(self.version):
            # A missing field is null only in versions that allow null.
            default = (field if field.may_be_null(self.version) else replace(field, nullable=False)).initial()
            text, name = f"{values}.get({field.name!r}, {default!r})", f"{field.name}_{number}"
            if field.kind in NUMBERS and not field.array:
                self.pending.append((NUMBERS[str(field.kind)], text))
            else:
                self.add(f"{name} = {text}")
                self.field(field, name)
        if self.flexible:
            self.tagged(schema.tagged(self.version), number, values)
        self.flush()

    def tagged(self, fields: Sequence[Field], number: int, values: str) -> None:
        self.flush()
        given, out = f"given{number}", self.out
        if fields:
            self.add(f"{given} = []")
        for field in fields:
            name, value = f"{field.name}_{number}", f"{values}[{field.name!r}]"
            with self.block(f"if {field.name!r} in {values} and {value} != {field.initial()!r}:"):
                self.out = f"content{number}"
                self.add(f"{self.out} = bytearray()", f"{name} = {value}")
                self.field(field, name)
                self.flush()
                self.add(f"{given}.append(({field.tag}, {self.out}))")
                self.out = out
        self.add(f"{out} += _tagged_bytes({given}) if {given} else b'\\0'" if fields else f"{out}.append(0)")

    def field(self, field: Field, name: str) -> None:
        if not field.array:
            self.value(field, name)
            return
        self.check_length(field, name, ("list", "()"), [f"n = len({name})"])
        self.length("i", field)
        letter, element = NUMBERS.get(str(field.kind)), f"element{self.structs}"
        if letter:
            self.add(f"{self.out} += pack(f'>{{len({name})}}{letter}', *{name})")
            return
        with self.block(f"for {element} in {name}:"):
            self.value(field.element(), element)

    def value(self, field: Field, name: str) -> None:
        """Add code that writes the value of the variable `name`, which must not be an array. Numbers are added to
        `pending`.
        """
        kind, out = field.kind, self.out
        if isinstance(kind, Struct):
            self.nested(field, kind, name)
        elif kind in NUMBERS:
            self.pending.append((NUMBERS[kind], name))
        elif kind == "uuid":
            self.flush()
            self.add(f"{out} += _uuid_bytes({name})")
        elif kind == "records":
            self.add(f"n = -1 if {name} is None else sum(map(len, {name}))")
            self.length("i", field)
            self.add(f"if {name}:", f"    output.parts += (small, *{name})", "    small = output.small = bytearray()")
        elif kind == "bytes":
            self.check_length(field, name, ("bytes", "b''"), [f"n = len({name})"])
            self.length("i", field)
            self.add(f"{out} += {name}")
        else:
            long = f"field {field.name} must have at most {MAX_STRING_BYTES} bytes of text, found {{n}}"
            lines = [f"{name} = {name}.encode('utf-8', 'replace')", f"n = len({name})", f"if n > {MAX_STRING_BYTES}:"]
            self.check_length(field, name, ("str", "b''"), [*lines, f"    raise BadRequest(f{long!r})"])
            self.length("h", field)
            self.add(f"{out} += {name}")

    def nested(self, field: Field, kind: Struct, name: str) -> None:
        if not field.may_be_null(self.version):
            self.reject_type(f"if not isinstance({name}, dict):", field, name)
            self.struct(kind, name)
            return
        self.flush()
        with self.block(f"if isinstance({name}, dict):"):
            self.add(f"{self.out}.append(1)")
            self.struct(kind, name)
        self.add(f"elif {name} is None:", f"    {self.out}.append({255 if field.tag is None else 0})")
        self.reject_type("else:", field, name)

    def check_length(self, field: Field, name: str, types: tuple[str, str], lines: Sequence[str]) -> None:
        """Add code that computes the length `n`. `types` contains the required type and the replacement for null."""
        self.add(f"if isinstance({name}, {types[0]}):", *(f"    {line}" for line in lines))
        if field.may_be_null(self.version):
            self.add(f"elif {name} is None:", f"    n, {name} = -1, {types[1]}")
        self.reject_type("else:", field, name)

    def reject_type(self, condition: str, field: Field, name: str) -> None:
        kind = "list" if field.array else field.kind.name if isinstance(field.kind, Struct) else field.kind
        self.reject(condition, "BadRequest", f"field {field.name} must be of type {kind}, found {{{name}!r}}")

    def length(self, letter: str, field: Field) -> None:
        """Add code that writes the length `n`. If the length has a fixed size, it is written together with the pending
        numbers.
        """
        compact = self.flexible and field.compact
        if not compact:
            self.pending.append((letter, "n"))
        self.flush()
        if compact:
            self.add("if n < 127:", f"    {self.out}.append(n + 1)", "else:", f"    {self.out} += uvarint(n + 1)")

    def flush(self) -> None:
        if self.pending:
            pack, _, expressions = self.take_pending("pack")
            self.add(f"{self.out} += {pack}({expressions})")
