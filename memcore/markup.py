"""Text from outside on a page that reads markdown."""

from __future__ import annotations

import re

import pandas as pd

MARKS = "\\`*_{}[]<>$~|#&!"
AUTOMATIC = re.compile(r":(?=\S)|@(?=\S)|-(?=-|\\>)|\bwww(?=\.)", re.IGNORECASE)
"""What markdown makes links, emoji, icons or arrows of without any mark: a joiner of no width behind it keeps it text."""
JOINER = "\u2060"


def escape(text: str) -> str:
    """Text that is nobody's markup: no emphasis, link, image, formula, emoji or icon."""
    return AUTOMATIC.sub(lambda found: found[0] + JOINER, "".join(f"\\{c}" if c in MARKS else c for c in text))


def escaped(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose text is nobody's markup, the names of its columns included."""
    return table.rename(columns=escape).map(lambda value: escape(value) if isinstance(value, str) else value)
