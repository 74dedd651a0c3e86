"""The disk cache: round trips, damage, directories that must not be used, full disks, size, processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import socket
import stat
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from convsmith.compiler import cache as cache_module
from convsmith.compiler.cache import CacheWarning, DiskCache, disk_cache
from convsmith.diag.settings import settings

BIG = 1 << 20


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", BIG)


@pytest.fixture(autouse=True)
def warnings_are_errors() -> object:
    """A warning that a test does not expect fails it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def use(cache: DiskCache) -> list[str]:
    """Use the cache a few times, in every way, and return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            cache.get("a")
            cache.put("a", b"content")
            cache.put("b", b"content")
            cache.get("b")
        cache.info()
        cache.clear()
    assert all(issubclass(each.category, CacheWarning) for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 500])
def test_round_trip(cache: DiskCache, content: bytes) -> None:
    assert cache.get("key") is None
    cache.put("key", content)
    assert cache.get("key") == content
    assert DiskCache(cache.directory, BIG).get("key") == content
    cache.put("key", b"other")
    assert cache.get("key") == b"other"
    assert use(cache) == []


def test_directory_and_entries_are_private(cache: DiskCache) -> None:
    cache.put("key", b"content")
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    (entry,) = cache.directory.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_reading_makes_no_directory(cache: DiskCache) -> None:
    assert cache.get("key") is None
    assert cache.info().entries == 0 and cache.info().problem == ""
    assert cache.clear() == 0
    assert not cache.directory.exists()


def test_directory_that_disappears_is_made_again(cache: DiskCache) -> None:
    cache.put("key", b"content")
    cache.clear()
    cache.directory.rmdir()
    assert cache.get("key") is None
    cache.put("key", b"content")
    assert cache.get("key") == b"content"


def entry_of(cache: DiskCache) -> Path:
    (entry,) = cache.directory.glob("*.entry")
    return entry


@pytest.mark.parametrize("at", [0, 5, 20, 40, 49, 50, 60, -1])
def test_damage_is_noticed_once_and_mended(cache: DiskCache, at: int) -> None:
    cache.put("key", b"some content")
    data = bytearray(entry_of(cache).read_bytes())
    data[at] ^= 1
    entry_of(cache).write_bytes(data)
    with pytest.warns(CacheWarning, match=r"entry .*key\.entry is damaged, .*; it is removed and made anew") as caught:
        assert cache.get("key") is None
    assert len(caught) == 1
    assert cache.get("key") is None  # now simply absent
    cache.put("key", b"some content")
    assert cache.get("key") == b"some content"


@pytest.mark.parametrize("size", [0, 1, 18, 49, 50, 55])
def test_entry_cut_short_by_a_crash(cache: DiskCache, size: int) -> None:
    cache.put("key", b"some content")
    os.truncate(entry_of(cache), size)
    with pytest.warns(CacheWarning, match="damaged"):
        assert cache.get("key") is None
    assert list(cache.directory.iterdir()) == []


def test_entry_of_another_user_is_removed(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"content")
    real = os.fstat

    def planted(handle: int) -> os.stat_result:
        fields = list(real(handle))
        fields[stat.ST_UID] = 4242
        return os.stat_result(fields)

    monkeypatch.setattr(cache_module.os, "fstat", planted)
    with pytest.warns(CacheWarning, match="belongs to user 4242; it is removed"):
        assert cache.get("key") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_directory_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    cache = DiskCache(directory, BIG)
    cache.put("a", b"planted")
    directory.chmod(mode)
    (message,) = use(cache)
    assert f"cache directory {directory} (mode {mode:04o}) is not used: others can write to it" in message
    assert len(list(directory.iterdir())) == 0  # `clear` works, nothing was written
    assert f"{mode:04o}" in cache.info().mode and "others can write" in cache.info().problem


def test_directory_opened_while_in_use(cache: DiskCache) -> None:
    cache.put("key", b"content")
    assert cache.get("key") == b"content"
    cache.directory.chmod(0o777)
    with pytest.warns(CacheWarning, match="mode 0777"):
        assert cache.get("key") is None


@pytest.mark.parametrize("mode", [0o500, 0o400, 0o600, 0o000])
def test_directory_that_cannot_be_written(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "closed"
    directory.mkdir()
    directory.chmod(mode)
    (message,) = use(DiskCache(directory, BIG))
    directory.chmod(0o700)
    assert f"{directory} (mode {mode:04o}) is not used: cannot be written; kernels are compiled in each" in message
    assert list(directory.iterdir()) == []


def test_read_only_file_system(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"content")
    monkeypatch.setattr(cache_module.os, "access", lambda path, mode: False)
    (message,) = use(cache)
    assert "(mode 0700) is not used: cannot be written" in message


def test_directory_of_another_user(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"content")
    owner = os.geteuid()
    monkeypatch.setattr(cache_module.os, "geteuid", lambda: owner + 1)
    (message,) = use(cache)
    assert f"(mode 0700) is not used: belongs to user {owner}, not {owner + 1}" in message


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (message,) = use(DiskCache(tmp_path / "file", BIG))
    assert "is not used: is not a directory" in message
    (message,) = use(DiskCache(tmp_path / "file" / "below", BIG))
    assert "is not used: cannot be reached: Not a directory" in message
    assert (tmp_path / "file").read_text() == "precious"


def test_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    (message,) = use(DiskCache(tmp_path / "cache", BIG))
    assert "(mode none) is not used: cannot be made: Permission denied" in message


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("call", ["_new_file", "replace"])
def test_full_disk(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, code: int, call: str) -> None:
    cache.put("old", b"content")

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module if call == "_new_file" else os, call, fail)
    with pytest.warns(CacheWarning) as caught:
        for _ in range(3):
            cache.put("new", b"content")
    (message,) = (str(each.message) for each in caught)
    assert f"{cache.directory} (mode 0700) is not used: cannot be written: {os.strerror(code)}" in message
    monkeypatch.undo()
    assert cache.get("old") == b"content"
    assert cache.get("new") is None
    assert [path.name for path in cache.directory.iterdir()] == ["old.entry"]


def test_disk_that_is_really_full(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes go to a device that has no space; whatever was begun is removed."""
    real = cache_module._new_file

    def on_full_device(path: Path) -> int:
        os.close(real(path))
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(cache_module, "_new_file", on_full_device)
    with pytest.warns(CacheWarning, match="cannot be written: No space left on device"):
        cache.put("key", bytes(100_000))
    assert list(cache.directory.iterdir()) == []


