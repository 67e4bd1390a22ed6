"""The error a trainer's file can end in, and how values are shown in it."""

from __future__ import annotations

import reprlib
from difflib import get_close_matches


class TrainerFileError(ValueError):
    """A trainer's file that cannot be read, or that contradicts itself; the message names key, value and what to write instead."""


def show(value: object, limit: int = 60) -> str:
    """A value as it fits into a sentence, however large it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of many digits"
    if isinstance(value, str):
        text = repr(value[: limit + 2])
    else:
        shortened = reprlib.Repr()
        shortened.maxlevel, shortened.maxlist, shortened.maxtuple, shortened.maxdict, shortened.maxset = 2, 6, 6, 6, 6
        text = shortened.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def hint(value: object, known: object) -> str:
    """ "; did you mean …?" where a known word is spelled like this one."""
    close = get_close_matches(str(value)[:80], list(known), 1, 0.8)
    return f"; did you mean {close[0]}?" if close else ""
