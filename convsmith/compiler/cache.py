"""The cache of compiled kernels on disk.

An entry is code that will be executed, so the directory must belong to the user, and no other user may be able to write
to it or replace it. A directory that violates this, or cannot be written, is not used; the program continues after one
warning. An entry is a regular file: a magic word, the SHA-256 of key and content, the content. A writer renames a
complete temporary file, so no reader ever sees half an entry. A damaged entry (a crash can leave it empty), or one
stored under another key, is removed with a warning and counts as absent. If the directory exceeds its limit, the least
recently used entries are removed; reading an entry updates its time.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_dir

from convsmith.codegen.artifact import ABI_VERSION
from convsmith.diag.files import directories_above, replaceable, writable_by_others
from convsmith.diag.forking import RenewedLock, import_lock
from convsmith.diag.record import record
from convsmith.diag.settings import settings
from convsmith.diag.warning import ConvsmithWarning, warn

__all__ = ["CacheInfo", "CacheWarning", "DiskCache", "cache_key", "compiler_source_hash", "disk_cache"]

_MAGIC = b"convsmith cache 2\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".entry"
_TEMPORARY = ".tmp"
_STALE_SECONDS = 60.0
"""Age in seconds from which a temporary file is considered abandoned."""
_PUTS_BETWEEN_SCANS = 64
"""Number of stored entries between two scans of the directory."""
_KEPT = 0.9
"""Fraction of the limit to which a full cache is reduced."""
_LARGEST_ENTRY = 1 << 26
"""Bytes of the largest entry that is read or written."""
_counting = RenewedLock()
T = TypeVar("T")


class CacheWarning(ConvsmithWarning):
    """The cache directory cannot be used, or an entry is damaged. The program continues without it."""


@record(frozen=True)
class CacheInfo:
    """The content of `convsmith cache info`. `problem` states why the directory is not used; empty if it is used."""

    directory: Path
    mode: str
    entries: int
    bytes: int
    limit: int
    problem: str


class DiskCache:
    """A store of bytes by key in one directory of about `limit` bytes at most. Safe for threads and processes."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._folder = str(directory)
        self._above = directories_above(directory)
        self._warned = False
        self._stuck: set[str] = set()
        self._full = False
        self._bytes = 0
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """Return the content stored under `key`, or None."""
        if self._refused(create=False):
            return None
        try:
            data = _read_entry(self._path(key))
            if not _whole(key, data):
                raise _UnfitEntry("is damaged, or was stored under another key")
        except FileNotFoundError:
            return None
        except _UnfitEntry as why:
            self.discard(key, str(why))
            return None
        except OSError as error:
            self._warn(f"cannot be read: {error.strerror}")
            return None
        return data[_HEAD:]

    def decoded(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """Return the result of ``decode`` for the content stored under `key`, or None.

        An entry for which it raises ValueError is removed with a warning.
        """
        content = self.get(key)
        try:
            return None if content is None else decode(content)
        except (ValueError, RecursionError) as error:
            self.discard(key, f"is damaged: {error}")
            return None

    def discard(self, key: str, why: str) -> None:
        """Remove an untrustworthy entry, with one warning."""
        removed, path = _remove(self._path(key)), self._path(key)
        if not removed and key in self._stuck:
            return
        if not removed:
            self._stuck.add(key)
        outcome = "it is removed and made anew" if removed else "it cannot be removed: its kernel is not kept"
        warn(f"cache entry {path} {why}; {outcome}", CacheWarning)

    def put(self, key: str, content: bytes) -> None:
        """Store `content` under `key`, unless it is larger than the cache or the largest entry."""
        size = _HEAD + len(content)
        if self._full or size > min(self.limit, _LARGEST_ENTRY) or self._refused(create=True):
            return
        try:
            self._write(key, content)
        except (FileNotFoundError, IsADirectoryError):
            return  # the directory was just removed, or a folder has the name of the entry
        except OSError as error:
            self._full = True
            self._warn(f"cannot be written: {error.strerror}")
            return
        with _counting.lock:
            self._bytes += size
            self._puts += 1
            scan = self._puts % _PUTS_BETWEEN_SCANS == 1 or self._bytes > self.limit
        if scan:
            self._shrink()

    def opened(self, name: str) -> int | None:
        """Return a descriptor of the file ``name`` of the directory, which is created if necessary; None if that fails.
        """
        if self._refused(create=True):
            return None
        try:
            path = self.directory / name
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror}")
            return None

    def info(self) -> CacheInfo:
        """Return the directory's state and content."""
        entries = self._entries()
        problem = self._problem()
        return CacheInfo(
            self.directory, self._mode(), len(entries), sum(size for _, size, _ in entries), self.limit,
            "" if problem == _MISSING else problem,
        )  # fmt: skip

    def clear(self) -> int:
        """Remove every entry and return their number. Other files in the directory stay."""
        removed = sum(_remove(path) for path, _, _ in self._entries())
        self._remove_stale()
        with _counting.lock:
            self._bytes = 0
            self._full = False
        return removed

    def _path(self, key: str) -> str:
        return f"{self._folder}{os.sep}{key}{_SUFFIX}"

    def _write(self, key: str, content: bytes) -> None:
        # The tempfile module holds a lock, on which a forked child would wait for ever.
        temporary = self.directory / f".{os.urandom(12).hex()}{_TEMPORARY}"
        try:
            with open(_new_file(temporary), "wb") as file:
                file.write(_MAGIC + _digest(key, content))
                file.write(content)
            os.replace(temporary, self._path(key))
        except BaseException:
            _remove(temporary)
            raise

    def _mode(self) -> str:
        """Return the mode of the directory, for messages."""
        try:
            return f"{stat.S_IMODE(os.stat(self._folder).st_mode):04o}"
        except FileNotFoundError:
            return "none"
        except OSError:
            return "unknown"

    def _problem(self) -> str:
        """Return the reason why the directory must not be used (`_MISSING`: it does not exist yet); empty if it may be
        used.
        """
        try:
            problem = replaceable(self._above)
            status = os.stat(self._folder)
        except FileNotFoundError:
            return problem or _MISSING
        except OSError as error:
            return f"cannot be reached: {error.strerror}"
        if problem:
            return problem
        if not stat.S_ISDIR(status.st_mode):
            return "is not a directory"
        if problem := writable_by_others(status):
            return problem
        # The mode is checked as well, because access() grants root everything.
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU or not os.access(self._folder, os.W_OK | os.X_OK):
            return "cannot be written"
        return ""

    def _refused(self, create: bool) -> bool:
        """Return whether the directory must not be used now. The check takes 5 us and is repeated at each access."""
        problem = self._problem()
        if problem == _MISSING and create:
            try:
                _make_private(self.directory)
            except OSError as error:
                self._warn(f"cannot be made: {error.strerror}")
                return True
            problem = self._problem()
        if problem and problem != _MISSING:
            self._warn(problem)
        return bool(problem)

    def _warn(self, problem: str) -> None:
        with _counting.lock:
            if self._warned:
                return
            self._warned = True
        warn(
            f"cache directory {self.directory} (mode {self._mode()}) is not used: {problem}; kernels are "
            "compiled in each process. Set CONVSMITH_CACHE to a directory of your own with mode 0700, or to 'off'",
            CacheWarning,
        )

    def _entries(self) -> list[tuple[Path, int, int]]:
        """Return path, bytes and time of last use (ns) of every entry."""
        entries = []
        try:
            with os.scandir(self.directory) as files:
                for file in files:
                    if file.name.endswith(_SUFFIX):
                        try:
                            status = file.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        entries.append((Path(file.path), status.st_size, status.st_mtime_ns))
        except OSError:
            return []
        return entries

    def _shrink(self) -> None:
        """Count the entries; if they exceed the limit, remove the least recently used until 90 % of the limit remain.
        """
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        if total > self.limit:
            # Files that are too large for a reader are removed first.
            for path, size, _ in sorted(entries, key=lambda entry: (entry[1] <= _LARGEST_ENTRY, entry[2])):
                if total <= self.limit * _KEPT:
                    break
                _remove(path)
                total -= size
        self._remove_stale()
        with _counting.lock:
            self._bytes = total

    def _remove_stale(self) -> None:
        """Remove temporary files of writers that died."""
        for path in self.directory.glob(f".*{_TEMPORARY}"):
            try:
                if time.time() - path.lstat().st_mtime >= _STALE_SECONDS:
                    path.unlink()
            except OSError:
                continue


