"""The sidebar: every choice of a Scenario as a widget that is bound to the address; what it gives is a Request.

A widget's key is the name of the Scenario field it sets. A value that cannot be used gets its message at the field, and
the last one that could be used stays in force.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from memcore import catalog, configs, links
from memcore.architecture import ModelArchitecture
from memcore.catalog import Device
from memcore.estimate import MemoryBreakdown, estimate
from memcore.links import CUSTOM, METHODS, UPLOAD
from memcore.scenario import FIELDS, SAVED_MODULES, Scenario, choices, explanations
from memcore.summary import by_method
from memcore.units import format_bytes, format_count, parse_count

LENGTHS = (512, 768, *(int(k * 2**n) for n in range(10, 20) for k in (1, 1.5)), 2**20)
BATCHES = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 56, 64, 80, 96, 112, 128, 192, 256, 384, 512)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
DEGREES = tuple(2**n for n in range(11))
STOPS = {"sequence_length": LENGTHS, "micro_batch_size": BATCHES, "lora_rank": RANKS, "gradient_accumulation_steps": COUNTS, "data_parallel_size": COUNTS}
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
    "prepare_kbit": "k-bit preparation",
    "data_parallel_size": "GPUs, each with its own micro batch",
    "sharding": "Sharding over those GPUs",
    "gpus_per_node": "GPUs per machine",
    "offload": "Offload to host memory",
    "activation_offload": "Offload kept layer inputs",
    "tensor_parallel_size": "GPUs that divide every layer",
    "sequence_parallel": "Divide tokens between products",
    "pipeline_parallel_size": "GPUs that hold consecutive layers",
    "context_parallel_size": "GPUs that divide every sequence",
}
"""Names of controls that their field does not give."""

ADVANCED = {
    "": ("optimizer", "precision", "autocast", "gradient_accumulation_steps"),
    "Adapters (LoRA and QLoRA)": ("lora_rank", "lora_dropout", "lora_target_modules", "modules_to_save", "adapter_precision", "prepare_kbit"),
    "Software": ("software", "attention", "loss", "kernels"),
    "Several GPUs, and host memory": (
        "data_parallel_size", "sharding", "gpus_per_node", "offload", "activation_offload", "tensor_parallel_size", "sequence_parallel",
        "pipeline_parallel_size", "pipeline_schedule", "context_parallel_size",
    ),
}  # fmt: skip
"""The rarer controls by heading; fields that are named nowhere join the first."""
FIRST = ("model", "method", "quantization", "sequence_length", "micro_batch_size", "gradient_checkpointing")
CATALOGS = {"precision": catalog.precisions, "optimizer": catalog.optimizers, "quantization": catalog.quantizations, "software": catalog.software}
LONGEST_CONFIG = 2**20
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the sidebar asks for."""

    run: Scenario
    device: Device
    unit: str
    by_method: dict[str, Scenario]
    """The run with each method."""
    values: dict[str, Any]
    """Of every control, for the link."""
    uploaded: bool
    """The model is an uploaded config, which a link cannot carry."""


def open_link() -> None:
    """On the first run of a session: take what the address says, and remember what of it was not understood.

    An address in other words than the widgets' own is rewritten in theirs: they drop what they do not recognise.
    """
    state = st.session_state
    if "_opened" not in state:
        state["_opened"] = True
        given = {key: st.query_params.get_all(key) for key in st.query_params}
        values, state["_notices"] = links.read(given)
        state["_linked"] = values
        if given != (spelled := links.spell(values)):
            st.query_params.from_dict(spelled)
            st.rerun()
    state.update(state.pop("_linked", {}))


def sidebar() -> Request:
    """Draw every control and read them."""
    values: dict[str, Any] = {"unit": unit()}
    with st.sidebar:
        model = _model(values)
        device = _device(values)
        values["method"] = st.segmented_control(
            "Method", list(METHODS), default=_default("method"), format_func=METHODS.get, key="method", required=True, bind="query-params", help=_help("method"), width="stretch"
        )
        _choice(values, "quantization", tuple(name for name in choices("quantization") if name != "none"), "Quantization of QLoRA")
        _size(values, "sequence_length")
        _size(values, "micro_batch_size")
        values["gradient_checkpointing"] = st.segmented_control(
            "Gradient checkpointing", choices("gradient_checkpointing"), default=_default("gradient_checkpointing"), key="gradient_checkpointing", required=True, bind="query-params", help=_help("gradient_checkpointing"), width="stretch"
        )
        with st.expander("Advanced"):
            _advanced(values, model)
    fields = {name: values[name] for name in FIELDS if name in values and name != "model"}
    fields["lora_target_modules"] = fields["lora_target_modules"] or "all-linear"
    quantization = fields.pop("quantization")
    run = Scenario(model=model, **fields, quantization=quantization if fields["method"] == "qlora" else "none")
    return Request(run=run, device=device, unit=values["unit"], by_method=by_method(run, quantization), values=values, uploaded=values["model"] == UPLOAD)


