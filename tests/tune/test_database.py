"""The database of measurements: what is written is read, by many processes, and a bad file is refused in one line."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from convsmith.schedule.config import Config
from convsmith.schedule.former_words import in_present_words
from convsmith.tune.records.database import Database, DatabaseError
from convsmith.tune.records.measured import Measured, best_of

ROW = Measured("mb1ic8iw8oc8kw1", "--target=avx2 --lane=oc", "znver4-1", "c1", "avx2", 1, "ok", 1.0, 1e-5, 0.01, 9)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, config="--target=avx2 --lane=g", status="crashed", ratio=0.0, note="killed by SIGSEGV")]
    with Database(tmp_path / "new" / "m.db") as database:
        database.put(rows)
    with Database(tmp_path / "new" / "m.db", create=False) as database:
        assert database.rows() == rows
        assert database.rows(problem="another") == []


def test_a_row_replaces_the_older_one_of_its_config_and_origin(tmp_path: Path) -> None:
    with Database(tmp_path / "m.db") as database:
        database.put([ROW, replace(ROW, compiler="c2"), replace(ROW, machine="znver4-2"), replace(ROW, ratio=0.5)])
        assert sorted(row.ratio for row in database.rows()) == [0.5, 1.0, 1.0]


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    """Two writers, each of 100 transactions, lose no row."""
    path = tmp_path / "m.db"
    program = f"""if True:
        import sys
        from dataclasses import replace
        from pathlib import Path
        from convsmith.tune.records.database import Database
        from convsmith.tune.records.measured import Measured
        row = Measured("p", "c", "m", sys.argv[1], "avx2", 1, "ok", 1.0, 1e-5, 0.0, 9)
        with Database(Path({str(path)!r})) as database:
            for n in range(100):
                database.put([replace(row, config=str(n))])
    """
    writers = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("one", "two")]
    assert [writer.wait() for writer in writers] == [0, 0]
    with Database(path) as database:
        assert len(database.rows()) == 200


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    """One makes the tables while others look whether there are any."""
    failures: list[BaseException] = []

    def opens(path: Path, start: threading.Barrier) -> None:
        start.wait()
        try:
            Database(path).close()
        except BaseException as error:
            failures.append(error)

    for n in range(15):
        start = threading.Barrier(4)
        threads = [threading.Thread(target=opens, args=(tmp_path / f"{n}.db", start)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_merging_keeps_the_row_of_more_samples(tmp_path: Path) -> None:
    with Database(tmp_path / "a.db") as a, Database(tmp_path / "b.db") as b:
        a.put([ROW, replace(ROW, config="both", rounds=9, ratio=0.9)])
        b.put([replace(ROW, config="both", rounds=5, ratio=0.1), replace(ROW, config="new")])
        b.name_machine("znver4-1", "a Zen 4")
        assert a.merge(b) == 1
        assert {row.config: row.ratio for row in a.rows()} == {ROW.config: 1.0, "both": 0.9, "new": 1.0}
        assert a.machines() == {"znver4-1": "a Zen 4"}


def _fill(path: Path) -> None:
    with Database(path) as database:
        database.put(replace(ROW, config=f"--target=avx2 --lane=oc --pieces={n}") for n in range(1, 400))


def _set_version(path: Path) -> None:
    _fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 7")


def _damage(path: Path) -> None:
    """Overwrite all pages but the first."""
    _fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x5a" * (len(content) - 4096))


def _spoil_names(path: Path) -> None:
    """Give a table a name that is no text, and a statement that SQLite does not read."""
    _fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert b"tablemeasurements" in content
    content = content.replace(b"tablemeasurements", b"table\xff\xfe!surements")
    path.write_bytes(content.replace(b"CREATE TABLE measurements", b"CREATE TUBLE measurements"))


def _make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE measurements (x)")


BAD = {
    "version": (_set_version, "has version 7 of the tables, and this convsmith reads version 2; move the file away"),
    "damaged": (_damage, "is damaged (database disk image is malformed); move it away"),
    "names": (_spoil_names, "is damaged (its schema holds names that are no UTF-8); move it away"),
    "text": (lambda path: path.write_text("no database " * 100), "is damaged (file is not a database); move it away"),
    "foreign": (_make_foreign, "is a database of another program; it stays as it is"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_and_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    make, message = BAD[kind]
    path = tmp_path / "m.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=re.escape(f"{path}: {message}")), Database(path) as database:
        database.rows()
    assert path.read_bytes() == before


FORMER = (
    "--target=avx2 --lane=oc --terms=ic:4 --ends=kw:6,kw:7 --near=src+oh --hold=wei --drain=yes --at=oh "
    "/ --target=avx2 --lane=oc --terms=ic:2"
)
PRESENT = (
    "--target=avx2 --lane=oc --k_step=ic:4 --first_last_tile=kw:6,kw:7 --pack_at=src+oh --resident=wei "
    "--spill_sums=yes --compute_at=oh / --target=avx2 --lane=oc --k_step=ic:2"
)


@pytest.mark.parametrize("create", [False, True])
def test_configs_of_an_earlier_version_have_present_words(create: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with Database(path) as database:
        database.put([replace(ROW, config=FORMER), replace(ROW, config="--target=avx2 --lane=oc")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 1")
    assert in_present_words(FORMER) == PRESENT == str(Config.parse(PRESENT))
    for _ in range(2):  # a file that is converted stays as it is
        with Database(path, create=create) as database:
            assert {row.config for row in database.rows()} == {PRESENT, "--target=avx2 --lane=oc"}
            assert [row.config for row in database.rows(config=PRESENT)] == [PRESENT]
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2 if create else 1,)


def test_a_missing_file_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no database; `convsmith tune` makes one"):
        Database(tmp_path / "m.db", create=False)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    with Database(tmp_path / "m.db") as database:
        database.put([ROW])
        database._connection.execute("PRAGMA max_page_count = 8")
        with pytest.raises(DatabaseError, match=r"m\.db: cannot be written: the disk is full \(\d+ KiB are free\)"):
            database.put(replace(ROW, config=str(n), note="x" * 1000) for n in range(100))
        assert database.rows() == [ROW]


FILL = """if True:
    import ctypes, os, resource, signal, sys
    from dataclasses import replace
    from pathlib import Path
    from convsmith.tune.records.database import Database, DatabaseError
    from convsmith.tune.records.measured import Measured

    def mount(directory):  # a file system that only this process sees
        libc, ids = ctypes.CDLL(None), (os.getuid(), os.getgid())
        if libc.unshare(0x10000000 | 0x00020000):  # CLONE_NEWUSER, CLONE_NEWNS
            sys.exit(77)
        Path("/proc/self/setgroups").write_text("deny")
        for name, number in zip(("uid_map", "gid_map"), ids):
            Path("/proc/self", name).write_text(f"0 {number} 1")
        if libc.mount(b"none", directory.encode(), b"tmpfs", 0, b"size=256k"):
            sys.exit(77)

    kind, directory = sys.argv[1:]
    row, path = Measured("p", "c", "m", "c1", "avx2", 1, "crashed", note="x" * 1000), Path(directory, "m.db")
    if kind == "disk":
        mount(directory)
    kept = 0
    with Database(path) as database:
        if kind == "limit":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
        try:
            for kept in range(1000):
                database.put([replace(row, config=str(kept))])
        except DatabaseError as error:
            print(error)
        assert len(database.rows()) == kept > 3
    with Database(path) as database:
        assert len(database.rows()) == kept