_MISSING = "does not exist"

_caches: dict[tuple[str, int], DiskCache] = {}


def disk_cache() -> DiskCache | None:
    """Return the cache that the settings name, one object per directory and size; None if it is off."""
    choice = settings.cache
    if choice == "off":
        return None
    named = user_cache_dir("convsmith") if choice == "default" else str(choice)
    directory = named if os.path.isabs(named) else os.path.join(os.getcwd(), named)
    limit = settings.cache_size
    existing = _caches.get((directory, limit))
    return existing or _caches.setdefault((directory, limit), DiskCache(Path(directory), limit))


def cache_key(*parts: str) -> str:
    """Return the key of an artifact made from `parts` (problem, config, target with its CPU features, ...).

    The key also covers the compiler's sources, the versions of llvmlite and LLVM, and the ABI version.
    """
    digest = _compiler().copy()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, part: str) -> None:
    text = part.encode()
    digest.update(len(text).to_bytes(8, "little") + text)


@cache
def _compiler() -> hashlib._Hash:
    """Return the digest of what all keys of this process have in common."""
    with import_lock:
        import llvmlite
        from llvmlite import binding as llvm

    digest = hashlib.sha256()
    _add(digest, compiler_source_hash())
    _add(digest, f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info} abi {ABI_VERSION}")
    return digest


