"""Words of configs that earlier versions wrote, and what they are called now.

Files of these versions are converted when they are read; configs have the words of `config_rows` alone.
"""

from __future__ import annotations

import re

__all__ = ["FORMER_WORDS", "in_present_words"]

FORMER_WORDS = {
    "near": "pack_at", "hold": "resident", "drain": "spill_sums", "ends": "first_last_tile", "at": "compute_at",
    "terms": "k_step",
}  # fmt: skip
"""Former word -> present word."""
_FORMER = re.compile(rf"(?<!\S)--({'|'.join(FORMER_WORDS)})=")


def in_present_words(text: str) -> str:
    """Return the config that an earlier version wrote as `text`, as it is written now."""
    return _FORMER.sub(lambda word: f"--{FORMER_WORDS[word[1]]}=", text)