def test_unreadable_entry(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("key", b"content")

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(cache_module, "_read_entry", fail)
    with pytest.warns(CacheWarning, match="cannot be read: Input/output error"):
        assert cache.get("key") is None


@pytest.mark.parametrize("one", ["a", "sources-x"])
def test_entry_under_another_key(cache: DiskCache, one: str) -> None:
    cache.put(one, b"content")
    os.replace(entry_of(cache), cache.directory / "b.entry")
    with pytest.warns(CacheWarning, match=r"b\.entry is damaged, or was stored under another") as caught:
        assert cache.get("b") is None and cache.get(one) is None
    assert len(caught) == 1 and list(cache.directory.iterdir()) == []


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's path must be short
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


def plant_sparse(path: Path) -> None:
    path.write_bytes(cache_module._MAGIC)
    os.truncate(path, 1 << 40)


PLANTED: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": lambda path: path.symlink_to(__file__),
    "link to nothing": lambda path: path.symlink_to("/nowhere/at/all"),
    "link to itself": lambda path: path.symlink_to(path),
    "socket": plant_socket,
    "folder": Path.mkdir,
    "sparse file": plant_sparse,
}


@pytest.mark.parametrize("kind", list(PLANTED))
def test_an_entry_that_is_no_file_of_an_entrys_size(cache: DiskCache, kind: str) -> None:
    """Nothing is waited for, followed or read; the entry is removed with one warning, and works again."""
    cache.put("other", b"kept")
    PLANTED[kind](cache.directory / "key.entry")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(20)
    with pytest.warns(CacheWarning, match=r"key\.entry (is not a regular file|has \d+ bytes).*it is removed") as caught:
        assert cache.get("key") is None and cache.get("key") is None
    signal.alarm(0)
    assert len(caught) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 32 << 10
    cache.put("key", b"content")
    assert cache.get("key") == b"content" and cache.get("other") == b"kept"
    assert Path(__file__).exists()


