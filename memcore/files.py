"""Where memcore's own data lie."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def data_folder() -> Path:
    """The data: inside the installed package, or beside it in a source tree."""
    here = Path(__file__).parent
    for folder in (here / "data", here.parent / "data"):
        if (folder / "devices.csv").exists():
            return folder
    raise FileNotFoundError(f"memcore's data are neither in {here / 'data'} nor in {here.parent / 'data'}; reinstall memcore")