def _advanced(values: dict[str, Any], model: ModelArchitecture) -> None:
    named = {*FIRST, *(field for fields in ADVANCED.values() for field in fields)}
    for heading, fields in ADVANCED.items():
        if heading:
            st.markdown(f"**{heading}**")
        for field in fields if heading else (*fields, *(f for f in FIELDS if f not in named)):
            _field(values, field, model)


def _field(values: dict[str, Any], field: str, model: ModelArchitecture) -> None:
    """The widget of a field, by the kind of its default."""
    default = _default(field)
    if field in MODULES:
        _several(values, field, MODULES[field](model))
    elif isinstance(default, bool):
        values[field] = st.toggle(_label(field), value=default, key=field, bind="query-params", help=_help(field))
    elif isinstance(default, int):
        _size(values, field)
    elif isinstance(default, float):
        values[field] = st.number_input(_label(field), 0.0, 0.99, default, 0.05, key=field, bind="query-params", help=_help(field))
    else:
        _choice(values, field, choices(field))


MODULES = {"lora_target_modules": lambda model: model.lora_targets, "modules_to_save": lambda model: SAVED_MODULES}


def _default(key: str) -> Any:
    return links.controls()[key].default


def _label(field: str) -> str:
    return LABELS.get(field) or field.replace("_", " ").capitalize()


def _help(field: str) -> str:
    return explanations()[field]


def _choice(values: dict[str, Any], field: str, options: tuple[str, ...], label: str = "") -> None:
    values[field] = st.selectbox(label or _label(field), options, index=options.index(_default(field)), key=field, bind="query-params", help=_help(field))
    if field in CATALOGS:
        st.caption(CATALOGS[field]()[values[field]].label)


def _size(values: dict[str, Any], field: str) -> None:
    chosen, default = st.session_state.get(field), _default(field)
    stops = sorted({*STOPS.get(field, DEGREES), chosen or default, default})
    values[field] = st.select_slider(_label(field), stops, value=default, format_func=links.controls()[field].write, key=field, bind="query-params", help=_help(field))


def _several(values: dict[str, Any], field: str, options: tuple[str, ...]) -> None:
    chosen = st.session_state.get(field) or ()
    if unknown := [name for name in chosen if name not in options]:
        st.session_state[field] = [name for name in chosen if name in options]
        notice(f"{field}: this model has no {', '.join(unknown)}; it has {', '.join(options)}")
    values[field] = tuple(st.multiselect(_label(field), options, key=field, bind="query-params", help=_help(field), placeholder="all linear" if field == "lora_target_modules" else "none"))


def _model(values: dict[str, Any]) -> ModelArchitecture:
    names = [CUSTOM, UPLOAD, *catalog.models()]
    name = values["model"] = st.selectbox("Model", names, index=names.index(links.DEFAULT_MODEL), key="model", bind="query-params", help="Type any part of a name. Custom… takes a number of parameters, config.json… a file from the Hub.")
    model = _last_good("model", {CUSTOM: _custom_model, UPLOAD: _uploaded_model}.get(name, lambda values: catalog.model(name)), values, lambda: catalog.model(links.DEFAULT_MODEL))
    st.caption(f"{format_count(model.parameters)} parameters · {len(model.layers)} layers × {model.hidden_size:,} · vocabulary {model.vocab_size:,}")
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


class Missing(ValueError):
    """Nothing has been given yet."""


def _custom_model(values: dict[str, Any]) -> ModelArchitecture:
    text = values["custom_parameters"] = st.text_input("Parameters", _default("custom_parameters"), max_chars=30, key="custom_parameters", bind="query-params", help="Such as 8B, 350M or 8,030,261,248.")
    size = parse_count(text)
    try:
        return configs.custom_model(size)
    except ValueError:
        raise ValueError(f"No model has {text} parameters. Give a size such as 350M, 8B or 70B.") from None


def _uploaded_model(values: dict[str, Any]) -> ModelArchitecture:
    file = st.file_uploader("config.json", type=["json"], key="config_file", help="From the model's files on the Hub.")
    pasted = st.text_area("or paste it", key="config_text", height=80, max_chars=LONGEST_CONFIG)
    text = file.getvalue().decode(errors="replace") if file else pasted
    if not text.strip():
        raise Missing("Upload or paste a model's config.json. It cannot be part of a link: send it along.")
    return read_config(text)


