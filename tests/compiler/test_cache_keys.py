"""Keys of the disk cache: their parts, and the hash of the compiler's source among them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from convsmith.compiler import cache as cache_module
from convsmith.compiler.cache import DiskCache, cache_key, compiler_source_hash
from convsmith.diag.settings import settings


def test_keys() -> None:
    keys = {cache_key(), cache_key(""), cache_key("a", "b"), cache_key("ab"), cache_key("", "ab"), cache_key("a b")}
    assert len(keys) == 6
    assert cache_key("a", "b") == cache_key("a", "b")
    assert all(len(key) == 64 for key in keys)


def test_key_holds_compiler_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    of_process = cache_module._compiler  # once a process
    before = cache_key("problem")
    home = cache_module.__name__
    changes = {f"{home}.compiler_source_hash": lambda: "x", f"{home}.ABI_VERSION": 99, "llvmlite.__version__": "0"}
    for name, value in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, "_compiler", of_process.__wrapped__)
            assert cache_key("problem") == before
            patch.setattr(name, value)
            assert cache_key("problem") != before


def source_tree(root: Path) -> Path:
    for name, text in {"__init__.py": "", "a.py": "x = 1\n", "sub/b.py": "y = 2\n", "data.txt": "no source"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("remembered", [False, True])
def test_source_hash(tmp_path: Path, remembered: bool) -> None:
    memory = DiskCache(tmp_path / "cache", 1 << 20) if remembered else None
    root = source_tree(tmp_path / "package")
    tree_hash = cache_module._tree_hash
    first = tree_hash(root, memory)
    assert tree_hash(root, memory) == first
    (root / "data.txt").write_text("changed")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "a.py").write_text("not a source")
    assert tree_hash(root, memory) == first
    assert tree_hash(source_tree(tmp_path / "elsewhere"), memory) == first

    times = (root / "a.py").stat()
    (root / "a.py").write_text("x = 2\n")  # same size, same time of modification
    os.utime(root / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = tree_hash(root, memory)
    assert changed != first
    (root / "a.py").rename(root / "c.py")
    assert tree_hash(root, memory) not in (first, changed)
    (root / "c.py").rename(root / "a.py")
    (root / "a.py").write_text("x = 1\n")
    assert tree_hash(root, memory) == first


def test_source_hash_of_the_package() -> None:
    with settings.scope(cache="off"):
        assert len(compiler_source_hash()) == 64
        assert compiler_source_hash() == cache_module._tree_hash(Path(cache_module.__file__).parents[1], None)
