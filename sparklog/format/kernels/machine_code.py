"""Load compiled kernels, without numba if they are in the cache.

`native_kernels` compiles a kernel to an object file without references to other code. Loading an object file takes
about a millisecond, in addition to 40 ms of CPU time for llvmlite in the first load of a process. numba, which is only
imported if a kernel is not in the cache, takes 0.3 s and 60 MB of memory.

A compiled kernel is called with the address of its arguments, which are integers and the addresses of numpy arrays. It
reads the data and the shape of each array, whose type has been checked before.

A file of the cache consists of the SHA-256 of the rest, the name of the function, a line feed, and the object file. The
name of the cache directory contains a hash of all that the object files depend on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np

from sparklog.format.kernels.kernel_memory import Signature

SUFFIX = ".kernel"
_DIGEST_BYTES = 32
_C_CONTIGUOUS, _WRITEABLE = 0x1, 0x400
"""Bits of `numpy.ndarray.flags.num`."""

LOADING = threading.RLock()
"""Held while a kernel is loaded or compiled. A fork waits until no other thread holds it
(`sparklog.storage.fork_safety`).
"""

_engines: list[Any] = []
"""The engines of all loaded kernels, which own their machine code."""


def _digest() -> str:
    """Return a hash of the compiler, the processor, and the sources of all kernels, including the kernels of packages
    above this package.
    """
    state = hashlib.sha256()
    features = llvm.get_host_cpu_features().flatten()
    for part in (llvm.llvm_version_info, llvm.get_host_cpu_name(), features, object.__basicsize__):
        state.update(f"{part}\n".encode())
    for path in sorted(Path(__file__).parents[2].rglob("*kernel*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def _private_directory(name: str) -> Path:
    """Create a temporary directory that no other user can write to, because the process runs the cached kernels."""
    path = Path(tempfile.gettempdir()) / f"{name}-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    safe = ours and not path.is_symlink() and not status.st_mode & 0o022
    return path if safe else Path(tempfile.mkdtemp(prefix=name))


def cache_directory(package: Path | None = None) -> str | None:
    """Return the directory of compiled kernels, or None if no directory is writable.

    The directory is in `__pycache__` of the package, or is a private temporary directory if the installation is
    read-only. In this case, the cache of the installation is copied, so that no kernel is compiled again.
    """
    try:
        name = f"kernels-{_digest()}"
        preferred = (package or Path(__file__).parent) / "__pycache__" / name
        try:
            preferred.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=preferred):
                return str(preferred)
        except OSError:
            fallback = _private_directory("sparklog-kernels") / name
            if preferred.is_dir() and not fallback.exists():
                shutil.copytree(preferred, fallback)
            fallback.mkdir(exist_ok=True)
            return str(fallback)
    except OSError:
        return None


CACHE_DIRECTORY = cache_directory()


def compiled(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Return a compiled kernel, from the cache if possible. The kernel runs without the GIL."""
    with LOADING:
        file = _file(function)
        code = None if file is None else _read(file)
        if code is None:
            from sparklog.format.kernels.native_kernels import object_code

            code = object_code(function, signature)
            if file is not None:
                _write(file, *code)
        return _callable(_address(*code), signature)


def is_cached(function: Callable[..., Any]) -> bool:
    """Return True if a kernel can be loaded without numba."""
    file = _file(function)
    return file is not None and file.exists()


def _file(function: Callable[..., Any]) -> Path | None:
    """Return the file of a kernel, or None if no directory is writable."""
    if CACHE_DIRECTORY is None:
        return None
    return Path(CACHE_DIRECTORY, f"{function.__module__}.{function.__name__}{SUFFIX}")


def _read(file: Path) -> tuple[str, bytes] | None:
    """Return the name of a function and its object file, or None if the file does not exist or is damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    name, _, code = content.partition(b"\n")
    return name.decode(), code


def _write(file: Path, name: str, code: bytes) -> None:
    """Write a file of the cache. If this fails, for example because the disk is full, the kernel is not cached."""
    content = name.encode() + b"\n" + code
    with suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, file)
        except OSError:
            Path(temporary).unlink(missing_ok=True)


def _address(name: str, code: bytes) -> int:
    """Return the address of a function of an object file.

    Each object file has an engine of its own, because functions of different files may have the same name.
    """
    if not _engines:
        with suppress(RuntimeError):  # Later versions of llvmlite initialize themselves and reject the call.
            llvm.initialize()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(name)
    if not address:
        raise RuntimeError(f"the object file of a kernel has no function {name}")
    _engines.append(engine)
    return address


def _callable(address: int, signature: Signature) -> Callable[..., Any]:
    """Return a function that checks its arguments and calls the function at an address.

    The first two parameters of a function that numba compiles are the addresses of the result and of an exception. It
    returns a status. The third parameter is the address of the arguments. The source of the returned function depends
    on the signature, because a loop over the arguments would take longer than a kernel takes for a few records.
    """
    count = len(signature.parameters)
    pointers = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    names: dict[str, Any] = {
        "function": ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(address),
        "pack": struct.Struct(f"={count}q").pack,
        "words": ctypes.c_int64 * 2,
        "address": ctypes.addressof,
        "ndarray": np.ndarray,
    }
    lines, passed = [f"def call({', '.join(f'a{index}' for index in range(count))}):"], []
    for index, kind in enumerate(signature.parameters):
        name = f"a{index}"
        passed.append(f"id({name})" if kind.dimensions else name)
        if kind.dimensions:
            names[f"type_{index}"], names[f"check_{index}"] = np.dtype(kind.dtype), kind.check
            flags = _C_CONTIGUOUS | (_WRITEABLE if kind.writable else 0)
            lines.append(
                f"    if not (type({name}) is ndarray and {name}.dtype is type_{index} and "
                f"{name}.ndim == {kind.dimensions} and {name}.flags.num & {flags} == {flags}): check_{index}({name})"
            )
    lines += [
        "    result = words()",
        "    at = address(result)",
        f"    if function(at, at + 8, pack({', '.join(passed)})): raise RuntimeError('a kernel has failed')",
        "" if signature.result.dtype == "void" else "    return result[0]",
    ]
    exec("\n".join(lines), names)
    call: Callable[..., Any] = names["call"]
    return call