def read_config(text: str) -> ModelArchitecture:
    """The model that the text of a config.json describes."""
    try:
        config = json.loads(text[:LONGEST_CONFIG])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"This is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError("A config.json is an object, {…}, with keys such as hidden_size")
    try:
        model = configs.model_from_config(config)
    except configs.ConfigError:
        raise
    except Exception as error:  # whatever a stranger's file does, the page stays
        raise ValueError(f"This config.json could not be read: {type(error).__name__} {error}") from error
    name = config.get("_name_or_path")
    return replace(model, name=str(name)[:80] if name else f"uploaded {model.model_type}")


def _device(values: dict[str, Any]) -> Device:
    devices = catalog.devices()
    names = [CUSTOM, *devices]
    name = values["device"] = st.selectbox("Device", names, index=names.index(links.DEFAULT_DEVICE), format_func=lambda n: devices[n].label if n in devices else n, key="device", bind="query-params", help="What a run may take is less than the number on the box.")
    device = _last_good("device", _custom_device if name == CUSTOM else lambda values: devices[name], values, lambda: devices[links.DEFAULT_DEVICE])
    st.caption(f"{format_bytes(device.usable_bytes, unit())} of {format_bytes(device.memory_bytes, unit())} for a run")
    return device


def _custom_device(values: dict[str, Any]) -> Device:
    left, right = st.columns(2, vertical_alignment="bottom")
    amount = values["custom_memory"] = left.number_input("Memory", value=_default("custom_memory"), step=1.0, format="%g", key="custom_memory", bind="query-params")
    unit = values["custom_memory_unit"] = right.segmented_control("Unit of memory", ["GB", "GiB"], default="GB", key="custom_memory_unit", required=True, label_visibility="collapsed", bind="query-params")
    unified = values["custom_unified"] = st.toggle("Unified memory (shared with the system)", key="custom_unified", bind="query-params", help="A Mac or another machine whose GPU uses the RAM gives a run only part of it.")
    return catalog.custom_device(f"{amount:.12g}", unit, unified)


def top_bar() -> Any:
    """Title, unit and reset; the caller puts `share` beside them once the controls are read."""
    bar = st.container(horizontal=True, vertical_alignment="center", key="top_bar")
    with bar:
        st.title("Will this fine-tune fit?", anchor=False, width="stretch")
        st.segmented_control("Unit", ["GiB", "GB"], default="GiB", key="unit", required=True, bind="query-params", label_visibility="collapsed", help="GiB is 2^30 bytes, as nvidia-smi counts; GB is 10^9 bytes, as on the box.")
        st.button("Reset", icon=":material/restart_alt:", on_click=_reset, help="All controls back to what a stock TRL and PEFT run does.")
    return bar


def unit() -> str:
    return st.session_state.get("unit") or _default("unit")


def share(request: Request) -> None:
    """The link that opens this page with these settings."""
    with st.popover("Share", icon=":material/link:"):
        query = links.write(request.values)
        st.caption("Opens this page with these settings:")
        st.code(f"{(st.context.url or '').split('?')[0].rstrip('/')}/{'?' + query if query else ''}", language=None, wrap_lines=True)
        if request.uploaded:
            st.warning("The config.json is not in the link: send it along.", icon=":material/link_off:")


def view(views: dict[str, Any]) -> str:
    """Which view to show; a choice once there are several."""
    if len(views) == 1:
        return next(iter(views))
    return st.segmented_control("View", list(views), default=_default("view"), key="view", required=True, bind="query-params", label_visibility="collapsed")


def answer(request: Request) -> tuple[Request, dict[str, MemoryBreakdown]]:
    """The estimates of a request; where there is none, the reason and the last request that had one."""
    try:
        breakdowns = {method: estimate(run) for method, run in request.by_method.items()}
    except Exception as error:  # at the edge of the page: whatever it is, the page stays
        LOG.exception("no estimate for %s", request.values)
        st.error(f"This combination could not be estimated ({escape(f'{type(error).__name__}: {error}')}). Below is the last one that could.", icon=":material/error:")
        if "_good_answer" not in st.session_state:
            st.stop()
        return st.session_state["_good_answer"]
    st.session_state["_good_answer"] = request, breakdowns
    return request, breakdowns


def set_controls(**values: Any) -> None:
    """Put values into controls, from a button's callback."""
    st.session_state.update(values)


def _reset() -> None:
    set_controls(**{key: control.default for key, control in links.controls().items() if key != "view"})


def notice(text: str) -> None:
    st.session_state.setdefault("_notices", []).append(text)


def notices(request: Request) -> None:
    """What could not be used of a link or of a choice; shown until the next move."""
    state = st.session_state
    fresh = state.pop("_notices", [])
    if fresh or request.values != state.get("_noticed", (None, []))[0]:
        state["_noticed"] = request.values, fresh
    if found := state["_noticed"][1]:
        st.warning("**Not everything could be used.**\n\n" + "\n".join(f"- {escape(n)}" for n in found), icon=":material/link_off:")


def escape(text: str) -> str:
    """Text that is nobody's markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>$~|#&" else c for c in text)
