"""A model by its Hub id: its config.json, and the total its checkpoint has, through huggingface_hub (an optional extra).

The token is that of the environment or of huggingface_hub's own login, the cache its own. What cannot be had is said in
one sentence with what to do instead; nothing waits longer than SECONDS.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import configs
from .architecture import ModelArchitecture
from .configs import Checkpoint, ConfigError

SECONDS = 15
"""The longest a look at the Hub may take."""
ANSWER_SECONDS = 5
"""The longest one answer of it may take."""
LARGEST_CONFIG = 4 * 2**20
LARGEST_INDEX = 64 * 2**20
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
PAGE = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
INSTEAD = "upload its config.json instead"


class HubError(ValueError):
    """A model that could not be had from the Hub; the message says why and what to do."""


@dataclass(frozen=True)
class HubModel:
    """A model as the Hub describes it."""

    model: ModelArchitecture
    checkpoint: Checkpoint | None
    """Its files' total beside the count; None where the Hub does not say."""


def model_id(text: str) -> str:
    """The id in what somebody typed: "owner/name", "name", or the address of its page. Anything else is refused.

    >>> model_id("https://huggingface.co/Qwen/Qwen3-4B/tree/main")
    'Qwen/Qwen3-4B'
    """
    given = text.strip()
    is_page = PAGE.match(given) is not None
    parts = PAGE.sub("", given).split("?")[0].split("#")[0].rstrip("/").split("/")
    parts = parts[:2] if is_page else parts
    if len(parts) > 2 or not all(NAME.fullmatch(part) and ".." not in part and "--" not in part for part in parts):
        shown = given if len(given) <= 60 else f"{given[:59]}…"
        raise HubError(f"{shown!r} is not a model of the Hub; write owner/name, such as Qwen/Qwen3-4B")
    return "/".join(parts)


def installed() -> bool:
    """Whether the extra is there."""
    from importlib.util import find_spec

    return find_spec("huggingface_hub") is not None


def model(text: str) -> HubModel:
    """The model of a Hub id, with its checkpoint's total where the Hub says one. Raises HubError, or ConfigError for its config."""
    name = model_id(text)
    return _within(SECONDS, lambda: _model(name), name)


def _model(name: str) -> HubModel:
    config = configs.parse_json(_file(name, CONFIG, LARGEST_CONFIG), f"{CONFIG} of {name}", LARGEST_CONFIG)
    found = replace(configs.model_from_config(config), name=name)
    return HubModel(found, _checkpoint(name, found))


def _checkpoint(name: str, found: ModelArchitecture) -> Checkpoint | None:
    """The total of the checkpoint's files; an extra, whose absence is no error."""
    try:
        index = configs.parse_json(_file(name, INDEX, LARGEST_INDEX), INDEX, LARGEST_INDEX)
        return configs.checkpoint(found, index)
    except (HubError, ConfigError):
        pass
    try:
        size = _asked(name, SINGLE, lambda library: library.get_hf_file_metadata(library.hf_hub_url(name, SINGLE), timeout=ANSWER_SECONDS).size)
        return configs.checkpoint(found, {"metadata": {"total_size": size}}) if size else None
    except (HubError, ConfigError):
        return None


def _file(name: str, file: str, limit: int) -> bytes:
    """One small file of a model; its size is asked before it is fetched."""

    def fetch(library: Any) -> bytes:
        try:
            size = library.get_hf_file_metadata(library.hf_hub_url(name, file), timeout=ANSWER_SECONDS).size
        except Exception as error:
            if _refusal(error) or _status(error):
                raise
            path = library.hf_hub_download(name, file, local_files_only=True)  # not to be reached: what the cache has will do
        else:
            if size and size > limit:
                raise HubError(f"{file} of {name} is {size / 2**20:.0f} MiB long; at most {limit // 2**20} MiB are believed")
            path = library.hf_hub_download(name, file, etag_timeout=ANSWER_SECONDS)
        if Path(path).stat().st_size > limit:
            raise HubError(f"{file} of {name} is longer than {limit // 2**20} MiB")
        return Path(path).read_bytes()

    return _asked(name, file, fetch)


_REFUSALS = {
    "GatedRepoError": (
        "{name} is gated: ask for access on https://huggingface.co/{name}, then set HF_TOKEN where this page runs, "
        f"or log in there with `hf auth login`; or {INSTEAD}"
    ),
    "DisabledRepoError": "{name} has been disabled on the Hub; choose another model",
    "RepositoryNotFoundError": (
        f"there is no model {{name}} on the Hub, or it is private: check the spelling, set HF_TOKEN where this page runs if it is yours, or {INSTEAD}"
    ),
    "RemoteEntryNotFoundError": "{name} has no {file} on the Hub: it may be in another format, such as GGUF; give its base model",
    "EntryNotFoundError": "{name} has no {file} on the Hub: it may be in another format, such as GGUF; give its base model",
    "HFValidationError": "{name} is not a model of the Hub; write owner/name, such as Qwen/Qwen3-4B",
}
"""What the Hub's answers mean to the person who asked, by the library's error."""


def _asked(name: str, file: str, ask: Callable[[Any], Any]) -> Any:
    """What the library answers, its errors turned into HubError."""
    try:
        import huggingface_hub as library
    except ImportError:
        raise HubError(f"a Hub id needs the package huggingface_hub, which is not installed: pip install 'memcore[hub]', or {INSTEAD}") from None
    try:
        return ask(library)
    except HubError:
        raise
    except Exception as error:
        if refusal := _refusal(error):
            raise HubError(refusal.format(name=name, file=file)) from None
        if status := _status(error):
            token = "; the token in HF_TOKEN or of the login is not accepted: renew it" if status == 401 else "; try again later"
            raise HubError(f"the Hub answered with error {status} about {name}{token}, or {INSTEAD}") from None
        raise HubError(f"the Hub cannot be reached from here, and {name} is not in its cache; {INSTEAD}") from None


def _refusal(error: Exception) -> str:
    """What an answer of the Hub means; empty where the Hub has not answered."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "" if "LocalEntryNotFoundError" in kinds else next((_REFUSALS[kind] for kind in kinds if kind in _REFUSALS), "")


def _status(error: Exception) -> int:
    """The number of an HTTP answer; 0 where there was none."""
    return getattr(getattr(error, "response", None), "status_code", 0) or 0


def _within(seconds: float, do: Callable[[], HubModel], name: str) -> HubModel:
    """The result, or HubError where it is not there in time; what still runs then is left behind."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(do())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise HubError(f"the Hub did not answer about {name} within {seconds:g} seconds; try again, or {INSTEAD}")
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]
