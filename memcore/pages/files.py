"""Files that people already have: a trainer's, which sets the controls or starts a run; a model's, which stands for one of the catalog."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from memcore import exchange, summary
from memcore.configs import ConfigError
from memcore.estimate import MemoryBreakdown, estimate
from memcore.markup import escape
from memcore.scenario import ScenarioError
from memcore.trainers import TrainerFileError
from memcore.trainers.text import MAX_CHARACTERS

from .controls import Request, set_controls

EXAMPLE = """base_model: meta-llama/Llama-3.1-8B
adapter: qlora
load_in_4bit: true
lora_r: 32
sequence_len: 2048
micro_batch_size: 2"""
ICONS = {"fits": ":material/check_circle:", "tight": ":material/warning:", "does not fit": ":material/cancel:"}


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The view of trainers' files: in, and out."""
    into, out = st.tabs(("A trainer's file into this page", "This page into a trainer's file"), key="files_part")
    with into:
        _into(request)
    with out:
        _out(request)


def _into(request: Request) -> None:
    st.markdown(
        "Upload or paste what you already have: the YAML or JSON of axolotl, LLaMA-Factory, torchtune, TRL or mlx-lm, a command line, "
        "or Unsloth's Python; or an adapter's adapter_config.json. It is read, never run, and stays on this page."
    )
    left, right = st.columns(2, gap="medium")
    with left:
        st.file_uploader(
            "A file",
            key="trainer_upload",
            on_change=_take_upload,
            max_upload_size=1,
            help="Its text appears beside, where you can change it.",
        )
        trainer = st.selectbox(
            "Whose file it is", list(exchange.readable()), format_func=exchange.readable().get, key="trainer_name", persist_state="session"
        )
    with right:
        text = st.text_area("or its text", key="trainer_text", height=190, max_chars=MAX_CHARACTERS, placeholder=EXAMPLE, persist_state="session")
    if problem := st.session_state.get("_trainer_problem"):
        st.error(escape(problem), icon=":material/error:")
    if not (text or "").strip():
        st.info(
            "Nothing to read yet. The example in grey shows what a file looks like; keys that are missing have the defaults of the trainer's own code.",
            icon=":material/upload_file:",
        )
        return
    try:
        if exchange.is_adapter(text):
            found = exchange.read_adapter(text, request.run)
        else:
            found = exchange.read(text, request.run.model, trainer or exchange.DETECT)
        needs = estimate(found.run)
    except (TrainerFileError, ConfigError, ScenarioError) as error:
        st.error(f"{escape(_sentence(error))} The page is as it was.", icon=":material/error:")
        return
    except Exception as error:  # whatever a stranger's file does, the page stays
        st.error(f"This file could not be read: {escape(type(error).__name__)}. The page is as it was.", icon=":material/error:")
        return
    _found(request, found, needs)


def _take_upload() -> None:
    """The uploaded file's text into the text area."""
    file = st.session_state.get("trainer_upload")
    st.session_state["_trainer_problem"] = ""
    if file is None:
        return
    if file.size > MAX_CHARACTERS:
        st.session_state["_trainer_problem"] = f"{file.name} is {file.size:,} bytes long; a trainer's file has at most {MAX_CHARACTERS:,}."
        return
    try:
        text = file.getvalue().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        st.session_state["_trainer_problem"] = f"{file.name} is not UTF-8 text (byte {error.start}): is it the right file?"
        return
    st.session_state["trainer_text"] = text


def _found(request: Request, found: exchange.Read, needs: MemoryBreakdown) -> None:
    verdict = summary.verdict(needs, request.device)
    with st.container(border=True, key="trainer_found"):
        st.markdown(
            f"**{escape(found.title)}** · {escape(found.file.model_name or 'no model named')}  \n"
            f"{ICONS[verdict.word]} **{verdict.word.capitalize()}.** "
            f"{escape(summary.sentence(verdict, found.run, request.device, request.unit))}"
        )
        if found.borrowed:
            st.warning(
                f"The file's model is not in the catalog: the numbers are those of {escape(found.run.model.name)}, chosen at the left. "
                "Choose config.json… or Hub id… there for the file's own.",
                icon=":material/help:",
            )
        with st.container(horizontal=True):
            st.button(
                "Apply to the page",
                type="primary",
                icon=":material/tune:",
                key="trainer_apply",
                on_click=_apply,
                args=(found.controls,),
                help="Sets every control to this run and shows its estimate."
                + ("" if found.file.trainer == "peft" else " What neither the file nor its trainer decides gets memcore's default."),
            )
    for note in found.file.notes:
        st.markdown(f":material/info: {escape(note)}.".replace("..", "."))
    st.markdown("**What it sets**")
    with st.container(key="trainer_fields"):
        _table(exchange.fields_set(found, request.run), "Fields that the file sets")
    left_out, quiet = exchange.not_used(found.file), exchange.without_effect(found.file)
    st.markdown("**What was not used**")
    if len(left_out):
        with st.container(key="trainer_unused"):
            _table(left_out, "Keys that were not used, and why")
    st.caption(
        f"Without effect on the peak: {escape(', '.join(quiet))}."
        if quiet
        else "Every key was used."
        if not len(left_out)
        else "All other keys were used."
    )
    if len(defaults := exchange.assumed(found.file)):
        with st.expander(f"{len(defaults)} defaults of {found.file.label.split(' (')[0]} where the file says nothing", key="trainer_defaults"):
            _table(defaults, "Defaults that were assumed, and where they are written")


def _apply(values: dict[str, Any]) -> None:
    set_controls(**values, view="Estimate")


def _out(request: Request) -> None:
    st.markdown("The run on this page as a file to start from. Read back in, it gives the same run.")
    names = exchange.writable()
    trainer = st.segmented_control(
        "Trainer",
        list(names),
        default=next(iter(names)),
        format_func=names.get,
        key="write_for",
        required=True,
        label_visibility="collapsed",
    )
    try:
        text = exchange.write(request.run, trainer)
    except TrainerFileError as error:
        st.info(escape(_sentence(error)), icon=":material/block:")
        return
    if exchange.unnamed(request.run):
        st.warning("This model has no name on the Hub that memcore knows: put its path into the file.", icon=":material/edit:")
    st.download_button(
        "Download",
        text,
        exchange.file_name(request.run, trainer),
        "text/plain",
        on_click="ignore",
        key="trainer_download",
        icon=":material/download:",
    )
    with st.container(key="trainer_file"):
        st.code(text, language=exchange.language(trainer), wrap_lines=True)


def _table(table: pd.DataFrame, alt: str) -> None:
    st.table(table, hide_index=True, border="horizontal", alt=alt)


def _sentence(error: Exception) -> str:
    """An error as a sentence that ends."""
    text = str(error).strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
