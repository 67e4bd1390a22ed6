"""Units, and the only place where bytes, counts and lengths become text, or text becomes them."""

from __future__ import annotations

import math
import re

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40

BYTE_UNITS = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
TOKEN_UNITS = {"": 1, "K": 2**10, "M": 2**20}
NUMBER_AND_UNIT = r"\s*(\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(\.\d{1,18})?\s*([A-Za-z]*)\s*"

FLOAT32, HALF, BYTE, INT64, INT32 = 4, 2, 1, 8, 4
"""Bytes of an element by its dtype; HALF is bfloat16 or float16."""


def format_bytes(value: float, unit: str = "GiB") -> str:
    """Bytes as people read them, three digits and always the unit: "8.03 GiB", "79.6 GiB", "1,234 GiB".

    `unit` is a key of BYTE_UNITS, or "auto" for the largest binary unit in which the number is at least 1.
    """
    value = _finite(value)
    if unit == "auto":
        unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if abs(value) >= BYTE_UNITS[u]), "B")
    if unit not in BYTE_UNITS:
        raise ValueError(f"unit {unit!r} is not one of {', '.join(BYTE_UNITS)} or auto")
    if unit == "B":
        return f"{value:,.0f} B"
    return f"{_digits(value / BYTE_UNITS[unit])} {unit}"


def one_line(text: str, most: int = 80) -> str:
    """Text from outside as one printable line: no line breaks, control, formatting or half characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most]


def format_count(value: float) -> str:
    """A number of parameters in decimal words, three digits: 8030261248 is "8.03 B", 494032768 is "494 M"."""
    value = _finite(value)
    for word, size in COUNT_UNITS.items():
        number = f"{value / size:.0f}" if size == 1 else _three(value / size)
        if abs(float(number)) < 1000 or word == "T":
            break
    return f"{number} {word}".rstrip()


def format_tokens(value: int) -> str:
    """A length as a short label that `parse_tokens` reads back exactly: 512, 8K, 1.5K, 128K, 1M; 1000 stays 1000."""
    value = int(value)
    for word, size in (("M", 2**20), ("K", 2**10)):
        if value >= size and value % (size // 2) == 0:
            return f"{value / size:.10g}{word}"
    return str(value)


def parse_bytes(text: str) -> int:
    """Bytes from "24 GB", "79.65 GiB" or "512MiB"; the unit is required, because GB and GiB differ by 7 %."""
    return _parse(text, BYTE_UNITS, 'a size with its unit, such as "24 GB" or "22.5 GiB"', unit_required=True)


def parse_count(text: str) -> int:
    """A number of parameters from "8.03 B", "350M" or "8,030,261,248"."""
    return _parse(text, COUNT_UNITS, 'a number of parameters, such as "8B" or "350M"')


def parse_tokens(text: str) -> int:
    """A length from "8K" (8192), "1.5K" (1536), "1M" (2**20) or "8,192"."""
    return _parse(text, TOKEN_UNITS, 'a number of tokens, such as "8K" or "8192"')


def _parse(text: str, units: dict[str, int], wanted: str, unit_required: bool = False) -> int:
    match = re.fullmatch(NUMBER_AND_UNIT, text, re.ASCII) if isinstance(text, str) else None
    size = {u.lower(): s for u, s in units.items()}.get(match[3].lower()) if match else None
    if size is None or unit_required and not match[3]:
        raise ValueError(f"{str(text)[:40]!r} is not {wanted}")
    whole, fraction = match[1].replace(",", ""), match[2] or ""
    return int(whole) * size + round(float("0" + fraction) * size)


def _digits(number: float) -> str:
    """Three significant digits: 8.03, 79.6, 999.9, 1,234; below one, at most three decimals."""
    size = abs(number)
    if size == 0:
        return "0"
    if size < 0.0005:
        return "<0.001" if number > 0 else ">-0.001"
    if size < 0.9995:
        return f"{number:.3f}"
    if size < 9.995:
        return f"{number:.2f}"
    return f"{number:.1f}" if size < 999.95 else f"{number:,.0f}"


def _three(number: float) -> str:
    """Three significant digits without decimals above 100: 1.04, 70.6, 405."""
    size = abs(number)
    return f"{number:.2f}" if size < 9.995 else f"{number:.1f}" if size < 99.95 else f"{number:.0f}"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no length in digits")
    return value
