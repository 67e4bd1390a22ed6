"""The fields of the sidebar, each a widget bound to the address whose key is the name of the Scenario field it sets.

A value that cannot be used gets its message at the field, and the last one that could be used stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from memcore import catalog, configs, links
from memcore.architecture import ModelArchitecture
from memcore.catalog import Device
from memcore.links import CUSTOM, HUB, LARGEST_DROPOUT, UPLOAD
from memcore.markup import escape
from memcore.scenario import FIELDS, SAVED_MODULES, choices, explanations
from memcore.units import format_bytes, format_count, parse_count

from . import uploads
from .uploads import Missing

LENGTHS = (512, 768, *(int(k * 2**n) for n in range(10, 20) for k in (1, 1.5)), 2**20)
BATCHES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 56, 64, 80, 96, 112, 128, 192, 256, 384, 512)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
DEGREES = tuple(2**n for n in range(11))
STOPS = {
    "sequence_length": LENGTHS,
    "micro_batch_size": BATCHES,
    "lora_rank": RANKS,
    "gradient_accumulation_steps": COUNTS,
    "data_parallel_size": COUNTS,
}
"""Sliders with stops, by field; whole numbers that are not here have DEGREES. A link may bring a stop of its own."""

LABELS = {
    "sequence_length": "Sequence length (tokens)",
    "micro_batch_size": "Micro batch (sequences per GPU)",
    "precision": "Precision recipe",
    "autocast": "Autocast to 16 bits",
    "lora_rank": "LoRA rank",
    "lora_dropout": "LoRA dropout",
    "lora_target_modules": "Target modules (none chosen: all linear)",
    "modules_to_save": "Trained in full beside the adapters",
    "attention": "Attention kernel",
    "towers": "Vision and audio encoders",
    "prepare_kbit": "k-bit preparation",
    "data_parallel_size": "GPUs (data parallel)",
    "sharding": "Sharding over those GPUs",
    "gpus_per_node": "GPUs per machine",
    "offload": "Offload to host memory",
    "activation_offload": "Offload layer inputs (checkpoints)",
    "tensor_parallel_size": "Tensor parallel GPUs",
    "sequence_parallel": "Sequence parallel",
    "pipeline_parallel_size": "Pipeline stages",
    "context_parallel_size": "Context parallel GPUs",
}
"""Names of controls that their field does not give."""

ADVANCED = {
    "": ("optimizer", "precision", "autocast", "gradient_accumulation_steps"),
    "Adapters (LoRA and QLoRA)": (
        "lora_rank",
        "lora_dropout",
        "lora_target_modules",
        "modules_to_save",
        "adapter_precision",
        "prepare_kbit",
    ),
    "Software": ("software", "attention", "loss", "kernels"),
    "Several GPUs, and host memory": (
        "data_parallel_size",
        "sharding",
        "gpus_per_node",
        "offload",
        "activation_offload",
        "tensor_parallel_size",
        "sequence_parallel",
        "pipeline_parallel_size",
        "pipeline_schedule",
        "context_parallel_size",
    ),
}
"""The rarer controls by heading; fields that are named nowhere join the first."""
FIRST = ("model", "method", "quantization", "sequence_length", "micro_batch_size", "gradient_checkpointing")
CATALOGS = {
    "precision": catalog.precisions,
    "optimizer": catalog.optimizers,
    "quantization": catalog.quantizations,
    "software": catalog.software,
}

BIND = "query-params"


def segments(values: dict[str, Any], field: str, labels: dict[str, str]) -> None:
    """A choice between few, all visible."""
    values[field] = st.segmented_control(
        _label(field),
        list(labels),
        default=default(field),
        format_func=labels.get,
        key=field,
        required=True,
        bind=BIND,
        help=_help(field),
        width="stretch",
    )


def advanced(values: dict[str, Any], model: ModelArchitecture) -> None:
    named = {*FIRST, *(field for fields in ADVANCED.values() for field in fields)}
    for heading, fields in ADVANCED.items():
        if heading:
            st.markdown(f"**{heading}**")
        for field in fields if heading else (*fields, *(f for f in FIELDS if f not in named)):
            _field(values, field, model)


def _field(values: dict[str, Any], field: str, model: ModelArchitecture) -> None:
    """The widget of a field, by the kind of its default."""
    at_first = default(field)
    if field in MODULES:
        _several(values, field, MODULES[field](model))
    elif isinstance(at_first, bool):
        values[field] = st.toggle(_label(field), value=at_first, key=field, bind=BIND, help=_help(field))
    elif isinstance(at_first, int):
        size_slider(values, field)
    elif isinstance(at_first, float):
        values[field] = st.number_input(_label(field), 0.0, LARGEST_DROPOUT, at_first, 0.05, key=field, bind=BIND, help=_help(field))
    else:
        choice(values, field, choices(field))
    if (why := IDLE.get(field)) and (said := why(model)):
        st.caption(said)


def _now(field: str) -> Any:
    return st.session_state.get(field, default(field))


def _nodes_matter() -> bool:
    return _now("sharding") in ("hsdp", "fsdp-offload") or _now("offload") != "none" or _now("activation_offload")


IDLE: dict[str, Callable[[ModelArchitecture], str]] = {
    "pipeline_schedule": lambda model: "" if _now("pipeline_parallel_size") > 1 else "No effect with one pipeline stage.",
    "gpus_per_node": lambda model: "" if _nodes_matter() else "No effect without hybrid sharding (hsdp) or offload.",
    "towers": lambda model: "" if model.towers else "No effect: this model has none.",
}
"""Controls that change nothing as the others stand, and what to say of that."""


MODULES = {"lora_target_modules": lambda model: model.lora_targets, "modules_to_save": lambda model: SAVED_MODULES}


def default(key: str) -> Any:
    return links.controls()[key].default


def _label(field: str) -> str:
    return LABELS.get(field) or field.replace("_", " ").capitalize()


def _help(field: str) -> str:
    return explanations()[field]


def choice(values: dict[str, Any], field: str, options: tuple[str, ...], label: str = "") -> None:
    values[field] = st.selectbox(label or _label(field), options, index=options.index(default(field)), key=field, bind=BIND, help=_help(field))
    if field in CATALOGS:
        st.caption(CATALOGS[field]()[values[field]].label)


def size_slider(values: dict[str, Any], field: str) -> None:
    chosen, at_first = st.session_state.get(field), default(field)
    stops = sorted({*STOPS.get(field, DEGREES), chosen or at_first, at_first})
    values[field] = st.select_slider(
        _label(field), stops, value=at_first, format_func=links.controls()[field].write, key=field, bind=BIND, help=_help(field)
    )


def _several(values: dict[str, Any], field: str, options: tuple[str, ...]) -> None:
    chosen = st.session_state.get(field) or ()
    if unknown := [name for name in chosen if name not in options]:
        st.session_state[field] = [name for name in chosen if name in options]
        notice(f"{field}: this model has no {', '.join(unknown)}; it has {', '.join(options)}")
    values[field] = tuple(
        st.multiselect(
            _label(field),
            options,
            key=field,
            bind=BIND,
            help=_help(field),
            placeholder="all linear" if field == "lora_target_modules" else "none",
        )
    )


def model_field(values: dict[str, Any]) -> ModelArchitecture:
    names = [CUSTOM, UPLOAD, HUB, *catalog.models()]
    name = values["model"] = st.selectbox(
        "Model",
        names,
        index=names.index(links.DEFAULT_MODEL),
        key="model",
        bind=BIND,
        help="Type any part of a name as spelled: llama-3.1-8b. Custom… takes a number of parameters, config.json… a file, Hub id… any model there.",
    )
    model = _last_good(
        "model",
        {CUSTOM: _custom_model, UPLOAD: uploads.uploaded_model, HUB: uploads.hub_model}.get(name, lambda values: catalog.model(name)),
        values,
        lambda: catalog.model(links.DEFAULT_MODEL),
    )
    shape = f"{len(model.layers)} layers × {model.hidden_size:,}"
    st.caption(f"{format_count(model.parameters)} parameters · {shape} · vocabulary {model.vocab_size:,}")
    for doubt in model.uncertain:
        st.caption(f":material/info: {escape(doubt)}")
    return model


def _last_good(what: str, make: Callable[[dict[str, Any]], Any], values: dict[str, Any], fallback: Callable[[], Any]) -> Any:
    """What the field gives; where it cannot be used, a message at the field and the last one that could."""
    try:
        made = make(values)
    except (ValueError, KeyError) as error:
        made = st.session_state.get(f"_good_{what}") or fallback()
        empty = isinstance(error, Missing)
        (st.info if empty else st.error)(escape(str(error)), icon=":material/upload_file:" if empty else ":material/error:")
        st.caption(escape(f"Still showing {made.name if what == 'model' else made.label}."))
    else:
        st.session_state[f"_good_{what}"] = made
    return made


def _custom_model(values: dict[str, Any]) -> ModelArchitecture:
    text = values["custom_parameters"] = st.text_input(
        "Parameters",
        default("custom_parameters"),
        max_chars=30,
        key="custom_parameters",
        bind=BIND,
        help="Such as 8B, 350M or 8,030,261,248.",
    )
    size = parse_count(text)
    try:
        return configs.custom_model(size)
    except ValueError:
        raise ValueError(f"No model has {text} parameters. Give a size such as 350M, 8B or 70B.") from None


def device_field(values: dict[str, Any]) -> Device:
    devices = catalog.devices()
    names = [CUSTOM, *devices]
    name = values["device"] = st.selectbox(
        "Device",
        names,
        index=names.index(links.DEFAULT_DEVICE),
        format_func=lambda n: devices[n].label if n in devices else n,
        key="device",
        bind=BIND,
        help="What a run may take is less than the number on the box.",
    )
    device = _last_good("device", _custom_device if name == CUSTOM else lambda values: devices[name], values, lambda: devices[links.DEFAULT_DEVICE])
    st.caption(f"{format_bytes(device.usable_bytes, unit())} of {format_bytes(device.memory_bytes, unit())} for a run")
    return device


def _custom_device(values: dict[str, Any]) -> Device:
    left, right = st.columns(2, vertical_alignment="bottom")
    amount = values["custom_memory"] = left.number_input("Memory", value=default("custom_memory"), step=1.0, format="%g", key="custom_memory", bind=BIND)
    unit = values["custom_memory_unit"] = right.segmented_control(
        "Unit of memory",
        ["GB", "GiB"],
        default="GB",
        key="custom_memory_unit",
        required=True,
        label_visibility="collapsed",
        bind=BIND,
    )
    unified = values["custom_unified"] = st.toggle(
        "Unified memory (shared with the system)",
        key="custom_unified",
        bind=BIND,
        help="A Mac or another machine whose GPU uses the RAM gives a run only part of it.",
    )
    return catalog.custom_device(f"{amount:.12g}", unit, unified)


def unit() -> str:
    return st.session_state.get("unit") or default("unit")


def notice(text: str) -> None:
    st.session_state.setdefault("_notices", []).append(text)