"""
"""A program that writes rows until the file system, or the limit on the size of a file, takes no more."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [("disk", "the disk is full (0 KiB are free)"), ("limit", "the system refuses to write more (")],
)
def test_a_file_system_that_takes_no_more_keeps_what_was_written(kind: str, message: str, tmp_path: Path) -> None:
    """Each row that `put` has returned from is read after the failure, in the same process and by the next opener."""
    done = subprocess.run([sys.executable, "-c", FILL, kind, tmp_path], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this system lets no user mount a file system of its own")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/m.db: cannot be written: {message}")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match=r"file: cannot be made: |file/m\.db: cannot be"):
        Database(tmp_path / "file" / "m.db")


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([("first", 1.0, 0.0, 20), ("fast", 0.8, 0.05, 9)], "fast"),
        ([("first", 1.0, 0.0, 20), ("near", 0.98, 0.02, 9)], "first"),  # the difference may be noise
        ([("first", 1.0, 0.0, 20), ("lucky", 0.8, 0.4, 2), ("sure", 0.85, 0.02, 9)], "sure"),
    ],
)
def test_few_samples_count_less(rows: list[tuple[str, float, float, int]], best: str) -> None:
    measured = [replace(ROW, config=c, ratio=r, spread=s, rounds=n) for c, r, s, n in rows]
    found = best_of(measured)
    assert found is not None and found.config == best
