"""Tables of pointers as `show --indirection` prints them: the examples of XNNPACK's document."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.diag.errors import UnsupportedError
from convsmith.frontend.tables import indirection_page
from convsmith.problem.lines import parse_problem

SMALL = """\
input  kernel  output

ABC    ab      WX
DEF    cd      YZ
GHI

row first, uncompressed: 16 pointers, 128 bytes, input stride 4
ABDEBCEF
DEGHEFHI

column first, uncompressed: 16 pointers, 128 bytes, input stride 4
ADBEBECF
DGEHEHFI

column first, compressed: 12 pointers, 96 bytes, input stride 2
ADBECF
DGEHFI

compressed, in sections: 6 pointers, 48 bytes, input stride 2
ADBECF (middle)

output_y | section | row in indirection buffer | input offset
-------- | ------- | ------------------------- | ------------
0        | mid     | 0                         | 0
1        | mid     | 0                         | 3

row 0: ADBECF + 0 * 3 = ADBECF
row 1: ADBECF + 1 * 3 = DGEHFI
"""

TALL = """\
input  kernel

ABC    ab
DEF    cd
GHI
JKL
MNO
PQR
STU
VWX
"""

TALL_ROWS = """\
column first, compressed: 42 pointers, 336 bytes, input stride 2
ADBECF
DGEHFI
GJHKIL
JMKNLO
MPNQOR
PSQTRU
SVTWUX

compressed, in sections: 6 pointers, 48 bytes, input stride 2
ADBECF (middle)
"""

TALL_SUMS = """\
row 0: ADBECF + 0 * 3 = ADBECF
row 1: ADBECF + 1 * 3 = DGEHFI
row 2: ADBECF + 2 * 3 = GJHKIL
row 3: ADBECF + 3 * 3 = JMKNLO
row 4: ADBECF + 4 * 3 = MPNQOR
row 5: ADBECF + 5 * 3 = PSQTRU
row 6: ADBECF + 6 * 3 = SVTWUX
"""

PADDED = """\
input  kernel  output

000
ABC    ab      ST
DEF    cd      UV
GHI            WX
000            YZ
"""

PADDED_ROWS = """\
column first, compressed: 24 pointers, 192 bytes, input stride 2
0A0B0C
ADBECF
DGEHFI
G0H0I0

compressed, in sections: 18 pointers, 144 bytes, input stride 2
0A0B0C (top)
ADBECF (middle)
G0H0I0 (bottom)

output_y | section | row in indirection buffer | input offset
-------- | ------- | ------------------------- | ------------
0        | top     | 0                         | 0
1        | mid     | 1                         | 0
2        | mid     | 1                         | 3
3        | bot     | 2                         | 0
"""


def shown(line: str, *more: str) -> str:
    result = CliRunner().invoke(main, ["show", line, "--indirection", *more])
    assert result.exit_code == 0, result.output
    heading, page = result.stdout.split("\n", 1)
    assert heading.startswith("# ")
    return page


def test_the_first_example() -> None:
    assert shown("ic1ih3iw3oc1oh2ow2kh2kw2ph0pw0") == SMALL


def test_the_example_of_a_constant_offset() -> None:
    page = shown("ic1ih8iw3oc1oh7ow2kh2kw2ph0pw0")
    assert page.startswith(TALL) and TALL_ROWS in page and page.endswith(TALL_SUMS)


def test_the_example_of_padding() -> None:
    page = shown("ic1ih3iw3oc1oh4ow2kh2kw2ph1pw0")
    assert page.startswith(PADDED) and PADDED_ROWS in page


def test_a_larger_kernel_tile_points_at_zero() -> None:
    page = shown("ic1ih3iw3oc1oh2ow2kh2kw2ph0pw0", "--kernel-tile", "5")
    assert "compressed, in sections: 10 pointers, 80 bytes, input stride 5\nADBE0BECF0 (middle)\n" in page


def test_many_pixels_have_numbers_and_long_tables_are_shortened() -> None:
    page = shown("ic4ih56iw56oc4kh3kw3ph1pw1")
    assert page.startswith("input 56x56\nkernel 3x3\noutput 56x56\n")
    assert "compressed, in sections: 522 pointers, 4176 bytes, input stride 3\n0 0 0 0 1 57 0 2 58 " in page
    assert "... (33 more)" in page and max(map(len, page.splitlines())) < 1000


def test_other_windows() -> None:
    assert "\nABCD (middle)\n" in indirection_page(cs.Conv.parse("ic1iw4oc1ow3kw2pw0"))
    assert "input  kernel  output" in indirection_page(cs.Conv.parse("--dir=BWD_D ic1iw5oc1ow3kw2sw2pw0"))
    assert "row 1 2: " in indirection_page(cs.Conv.parse("ic1id4ih4iw4oc1kd3kh2kw2pd1ph0pw0"))


def test_bytes_of_each_form_in_explain() -> None:
    page = cs.compile("g8ic8ih224iw224oc8oh224ow224kh3kw3ph1pw1", threads=1).explain()
    (line,) = (text for text in page.splitlines() if text.startswith("tables"))
    for words in ("row first, uncompressed: 3.45 MiB", "column first, compressed: 1.16 MiB", "in sections: 15.89 KiB"):
        assert words in line


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a matrix product has no pixels; pointer tables"):
        indirection_page(parse_problem("--matmul 2x3:3x4"))
    for words, text in (
        (["--indirection", "--asm"], "exclude each other"),
        (["--kernel-tile", "4"], "--kernel-tile is legal with --indirection only"),
        (["--indirection", "--kernel-tile", "3"], "a kernel tile of 3 is smaller than the 2x2 kernel"),
    ):
        result = CliRunner().invoke(main, ["show", "ic1ih3iw3oc1oh2ow2kh2kw2ph0pw0", *words])
        assert result.exit_code == 2 and text in result.output
