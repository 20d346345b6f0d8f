"""Compile kernels to machine code with numba. This module also contains the memory access by address.

Numba's arrays have costs: a check for negative indices on every access, overlap checks in slice assignments, and atomic
reference counts if an array is passed to a function inside a branch. Therefore kernels convert their arrays to
addresses once, and work on integers. Each intrinsic below compiles to a single load or store. The intrinsics do not
check addresses. Every kernel compares positions with bounds before it reads, so that malicious input cannot cause harm.

Importing this module loads numba, so `machine_code` imports it only if a kernel is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils, compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from sparklog.format.kernels import kernel_memory
from sparklog.format.kernels.kernel_memory import Kind, Signature, helpers

_byte = ir.IntType(8)
_int64 = ir.IntType(64)


@intrinsic  # type: ignore[untyped-decorator]
def address(typing_context: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, args[0]).data, _int64)

    return types.int64(array), codegen


def _loader(bits: int, signed: bool) -> Any:
    def load(typing_context: Any, pointer: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            if bits == 64:
                return value
            return builder.sext(value, _int64) if signed else builder.zext(value, _int64)

        return types.int64(types.int64), codegen

    return intrinsic(load)


def _storer(bits: int) -> Any:
    def store(typing_context: Any, pointer: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(bits)
            low = args[1] if bits == 64 else builder.trunc(args[1], word)
            builder.store(low, builder.inttoptr(args[0], word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return intrinsic(store)


load_u8 = _loader(8, signed=False)
load_u32 = _loader(32, signed=False)
load_i32 = _loader(32, signed=True)
load_i64 = _loader(64, signed=True)
store_u8 = _storer(8)
store_i16 = _storer(16)
store_i32 = _storer(32)
store_i64 = _storer(64)


def _mover(width: int) -> Any:
    def move(typing_context: Any, to: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = ir.VectorType(_byte, width).as_pointer()
            value = builder.load(builder.inttoptr(args[1], pointer), align=1)
            builder.store(value, builder.inttoptr(args[0], pointer), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return intrinsic(move)


_move16 = _mover(16)
_move32 = _mover(32)


@intrinsic  # type: ignore[untyped-decorator]
def _memcpy(typing_context: Any, to: Any, source: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _byte.as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, pointer: Any) -> Any:
    """Prefetch a cache line. Any address is allowed, because a prefetch never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_byte.as_pointer(), word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_byte.as_pointer()], kind)
        builder.call(function, [builder.inttoptr(args[0], _byte.as_pointer()), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def bit_length(typing_context: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sub(_int64(64), builder.ctlz(args[0], ir.IntType(1)(0)))

    return types.int64(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def wrap(typing_context: Any, value: Any) -> Any:
    """Return the value unchanged, because int64 arithmetic has already wrapped."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]

    return types.int64(types.int64), codegen


@njit(nogil=True, forceinline=True)  # type: ignore[untyped-decorator]
def copy(to: int, source: int, count: int, source_end: int) -> None:
    """Copy `count` bytes. Bytes at or beyond `source_end` are never read.

    Short copies use entire vectors and may write up to 31 bytes more, so `to` needs `SLACK` more bytes.
    """
    if count <= 16 and source + 16 <= source_end:
        _move16(to, source)
    elif count <= 256 and source + count + 31 <= source_end:
        done = 0
        while done < count:
            _move32(to + done, source + done)
            done += 32
    else:
        _memcpy(to, source, count)


@njit(nogil=True, forceinline=True)  # type: ignore[untyped-decorator]
def crc32(cursor: int, length: int, table: int) -> int:
    """Return the CRC-32 (as in zlib) of `length` bytes. `table` is the address of `legacy_kernels.CRC_TABLE`."""
    crc = 0xFFFFFFFF
    while length >= 8:
        word = load_i64(cursor)
        low = (word ^ crc) & 0xFFFFFFFF
        high = (word >> 32) & 0xFFFFFFFF
        crc = (
            load_i64(table + 8 * (1792 + (low & 0xFF)))
            ^ load_i64(table + 8 * (1536 + (low >> 8 & 0xFF)))
            ^ load_i64(table + 8 * (1280 + (low >> 16 & 0xFF)))
            ^ load_i64(table + 8 * (1024 + (low >> 24)))
            ^ load_i64(table + 8 * (768 + (high & 0xFF)))
            ^ load_i64(table + 8 * (512 + (high >> 8 & 0xFF)))
            ^ load_i64(table + 8 * (256 + (high >> 16 & 0xFF)))
            ^ load_i64(table + 8 * (high >> 24))
        )
        cursor += 8
        length -= 8
    while length > 0:
        crc = load_i64(table + 8 * ((crc ^ load_u8(cursor)) & 0xFF)) ^ (crc >> 8)
        cursor += 1
        length -= 1
    return crc ^ 0xFFFFFFFF


@intrinsic  # type: ignore[untyped-decorator]
def siphash(typing_context: Any, cursors: Any, words: Any, lasts: Any, key_low: Any, key_high: Any, out: Any) -> Any:
    """Write the SipHash-2-4 of all keys at `cursors`. Each key is a lane of a vector."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, word_count, ends, low, high, to = args
        lanes = range(cursors.count)
        kind = ir.VectorType(_int64, cursors.count)

        def vector(values: Any) -> Any:
            joined = ir.Constant(kind, ir.Undefined)
            for lane, value in zip(lanes, values, strict=True):
                joined = builder.insert_element(joined, value, ir.Constant(ir.IntType(32), lane))
            return joined

        def xor(left: Any, right: int) -> Any:
            return builder.xor(left, _same(kind, right))

        def start() -> list[Any]:
            keys = [vector([key for _ in lanes]) for key in (low, high)]
            return [xor(keys[index & 1], word) for index, word in enumerate(kernel_memory.SIP_START)]

        def absorbed(state: list[Any], word: Any) -> list[Any]:
            v0, *others = _sip_rounds(builder, [*state[:3], builder.xor(state[3], word)], 2)
            return [builder.xor(v0, word), *others]

        variables = [cgutils.alloca_once_value(builder, word) for word in start()]
        with cgutils.for_range(builder, word_count) as loop:
            step = builder.mul(loop.index, _int64(8))
            ints = [builder.add(builder.extract_value(rows, lane), step) for lane in lanes]
            pointers = [builder.inttoptr(cursor, _int64.as_pointer()) for cursor in ints]
            word = vector([builder.load(pointer, align=1) for pointer in pointers])
            for variable, value in zip(variables, absorbed(list(map(builder.load, variables)), word), strict=True):
                builder.store(value, variable)
        last = vector([builder.extract_value(ends, lane) for lane in lanes])
        v0, v1, v2, v3 = absorbed(list(map(builder.load, variables)), last)
        for half in range(2):
            v1, v2 = (xor(v1, 0xDD), v2) if half else (v1, xor(v2, 0xEE))
            v0, v1, v2, v3 = _sip_rounds(builder, [v0, v1, v2, v3], 4)
            total = builder.xor(builder.xor(v0, v1), builder.xor(v2, v3))
            for lane in lanes:
                pointer = builder.inttoptr(builder.add(to, _int64(16 * lane + 8 * half)), _int64.as_pointer())
                builder.store(builder.extract_element(total, ir.Constant(ir.IntType(32), lane)), pointer, align=1)
        return context.get_dummy_value()

    return types.void(cursors, types.int64, lasts, types.int64, types.int64, types.int64), codegen


def _same(kind: Any, word: int) -> Any:
    return ir.Constant(kind, [word] * kind.count)


def _sip_rounds(builder: Any, state: Any, count: int) -> Any:
    def rotate(value: Any, by: int) -> Any:
        return builder.or_(builder.shl(value, _same(value.type, by)), builder.lshr(value, _same(value.type, 64 - by)))

    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = builder.add(v0, v1)
        v1 = builder.xor(rotate(v1, 13), v0)
        v2 = builder.add(v2, v3)
        v3 = builder.xor(rotate(v3, 16), v2)
        v0 = builder.add(rotate(v0, 32), v3)
        v3 = builder.xor(rotate(v3, 21), v0)
        v2 = builder.add(v2, v1)
        v1 = builder.xor(rotate(v1, 17), v2)
        v2 = rotate(v2, 32)
    return v0, v1, v2, v3


def object_code(function: Callable[..., Any], signature: Signature) -> tuple[str, bytes]:
    """Compile a kernel. Return the name of a function and an object file that contains it.

    The parameter of the function is the address of the arguments, which are int64. An array is passed as the address of
    its numpy object. Raises RuntimeError if the object file would refer to code outside of it.
    """
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"  # A division by zero is not an exception.
    kernel = njit(nogil=True, forceinline=True)(_native(function))
    with global_compiler_lock:
        result = compiler.compile_extra(
            cpu_target.typing_context, cpu_target.target_context, _entry(kernel, signature),
            (types.int64,), types.int64, flags, {},
        )  # fmt: skip
        functions = list(result.library._final_module.functions)
        outside = [each.name for each in functions if each.is_declaration and not each.name.startswith("llvm.")]
        if outside:
            raise RuntimeError(f"kernel {function.__name__} refers to {', '.join(outside)}")
        return str(result.fndesc.llvm_func_name), bytes(result.library._get_compiled_object())


def _entry(kernel: Any, signature: Signature) -> Any:
    """Return a function that calls a kernel with the arguments at an address."""
    names: dict[str, Any] = {"kernel": kernel, "load": load_i64}
    arguments = []
    for index, kind in enumerate(signature.parameters):
        names[f"array_{index}"] = _array(kind)
        loaded = f"load(address + {8 * index})"
        arguments.append(f"array_{index}({loaded})" if kind.dimensions else loaded)
    returned = "" if signature.result.dtype == "void" else "return "
    exec(f"def entry(address):\n    {returned}kernel({', '.join(arguments)})\n    return 0", names)
    return names["entry"]


def _array(kind: Kind) -> Any:
    """Return an intrinsic that returns numba's array of a numpy object, whose address is its argument."""

    @intrinsic  # type: ignore[untyped-decorator]
    def array(typing_context: Any, pointer: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def word(start: Any, index: int) -> Any:
                return builder.load(builder.inttoptr(builder.add(start, _int64(8 * index)), _int64.as_pointer()))

            # The fields of a numpy array: data, number of dimensions, shape, strides.
            fields = builder.add(args[0], _int64(object.__basicsize__))
            shape, strides = word(fields, 2), word(fields, 3)
            made = context.make_array(kind_type)(context, builder)
            populate_array(
                made,
                data=builder.inttoptr(word(fields, 0), made.data.type),
                shape=[word(shape, index) for index in range(kind_type.ndim)],
                strides=[word(strides, index) for index in range(kind_type.ndim)],
                itemsize=context.get_abi_sizeof(context.get_data_type(kind_type.dtype)),
                meminfo=None,
            )
            return made._getvalue()

        return kind_type(types.int64), codegen

    kind_type = _type(kind)
    return array


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled form of a helper, or the counterpart of a function of `kernel_memory`."""
    if function.__module__ == kernel_memory.__name__:
        return globals()[function.__name__]  # type: ignore[no-any-return]
    if function not in _helpers:
        _helpers[function] = njit(nogil=True, forceinline=True)(_native(function))
    return _helpers[function]


_helpers: dict[Callable[..., Any], Callable[..., Any]] = {}


def _native(function: Any) -> Any:
    """Return the same function with new globals, in which the names of helpers refer to their compiled forms."""
    names = {}
    for name, value in function.__globals__.items():
        plain = isinstance(value, FunctionType) and (value in helpers or value.__module__ == kernel_memory.__name__)
        names[name] = native(value) if plain and name in function.__code__.co_names else value
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _type(kind: Kind) -> Any:
    plain = getattr(types, kind.dtype)
    return types.Array(plain, kind.dimensions, "C", readonly=not kind.writable) if kind.dimensions else plain