@cache
def compiler_source_hash() -> str:
    """Return the SHA-256 of every Python source and every table of this package, with its name.

    A cached digest is used if the status (size, times, inode) of every file is unchanged: 0.5 ms instead of 3.
    """
    return _tree_hash(Path(__file__).parents[1], disk_cache())


def _tree_hash(root: Path, memory: DiskCache | None) -> str:
    files = sorted(_sources(str(root)))
    status = hashlib.sha256(repr([(str(root), *files)]).encode()).hexdigest()
    known = memory.decoded(f"sources-{status}", _hash_text) if memory else None
    if known is not None:
        return known
    digest, above = hashlib.sha256(), len(f"{root}{os.sep}")
    for name, *_ in files:
        with open(name, "rb", buffering=0) as file:
            content = file.read()
        digest.update(f"{name[above:]}\0{len(content)}\0".encode() + content)
    if memory:
        memory.put(f"sources-{status}", digest.hexdigest().encode())
    return digest.hexdigest()


def _hash_text(known: bytes) -> str:
    """Return a SHA-256 as text; ValueError if the bytes are not a SHA-256."""
    if re.fullmatch(rb"[0-9a-f]{64}", known) is None:
        raise ValueError("no SHA-256")
    return known.decode()


def _sources(folder: str) -> list[tuple[str, int, int, int, int]]:
    files = []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith((".py", ".json")):
                status = item.stat()
                # An installer can give a new file the old file's modification time, but not its ctime and inode.
                files.append((item.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
            elif item.is_dir() and not item.name.startswith(("__", ".")):
                files += _sources(item.path)
    return files


class _UnfitEntry(Exception):
    """The reason why a file is not a legal entry."""


def _read_entry(path: str) -> bytes:
    """Return the content of a regular file that belongs to the user and has a legal size. Never blocks on a FIFO or
    device.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device can have effects
        raise _UnfitEntry("is not a regular file")
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):  # replaced since the first check
            raise _UnfitEntry("is not a regular file")
        if status.st_uid != os.geteuid():
            raise _UnfitEntry(f"belongs to user {status.st_uid}")
        if status.st_size > _LARGEST_ENTRY:
            raise _UnfitEntry(f"has {status.st_size} bytes, more than the {_LARGEST_ENTRY} of the largest entry")
        data = os.read(file, status.st_size)
        while len(data) < status.st_size and (more := os.read(file, status.st_size - len(data))):
            data += more
        try:
            os.utime(file)
        except OSError:
            pass  # times cannot be set, which only affects the order of removal
        return data
    finally:
        os.close(file)


def _new_file(path: Path) -> int:
    """Return a descriptor of a new file that only the user may read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def _whole(key: str, data: bytes) -> bool:
    return data.startswith(_MAGIC) and _digest(key, data[_HEAD:]) == data[len(_MAGIC) : _HEAD]


def _make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _remove(path: str | Path) -> bool:
    """Remove a file or an empty folder; return whether it is gone."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True
