"""The model a trainer's file names → one in the catalog, its quantized and tuned versions included."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from .. import catalog
from .errors import TrainerFileError, show
from .settings import Settings
from .table import shared

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture

ROLES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
"""Llama's names by role: what most examples write whatever the model is."""
FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}


def resolve(name: str, settings: Settings, key: str) -> tuple[ModelArchitecture | None, str]:
    """The architecture of a name, and the quantization its ending says it is stored in ("" where it says none)."""
    stem, quantization = stored_as(name)
    found = _find(stem)
    if found is None:
        closest = catalog.UnknownName("model", stem, list(catalog.models())).closest
        like = f"; the closest there: {', '.join(closest)}" if closest else ""
        settings.note(f"{key} ({show(name)}) is not in the catalog{like}. Give its config.json, or the model, for numbers")
        return None, quantization
    if found != name:
        settings.assume(key, found, f"memcore's catalog: {name} is taken to have the shapes of {found}")
        settings.note(f"{name} is taken to have the shapes of {found}")
    return catalog.model(found), quantization


def stored_as(name: str) -> tuple[str, str]:
    """A model's name without the ending that says how its weights are stored, and that way."""
    for ending, quantization in shared()["stored_as"].items():
        if name.lower().endswith(ending):
            return name[: -len(ending)], quantization
    return name, ""


def _find(name: str) -> str | None:
    if len(name) > 200:
        raise TrainerFileError(f"the model's name ({show(name)}) is {len(name):,} characters long")
    if name in catalog.models():
        return name
    tail = name.rstrip("/").rpartition("/")[2].lower()
    return _by_tail().get(tail) or _by_tail().get(_stem(name))


@cache
def _by_tail() -> dict[str, str]:
    """Catalog ids by the name after the organisation, and by its stem where models that share the stem have equal shapes."""
    found: dict[str, str | None] = {}
    for id, record in catalog.model_records().items():
        stem = _stem(id)
        other = found.get(stem, id)
        found[stem] = other if other and catalog.model_records()[other].config == record.config else None
    tails = {id.rpartition("/")[2].lower(): id for id in catalog.models()}
    return {stem: id for stem, id in found.items() if id} | tails


def _stem(name: str) -> str:
    """Without organisation, folders, and the words of tuned versions, which keep the shapes."""
    tail = name.strip().rstrip("/").lower()
    tail = tail.removesuffix("/original").rpartition("/")[2]
    tail = re.sub(r"^meta-", "", tail)
    return re.sub(rf"-(?:{'|'.join(shared()['tuned_words'])})(?=-|$)", "", tail)


def targets(names: tuple[str, ...], model: ModelArchitecture | None, settings: Settings, key: str) -> str | tuple[str, ...] | None:
    """Module names of a trainer's file as the model has them: the last part of a path; what the model lacks is left out, as PEFT does."""
    if any(re.search(r"[\\^$*+?()\[\]{}|]", name) for name in names):
        settings.refuse(key, "is a pattern; memcore reads names, such as [q_proj, v_proj]")
        settings.note(f"{key} is a pattern, which memcore does not read; name the modules")
        return None
    short = tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))
    if not short or set(short) & {"all-linear", "all"}:
        return "all-linear"
    if model is None:
        return short
    known = [name for name in short if name in model.lora_targets]
    left = [name for name in short if name not in known]
    if left and not known:
        raise TrainerFileError(f"{key} ({', '.join(left)[:100]}): {model.name} has {', '.join(model.lora_targets)}; name some of these")
    outside = [name for name in left if name in ("lm_head", "embed_tokens", "output")]
    if outside:
        settings.note(f"{key}: adapters on {', '.join(outside)} are not in the estimate; a Scenario has them inside the layers only")
    others = [name for name in left if name not in outside]
    if others:
        settings.note(f"{key}: {model.name} has no {', '.join(others)[:100]}")
    return tuple(known)


def by_roles(roles: tuple[str, ...], model: ModelArchitecture | None) -> tuple[str, ...]:
    """A model's own names for roles such as "q" or "down"; Llama's where the model is not known."""
    if model is None:
        return tuple(ROLES[role] for role in roles)
    named = roles_of(model)
    found = [name for role in roles for name, its in named.items() if its in (role, FUSED.get(role))]
    return tuple(name for name in model.lora_targets if name in found)


def roles_of(model: ModelArchitecture) -> dict[str, str]:
    """The role of each module an adapter can be put on, by name."""
    modules = [module for block in model.distinct_layers for module in block.modules]
    return {m.name: getattr(m, "role", "experts") for m in modules if m.name in model.lora_targets}


def saved(names: tuple[str, ...], settings: Settings, key: str) -> tuple[str, ...]:
    """Modules trained in full beside the adapters, under the two names every family understands."""
    table = shared()["saved_modules"]
    short = [name.rpartition(".")[2] for name in names]
    left = [name for name in short if name not in table]
    if left:
        settings.note(f"{key}: {', '.join(left)[:100]} trained in full is not in the estimate; embed_tokens and lm_head are")
    return tuple(dict.fromkeys(table[name] for name in short if name in table))
