"""Models that are not in the catalog: their files, uploaded or pasted, or their id on the Hub."""

from __future__ import annotations

from typing import Any

import streamlit as st

from memcore import hub, links, remarks, uploads
from memcore.architecture import ModelArchitecture
from memcore.estimate import MemoryBreakdown
from memcore.hub import HubError, HubModel
from memcore.markup import escape
from memcore.scenario import SAVED_MODULES

from . import fields

LONGEST_PASTE = 2**20
NOTHING = "Upload or paste a model's config.json. It cannot be part of a link: send it along."


class Missing(ValueError):
    """Nothing has been given yet."""


def uploaded_model(values: dict[str, Any]) -> ModelArchitecture:
    """The model of the files given."""
    st.file_uploader(
        "config.json",
        type=["json"],
        accept_multiple_files=True,
        max_upload_size=16,
        key="config_file",
        on_change=_set_adapters,
        help="From the model's files on the Hub. adapter_config.json may come along and sets the LoRA controls; "
        "model.safetensors.index.json is compared with the count.",
    )
    pasted = st.text_area("or paste it", key="config_text", height=80, max_chars=LONGEST_PASTE, on_change=_set_adapters)
    found = _read()
    said = [escape(problem) for problem in found.problems]
    if found.model is None:
        given = st.session_state.get("config_file") or (pasted or "").strip()
        if not given or found.lora and not said:
            raise Missing(NOTHING)
        raise ValueError("; ".join(found.problems))
    for problem in said:
        st.error(problem, icon=":material/error:")
    if found.lora:
        st.caption(":material/tune: adapter\\_config.json set the LoRA controls.")
    if found.checkpoint is not None:
        _compared(found.model, found.checkpoint)
    return found.model


def _read() -> uploads.Uploaded:
    """What is given now; read once for the same files."""
    files, pasted = st.session_state.get("config_file") or [], st.session_state.get("config_text") or ""
    key = (tuple(file.file_id for file in files), pasted)
    if st.session_state.get("_uploaded", (None, None))[0] != key:
        given = [(file.name, file.getvalue()) for file in files]
        given += [("the pasted config.json", pasted)] if pasted.strip() else []
        st.session_state["_uploaded"] = key, uploads.read(given)
    return st.session_state["_uploaded"][1]


def _set_adapters() -> None:
    """What an adapter_config.json says, into the controls."""
    found = _read()
    if not found.lora:
        return
    state = st.session_state
    set_before = dict(found.lora)
    if state.get("method") == "qlora":  # the file does not say how the base is stored
        del set_before["method"]
    targets = set_before.get("lora_target_modules")
    if targets is not None:
        set_before["lora_target_modules"] = [] if targets == "all-linear" else list(targets)
    saved = set_before.get("modules_to_save", ())
    if unknown := [name for name in saved if name not in SAVED_MODULES]:
        fields.notice(f"modules_to_save of adapter_config.json: {', '.join(unknown)} trained in full is not in the estimate")
    set_before["modules_to_save"] = [name for name in saved if name in SAVED_MODULES]
    state.update(set_before)


def hub_model(values: dict[str, Any]) -> ModelArchitecture:
    """The model of an id on the Hub; asked once, and again on demand."""
    text = values["hub_id"] = st.text_input(
        "Hub id",
        key="hub_id",
        bind=fields.BIND,
        max_chars=links.LONGEST_ID,
        placeholder="owner/name",
        help="Only config.json is fetched, by the machine this page runs on, with its token where a model is gated.",
    )
    if not (text or "").strip():
        raise Missing("Type a model's id, such as Qwen/Qwen3-4B, or the address of its page.")
    found = _asked(text)
    if isinstance(found, Exception):
        st.button("Try again", key="hub_again", icon=":material/refresh:", on_click=_forget)
        raise ValueError(f"{str(found)[:1].upper()}{str(found)[1:]}.") from found
    if found.checkpoint is not None:
        _compared(found.model, found.checkpoint)
    return found.model


def _asked(text: str) -> HubModel | Exception:
    """The answer about an id, or why there is none; kept until another is asked for, so that sliders do not wait for it."""
    state = st.session_state
    if state.get("_hub", (None, None))[0] != text:
        try:
            with st.spinner("Asking the Hub…"):
                answer: HubModel | Exception = hub.model(text)
        except ValueError as error:
            answer = error
        except Exception as error:  # whatever a library does, the page stays
            answer = HubError(f"the Hub's answer could not be read: {type(error).__name__}")
        state["_hub"] = text, answer
    return state["_hub"][1]


def _forget() -> None:
    st.session_state.pop("_hub", None)


def _compared(model: ModelArchitecture, checkpoint: uploads.Checkpoint) -> None:
    icon = ":material/done_all:" if checkpoint.agrees else ":material/difference:"
    st.caption(f"{icon} {escape(uploads.compared(model, checkpoint, fields.unit()))}")


def beside_the_verdict(request: Any, breakdown: MemoryBreakdown) -> None:
    """What is not certain about the model, and what its encoders weigh."""
    for sentence in remarks.about_model(breakdown, request.unit):
        st.caption(f":material/info: {escape(sentence)}")