@pytest.mark.parametrize("kind", list(PLANTED))
def test_planted_files_are_listed_and_removed(cache: DiskCache, kind: str) -> None:
    cache.put("other", b"kept")
    PLANTED[kind](cache.directory / "key.entry")
    assert cache.info().entries == 2
    cache._shrink()
    assert cache.get("other") == b"kept"
    assert cache.clear() >= 1 and list(cache.directory.iterdir()) == []


def test_a_folder_that_holds_files_stays(cache: DiskCache) -> None:
    (cache.directory / "key.entry" / "mine").mkdir(parents=True, mode=0o700)
    with pytest.warns(CacheWarning, match="cannot be removed: its kernel is not kept") as caught:
        for _ in range(3):
            assert cache.get("key") is None
            cache.put("key", b"content")
    assert len(caught) == 1
    cache.put("other", b"content")
    assert cache.get("other") == b"content"


def test_content_larger_than_any_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_LARGEST_ENTRY", 200)
    cache = DiskCache(tmp_path / "cache", BIG)
    cache.put("large", bytes(200))
    cache.put("small", bytes(100))
    assert cache.get("large") is None and cache.get("small") == bytes(100)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_parents_are_private_too(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        cache = DiskCache(tmp_path / "a" / "b" / "cache", BIG)
        cache.put("key", b"content")
    finally:
        os.umask(before)
    assert cache.get("key") == b"content"
    for path in (tmp_path / "a", tmp_path / "a" / "b", cache.directory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("through", ["itself", "a link"])
def test_a_parent_in_which_others_can_replace_it(tmp_path: Path, levels: int, exists: bool, through: str) -> None:
    """World-writable and not sticky, at any distance, on the way to the directory or to what a link names."""
    bad = tmp_path / "open"
    directory = bad.joinpath(*"abc"[:levels])
    directory.parent.mkdir(parents=True)
    if exists or through == "a link":
        directory.mkdir(mode=0o700)
    bad.chmod(0o777)
    if through == "a link":
        (tmp_path / "link").symlink_to(directory)
        directory = tmp_path / "link"
    cache = DiskCache(directory, BIG)
    (message,) = use(cache)
    assert f"cache directory {directory} (mode " in message
    assert f"others can replace it, because {bad} has mode 0777 without the sticky bit" in message
    assert "others can replace it" in cache.info().problem
    assert list(bad.rglob("*.entry")) == [] and directory.exists() == (exists or through == "a link")
    bad.chmod(0o1777)
    assert use(DiskCache(directory, BIG)) == []


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 10_000)
    for number in range(9):
        cache.put(f"k{number}", bytes(1000))
        os.utime(tmp_path / "cache" / f"k{number}.entry", (number, number))
    assert cache.get("k0") is not None  # used just now
    cache.put("k9", bytes(1000))
    assert cache.info().bytes <= 10_000
    assert cache.get("k0") is not None and cache.get("k9") is not None
    assert cache.get("k1") is None and cache.get("k8") is not None


def test_room_is_made_for_more_than_one_entry(tmp_path: Path) -> None:
    """The oldest go until 90 % of the limit is not exceeded, and no more than those."""
    cache = DiskCache(tmp_path / "cache", 10_000)
    sizes = []
    for number in range(30):
        cache.put(f"k{number:02}", bytes(450))
        os.utime(tmp_path / "cache" / f"k{number:02}.entry", (number, number))
        sizes.append(cache.info().bytes)
    entry = sizes[0]
    assert max(sizes) > 10_000 - entry
    after = [b for a, b in pairwise(sizes) if b < a]
    assert after and all(9_000 - entry < size <= 9_000 for size in after)
    kept = sorted(path.name for path in cache.directory.iterdir())
    assert kept == [f"k{number:02}.entry" for number in range(30 - len(kept), 30)]


def test_a_cleared_cache_is_written_again(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is room, that the disk was full counts no longer."""
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("convsmith.compiler.cache._new_file", fail)
        with pytest.warns(CacheWarning, match="No space left"):
            cache.put("new", b"content")
    cache.put("new", b"content")
    assert cache.get("new") is None
    cache.clear()
    cache.put("new", b"content")
    assert cache.get("new") == b"content"


def test_size_stays_bounded_across_instances(tmp_path: Path) -> None:
    """Each process knows only of its own entries until it looks."""
    for number in range(30):
        DiskCache(tmp_path / "cache", 10_000).put(f"k{number}", bytes(900))
        assert DiskCache(tmp_path / "cache", 10_000).info().bytes <= 10_000
    assert DiskCache(tmp_path / "cache", 10_000).get("k29") is not None


def test_entry_larger_than_the_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 1000)
    cache.put("small", bytes(500))
    cache.put("large", bytes(1000))
    assert cache.get("large") is None and cache.get("small") is not None


def test_info_and_clear(cache: DiskCache) -> None:
    cache.put("a", bytes(100))
    cache.put("b", bytes(200))
    info = cache.info()
    assert (info.directory, info.mode, info.entries, info.limit, info.problem) == (cache.directory, "0700", 2, BIG, "")
    assert 300 < info.bytes < 500
    (cache.directory / "notes.txt").write_text("not ours")
    (cache.directory / ".left.tmp").write_text("by a writer that died")
    os.utime(cache.directory / ".left.tmp", (1, 1))
    assert cache.clear() == 2
    assert [path.name for path in cache.directory.iterdir()] == ["notes.txt"]
    assert cache.get("a") is None


def test_leftovers_of_dead_writers_go_when_they_are_old(cache: DiskCache) -> None:
    cache.directory.mkdir(mode=0o700)
    for name, age in ((".old.tmp", 7200), (".new.tmp", 10)):
        (cache.directory / name).write_bytes(b"half")
        os.utime(cache.directory / name, (time.time() - age,) * 2)
    cache.put("key", b"content")
    assert sorted(path.name for path in cache.directory.iterdir()) == [".new.tmp", "key.entry"]


def _worker(directory: Path, seed: int, failures: multiprocessing.SimpleQueue) -> None:
    warnings.simplefilter("error")
    cache = DiskCache(directory, 60_000)
    try:
        for turn in range(150):
            number = (seed * 7 + turn) % 10
            content = cache.get(f"k{number}")
            if content is not None and content != bytes([number]) * (4000 + number):
                failures.put(f"wrong content of k{number}")
            cache.put(f"k{number}", bytes([number]) * (4000 + number))
            if turn % 40 == 39:
                cache.clear()
    except Exception as error:
        failures.put(repr(error))


def test_concurrent_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    workers = [context.Process(target=_worker, args=(tmp_path / "cache", seed, failures)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert failures.empty(), failures.get()
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".entry"] == []


def test_settings_choose_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.scope(cache="off"):
        assert disk_cache() is None
    with settings.scope(cache=tmp_path / "mine", cache_size="3M"):
        chosen = disk_cache()
        assert chosen is not None and chosen is disk_cache()
        assert (chosen.directory, chosen.limit) == (tmp_path / "mine", 3 << 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with settings.scope(cache="default", cache_size=None):
        default = disk_cache()
        assert default is not None
        assert default.directory.name == "convsmith" and default.limit == 256 << 20
