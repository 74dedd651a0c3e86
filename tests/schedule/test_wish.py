"""Texts that decide a whole config, or values of some fields."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import CONFIG_ROWS
from convsmith.schedule.wish import Wish, on_threads, read_decisions

ONE = Config("avx2", "oc", register=(("ow", 3), ("oc", 16)), order=("mb", "oh", "ow", "oc"))
TWO = ONE.changed(consumer=ONE.changed(realise="mask"))


def wish(text: str) -> Wish:
    found = read_decisions(text)
    assert isinstance(found, Wish)
    return found


@pytest.mark.parametrize("text", [
    "--target=avx2 --lane=oc", "--lane=oc --target=avx2 --threads=3",
    "--target=avx2 --lane=oc / --target=avx2 --lane=ow",
])  # fmt: skip
def test_a_text_with_target_and_lane_is_a_config(text: str) -> None:
    assert read_decisions(text) == Config.parse(text)


def test_all_statements_of_a_config_get_the_threads_of_a_call() -> None:
    assert on_threads(TWO, 2) == TWO.of_each(threads=2)
    assert [own.threads for own in TWO.of_each(threads=2).links] == [2, 2]


@pytest.mark.parametrize(("text", "target", "threads", "rest"), [
    ("--target=avx2", "avx2", None, ""),
    ("--lane=ow", "", None, "--lane=ow"),
    ("--threads=3 --realise=mask --target=avx2", "avx2", 3, "--realise=mask"),
    ("--realise=mask / --realise=peel", "", None, "--realise=mask / --realise=peel"),
    (" / --realise=peel --threads=2", "", 2, " / --realise=peel"),
    ("--pack= --outline=no", "", None, "--pack= --outline=no"),
    ("--table=row", "", None, "--table=row --realise=indirection"),
    ("--table=row --realise=mask", "", None, "--table=row --realise=mask"),
    ("--restrict=kh", "", None, "--restrict=kh --realise=pad_copy"),
])  # fmt: skip
def test_any_other_text_is_a_wish_that_prints(text: str, target: str, threads: int | None, rest: str) -> None:
    found = wish(text)
    assert (found.target, found.threads, str(found)) == (target, threads, rest)
    assert found.is_empty is (not rest)
    assert not rest or replace(wish(rest), target=target, threads=threads) == found


@pytest.mark.parametrize(("text", "code", "said"), [
    ("", "syntax", "gives no field a value; legal are --target=, --lane="),
    (" / ", "syntax", "gives no field a value"),
    ("--realize=mask", "syntax", "'--realize=mask' is not one of --target="),
    ("--register=ow", "syntax", "does not read as register; for example --register="),
    ("--threads=2 / --threads=3", "consumer", "all statements have one --threads"),
    ("--target=avx2 --lane=oc / --lane=oc", "syntax", "--target= is missing"),
    *((f"--{name}=guess", name, f"--{name}=guess is unknown; legal are {', '.join(row.legal)}")
      for name, row in CONFIG_ROWS.items() if row.legal),
])  # fmt: skip
def test_what_no_wish_says(text: str, code: str, said: str) -> None:
    with pytest.raises(ConfigError) as found:
        read_decisions(text)
    assert found.value.code == code and said in str(found.value)


@pytest.mark.parametrize(("text", "config", "count"), [
    ("--realise=peel", ONE, 0), ("--realise=mask", ONE, 1), ("--realise=mask --lane=ow --pieces=8", ONE, 2),
    ("--register=oc:16,ow:3", ONE, 0), ("--order=oc,mb,oh,ow", ONE, 1),
    ("--realise=mask", TWO, 1), ("--realise=peel / --realise=mask", TWO, 0),
    ("--realise=mask / --realise=peel", TWO, 2),
])  # fmt: skip
def test_values_that_a_config_lacks(text: str, config: Config, count: int) -> None:
    assert wish(text).missing(config) == count
    assert wish(text).missing(wish(text).applied(config)) == 0


def test_values_replace_those_of_every_statement_or_of_each() -> None:
    assert wish("--realise=mask").applied(ONE) == ONE.changed(realise="mask")
    assert [c.realise for c in wish("--realise=pad_copy").applied(TWO).stages] == ["pad_copy", "pad_copy"]
    changed = wish("--pieces=2 / --realise=peel").applied(TWO)
    assert [(c.pieces, c.realise) for c in changed.stages] == [(2, "peel"), (8, "peel")]


def test_a_statement_is_fused_with_the_one_behind_it() -> None:
    joined = wish("--compute_at=oh --halo=recompute")
    assert joined.is_of_joints and not wish("--realise=mask").is_of_joints
    changed = joined.applied(TWO)
    assert (changed.compute_at, changed.halo) == ("oh", "recompute")
    assert changed.consumer is not None and (changed.consumer.compute_at, changed.consumer.halo) == ("", "keep")


def test_as_many_statements_as_the_kernel_has() -> None:
    with pytest.raises(ConfigError, match="2 statements, the kernel has 1; legal are values for each of these"):
        wish("--pieces=2 / --realise=peel").applied(ONE)
