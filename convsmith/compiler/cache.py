"""The cache of compiled kernels on disk.

Entries are code that will run, so the directory has to be the user's own, and nobody else may write to it or replace
it; one that is not, or that cannot be written, is not used, and the program works on with one warning. An entry is a
regular file: a magic word, the SHA-256 of key and content, the content. Files are written aside and renamed, so readers
and any number of writers never see half an entry; a damaged one (a crash can leave it empty), or one that was stored
under another key, is removed, with a warning, and counts as absent. The least recently used entries go when the
directory exceeds its size: reading one sets its time.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from platformdirs import user_cache_dir

from convsmith.codegen.artifact import ABI_VERSION
from convsmith.diag.forking import RenewedLock, import_lock
from convsmith.diag.settings import settings
from convsmith.diag.warning import ConvsmithWarning, warn

__all__ = ["CacheInfo", "CacheWarning", "DiskCache", "cache_key", "compiler_source_hash", "disk_cache"]

_MAGIC = b"convsmith cache 2\n"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size
_SUFFIX = ".entry"
_TEMPORARY = ".tmp"
_STALE_SECONDS = 60.0
_PUTS_BETWEEN_SCANS = 64
_KEPT = 0.9
_LARGEST_ENTRY = 1 << 26
"""Bytes of the largest file that is read, or written, as an entry."""
_counting = RenewedLock()


class CacheWarning(ConvsmithWarning):
    """The cache directory cannot be used, or an entry was damaged. The program works on without it."""


@dataclass(frozen=True)
class CacheInfo:
    """What `convsmith cache info` shows. `problem` says why the directory is not used; empty when it is."""

    directory: Path
    mode: str
    entries: int
    bytes: int
    limit: int
    problem: str


class DiskCache:
    """Bytes by key, in one directory of at most about `limit` bytes. Safe for threads and processes."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        # Both on the way to a link and to what it names. Only who may write there can make another link.
        above = (*directory.parents, *Path(os.path.realpath(directory)).parents)
        self._above = list(dict.fromkeys(map(str, above)))
        self._warned = False
        self._stuck: set[str] = set()
        self._full = False
        self._bytes = 0
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, or None."""
        if self._refused(create=False):
            return None
        path = self._path(key)
        try:
            data = _read_entry(path)
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
        try:
            os.utime(path)
        except OSError:
            pass  # removed by another process, or times cannot be set: only the order of removal suffers
        return data[_HEAD:]

    def discard(self, key: str, why: str) -> None:
        """Remove an entry that must not be believed, with one warning."""
        removed, path = _remove(self._path(key)), self._path(key)
        if not removed and key in self._stuck:
            return
        if not removed:
            self._stuck.add(key)
        outcome = "it is removed and made anew" if removed else "it cannot be removed: its kernel is not kept"
        warn(f"cache entry {path} {why}; {outcome}", CacheWarning)

    def put(self, key: str, content: bytes) -> None:
        """Store `content` under `key`; an entry larger than the whole cache may be is not stored."""
        size = _HEAD + len(content)
        if self._full or size > min(self.limit, _LARGEST_ENTRY) or self._refused(create=True):
            return
        try:
            self._write(key, content)
        except (FileNotFoundError, IsADirectoryError):
            return  # somebody removed the directory just now, or a folder stands where the entry should
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

    def info(self) -> CacheInfo:
        """The directory and what it holds now."""
        entries = self._entries()
        mode, problem = self._look()
        return CacheInfo(
            self.directory, mode, len(entries), sum(size for _, size, _ in entries), self.limit,
            "" if problem == _MISSING else problem,
        )  # fmt: skip

    def clear(self) -> int:
        """Remove every entry, and return how many there were. Nothing else in the directory is touched."""
        removed = sum(_remove(path) for path, _, _ in self._entries())
        self._remove_stale()
        with _counting.lock:
            self._bytes = 0
            self._full = False
        return removed

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _write(self, key: str, content: bytes) -> None:
        # Not by the tempfile module: it holds a lock, which a forked child would wait for.
        temporary = self.directory / f".{os.urandom(12).hex()}{_TEMPORARY}"
        try:
            with open(_new_file(temporary), "wb") as file:
                file.write(_MAGIC + _digest(key, content))
                file.write(content)
            os.replace(temporary, self._path(key))
        except BaseException:
            _remove(temporary)
            raise

    def _look(self) -> tuple[str, str]:
        """Mode of the directory, and why it must not be used (`_MISSING`: it does not exist yet)."""
        try:
            problem = _replaceable(self._above)
            found = os.stat(self.directory)
        except FileNotFoundError:
            return "none", problem or _MISSING
        except OSError as error:
            return "unknown", f"cannot be reached: {error.strerror}"
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        if problem:
            return mode, problem
        if not stat.S_ISDIR(found.st_mode):
            return mode, "is not a directory"
        if found.st_uid != os.geteuid():
            return mode, f"belongs to user {found.st_uid}, not {os.geteuid()}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return mode, "others can write to it"
        # The mode is asked too: access() lets root do anything.
        if found.st_mode & stat.S_IRWXU != stat.S_IRWXU or not os.access(self.directory, os.W_OK | os.X_OK):
            return mode, "cannot be written"
        return mode, ""

    def _refused(self, create: bool) -> bool:
        """True when the directory must not be used now; looked at each time, for it takes 5 us."""
        mode, problem = self._look()
        if problem == _MISSING and create:
            try:
                _make_private(self.directory)
            except OSError as error:
                self._warn(f"cannot be made: {error.strerror}", mode)
                return True
            mode, problem = self._look()
        if problem and problem != _MISSING:
            self._warn(problem, mode)
        return bool(problem)

    def _warn(self, problem: str, mode: str | None = None) -> None:
        with _counting.lock:
            if self._warned:
                return
            self._warned = True
        warn(
            f"cache directory {self.directory} (mode {mode or self._look()[0]}) is not used: {problem}; kernels are "
            "compiled in each process. Set CONVSMITH_CACHE to a directory of your own with mode 0700, or to 'off'",
            CacheWarning,
        )

    def _entries(self) -> list[tuple[Path, int, int]]:
        """Path, bytes and time of last use (ns) of every entry."""
        found = []
        try:
            with os.scandir(self.directory) as files:
                for file in files:
                    if file.name.endswith(_SUFFIX):
                        try:
                            status = file.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        found.append((Path(file.path), status.st_size, status.st_mtime_ns))
        except OSError:
            return []
        return found

    def _shrink(self) -> None:
        """Count the entries, and remove the least recently used ones until 90 % of the limit is not exceeded."""
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        if total > self.limit:
            # Files that no reader takes go first.
            for path, size, _ in sorted(entries, key=lambda entry: (entry[1] <= _LARGEST_ENTRY, entry[2])):
                if total <= self.limit * _KEPT:
                    break
                _remove(path)
                total -= size
        self._remove_stale()
        with _counting.lock:
            self._bytes = total

    def _remove_stale(self) -> None:
        """Remove what writers that died have left."""
        for path in self.directory.glob(f".*{_TEMPORARY}"):
            try:
                if time.time() - path.lstat().st_mtime >= _STALE_SECONDS:
                    path.unlink()
            except OSError:
                continue


_MISSING = "does not exist"

_caches: dict[tuple[Path, int], DiskCache] = {}


def disk_cache() -> DiskCache | None:
    """The cache that the settings ask for; None when they say "off". One object for each directory and size."""
    choice = settings.cache
    if choice == "off":
        return None
    directory = Path(user_cache_dir("convsmith")) if choice == "default" else Path(choice).absolute()
    limit = settings.cache_size
    found = _caches.get((directory, limit))
    return found or _caches.setdefault((directory, limit), DiskCache(directory, limit))


def cache_key(*parts: str) -> str:
    """The key of what is made from `parts` (problem, config, target with its CPU features, ...) by this compiler.

    The compiler's sources, the versions of llvmlite and LLVM, and the ABI version are part of it.
    """
    with import_lock:
        import llvmlite
        from llvmlite import binding as llvm

    versions = f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info} abi {ABI_VERSION}"
    digest = hashlib.sha256()
    for part in (compiler_source_hash(), versions, *parts):
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


@cache
def compiler_source_hash() -> str:
    """SHA-256 of every Python source of this package, with its name.

    The content is read only when a file's status (size, times, inode) was not seen before: 0.5 ms instead of 3.
    """
    return _tree_hash(Path(__file__).parents[1], disk_cache())


def _tree_hash(root: Path, memory: DiskCache | None) -> str:
    files = sorted(_sources(str(root)))
    status = hashlib.sha256(repr([(str(root), *files)]).encode()).hexdigest()
    known = memory.get(f"sources-{status}") if memory else None
    if memory and known is not None:
        if re.fullmatch(rb"[0-9a-f]{64}", known):
            return known.decode()
        memory.discard(f"sources-{status}", "is damaged: no SHA-256")
    digest = hashlib.sha256()
    for name, *_ in files:
        content = Path(name).read_bytes()
        digest.update(f"{os.path.relpath(name, root)}\0{len(content)}\0".encode() + content)
    if memory:
        memory.put(f"sources-{status}", digest.hexdigest().encode())
    return digest.hexdigest()


def _sources(folder: str) -> list[tuple[str, int, int, int, int]]:
    found = []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.endswith(".py"):
                status = item.stat()
                # The time of change and the inode too: an installer can give a new file the old file's time.
                found.append((item.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
            elif item.is_dir() and not item.name.startswith(("__", ".")):
                found += _sources(item.path)
    return found


class _UnfitEntry(Exception):
    """Why a file must not be taken for an entry."""


def _read_entry(path: Path) -> bytes:
    """The content of a regular file of the user's own, of a legal size. A FIFO or a device is not waited for."""
    if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device can have effects
        raise _UnfitEntry("is not a regular file")
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):  # replaced just now
            raise _UnfitEntry("is not a regular file")
        if found.st_uid != os.geteuid():
            raise _UnfitEntry(f"belongs to user {found.st_uid}")
        if found.st_size > _LARGEST_ENTRY:
            raise _UnfitEntry(f"has {found.st_size} bytes, more than the {_LARGEST_ENTRY} of the largest entry")
        return file.read(found.st_size)


def _new_file(path: Path) -> int:
    """A handle to a file that did not exist, which only the user may read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def _whole(key: str, data: bytes) -> bool:
    return data.startswith(_MAGIC) and _digest(key, data[_HEAD:]) == data[len(_MAGIC) : _HEAD]


def _make_private(directory: Path) -> None:
    """Make a directory, and the missing ones above it, with mode 0700."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _replaceable(above: Iterable[str]) -> str:
    """Why others can put another directory in the place of one below these; empty where they cannot."""
    for parent in above:
        try:
            mode = os.stat(parent).st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"others can replace it, because {parent} has mode {stat.S_IMODE(mode):04o} without the sticky bit"
    return ""


def _remove(path: Path) -> bool:
    """Remove a file, or an empty folder; True where it is gone."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rmdir()
        else:
            path.unlink()
    except OSError:
        return False
    return True
