from __future__ import annotations

import threading
from pathlib import Path

import pytest

from convsmith.diag.errors import UsageError
from convsmith.diag.settings import VARIABLES, Settings


def test_defaults() -> None:
    s = Settings({})
    assert (s.verbose, s.dump, s.cache, s.cache_size, s.check, s.threads, s.target, s.bochs) == (
        frozenset(), None, "default", 256 << 20, "off", None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "text", "key", "value"),
    [
        ("CONVSMITH_VERBOSE", "0", "verbose", frozenset()),
        ("CONVSMITH_VERBOSE", "1", "verbose", {"create", "exec", "cache"}),
        ("CONVSMITH_VERBOSE", "create,cache", "verbose", {"create", "cache"}),
        ("CONVSMITH_DUMP", "/x/y", "dump", Path("/x/y")),
        ("CONVSMITH_CACHE", "off", "cache", "off"),
        ("CONVSMITH_CACHE", "/x/cache", "cache", Path("/x/cache")),
        ("CONVSMITH_CACHE_SIZE", "512", "cache_size", 512),
        ("CONVSMITH_CACHE_SIZE", "2G", "cache_size", 2 << 30),
        ("CONVSMITH_CACHE_SIZE", "16 MiB", "cache_size", 16 << 20),
        ("CONVSMITH_CHECK", "1", "check", "verify"),
        ("CONVSMITH_CHECK", "interpret", "check", "interpret"),
        ("CONVSMITH_THREADS", "3", "threads", 3),
        ("CONVSMITH_TARGET", "avx2", "target", "avx2"),
        ("CONVSMITH_TARGET", "native", "target", None),
        ("CONVSMITH_MICRO_ARCHITECTURE", "znver4", "micro_architecture", "znver4"),
        ("CONVSMITH_MICRO_ARCHITECTURE", "", "micro_architecture", None),
        ("CONVSMITH_ACCURACY", "", "accuracy", "strict"),
        ("CONVSMITH_ACCURACY", "relaxed", "accuracy", "relaxed"),
        ("CONVSMITH_BOCHS", "/x/bochs", "bochs", "/x/bochs"),
    ],
)
def test_values(env: str, text: str, key: str, value: object) -> None:
    s = Settings({env: text})
    assert getattr(s, key) == value
    with Settings({}).scope(**{key: text}):
        pass


@pytest.mark.parametrize(
    ("env", "text", "key", "legal"),
    [
        ("CONVSMITH_VERBOSE", "create,run", "verbose", "create, exec, cache"),
        ("CONVSMITH_CACHE_SIZE", "much", "cache_size", "256M"),
        ("CONVSMITH_CHECK", "2", "check", "interpret"),
        ("CONVSMITH_THREADS", "0", "threads", "from 1 to 1024"),
        ("CONVSMITH_THREADS", "two", "threads", "from 1 to 1024"),
        ("CONVSMITH_CACHE", "~nobody-of-that-name/cache", "cache", "a directory, 'default' or 'off'"),
        ("CONVSMITH_DUMP", "~nobody-of-that-name/dump", "dump", "a directory"),
        ("CONVSMITH_THREADS", "1025", "threads", "from 1 to 1024"),
        ("CONVSMITH_TARGET", "avx 2", "target", "instruction set"),
        ("CONVSMITH_MICRO_ARCHITECTURE", "znver 4", "micro_architecture", "micro-architecture"),
        ("CONVSMITH_ACCURACY", "any", "accuracy", "strict or relaxed"),
    ],
)
def test_an_illegal_value_is_named_with_what_is_legal(env: str, text: str, key: str, legal: str) -> None:
    with pytest.raises(UsageError) as error:
        getattr(Settings({env: text}), key)
    assert error.value.code == "bad-setting"
    assert env in str(error.value) and repr(text) in str(error.value) and legal in str(error.value)
    with pytest.raises(UsageError, match=env), Settings({}).scope(**{key: text}):
        pass


def test_scope_nests_restores_and_stays_in_its_thread(tmp_path: Path) -> None:
    s = Settings({"CONVSMITH_THREADS": "4"})
    with s.scope(threads=2, dump=tmp_path, verbose={"exec"}):
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(s.threads))
        thread.start()
        thread.join()
        assert seen == [4]
        with s.scope(threads=None):
            assert (s.threads, s.dump, s.verbose) == (None, tmp_path, {"exec"})
        assert s.threads == 2
    assert (s.threads, s.dump) == (4, None)


def test_scope_refuses_unknown_settings() -> None:
    with (
        pytest.raises(UsageError, match=r"unknown setting 'treads': legal are .*threads"),
        Settings({}).scope(treads=1),
    ):
        pass


def test_the_environment_is_read_once_until_reload() -> None:
    environment = {"CONVSMITH_THREADS": "4"}
    s = Settings(environment)
    assert s.threads == 4
    environment["CONVSMITH_THREADS"] = "5"
    assert s.threads == 4
    s.reload()
    assert s.threads == 5


def test_describe_names_every_variable_with_value_and_origin() -> None:
    s = Settings({"CONVSMITH_TARGET": "avx2"})
    with s.scope(verbose="exec,create"):
        text = s.describe()
    assert all(variable.env in text and variable.doc in text for variable in VARIABLES)
    assert "CONVSMITH_TARGET = avx2  [environment]" in text
    assert "CONVSMITH_VERBOSE = create,exec  [scope]" in text
    assert "CONVSMITH_CACHE = default  [default]" in text
    assert "CONVSMITH_DUMP = (not set)  [default]" in text
