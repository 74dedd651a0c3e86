"""`Facts`: the facts about a target that code generation needs."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.codegen.aligned_places import AlignedPlaces
from convsmith.codegen.debug_lines import DebugLines
from convsmith.diag.record import record
from convsmith.ir.dialect import Dialect
from convsmith.ir.instruction import ByteLookup, FragmentFile, HeadLoad, Instruction, Narrowing, WordConversion
from convsmith.ir.types import Half


@record(frozen=True)
class Facts:
    """The facts about a target, and about the entry that is emitted.

    They are LLVM's name of the target, the attributes of every function, the instructions by name, the use of f16
    instructions, the registers for fragments, the bits of an address, the ways to load leading lanes and to look up
    bytes, the function that looks up words, a device's dialect, and the function that orders non-temporal
    stores. ``debug`` is the debug information of the module. If vectors in aligned memory have their own instructions,
    the arrays ``own`` of kernels and private buffers begin at multiples of ``alignment`` bytes; ``places`` belongs to
    the kernel that is emitted. Functions that run a part of an entry also have the ``part_attributes``, outlined
    functions the ``called_attributes``. With ``has_masked_stores``, lanes a small step apart are stored as masked
    vectors. With ``has_fused_steps``, quotients that are rounded to bytes are computed by products and sums that round
    once; ``word_rounding`` rounds f32 to s32, ``word_conversions`` saturate too, and ``narrowing`` those that saturate
    s32 to bytes. Elements of fewer than ``masked_bytes`` have no masked loads, and none has if that is 0. With
    ``has_unsigned_offsets``, adding a constant to an address does not wrap around. With ``has_vector_lengths``,
    scalable vectors end after a number of lanes, where they have predicates otherwise. With ``reads_scalars``, an
    element that all lanes share is converted before it is repeated. Larger and smaller numbers of registers of 128 bits
    are found by intrinsics whose names begin with ``extremes``, if there are any. With ``loads_words``, vectors of
    bytes are loaded as words, with ``loads_predicated`` leading lanes under predicates. With ``loads_constants``,
    registers of 128 bits of one number are loads; zeros only behind loops of sums, and in loops that store results. An
    intrinsic named ``relaxed_fma`` multiplies such registers and adds, unless it computes a rounding error. With
    ``prefetches_by_loads``, a byte of a line that is prefetched is loaded.
    """

    triple: str
    attributes: Mapping[str, str]
    rows: Mapping[str, Instruction]
    half: Half = ""
    fragments: tuple[FragmentFile, ...] = ()
    address_bits: int = 64
    head_load: HeadLoad | None = None
    byte_lookup: ByteLookup | None = None
    word_lookup: str = ""
    extremes: str = ""
    dialect: Dialect | None = None
    fence: str = ""
    debug: DebugLines | None = None
    alignment: int = 0
    own: frozenset[str] = frozenset()
    places: AlignedPlaces | None = None
    part_attributes: tuple[str, ...] = ()
    called_attributes: tuple[str, ...] = ()
    has_masked_stores: bool = False
    has_fused_steps: bool = False
    word_rounding: WordConversion | None = None
    word_conversions: tuple[WordConversion, ...] = ()
    narrowing: Narrowing | None = None
    masked_bytes: int = 1
    loads_constants: bool = False
    prefetches_by_loads: bool = False
    relaxed_fma: str = ""
    has_unsigned_offsets: bool = False
    has_vector_lengths: bool = False
    reads_scalars: bool = False
    loads_words: bool = False
    loads_predicated: bool = False

    @property
    def word(self) -> str:
        """LLVM's type of a word of an argument block."""
        return f"i{self.address_bits}"
