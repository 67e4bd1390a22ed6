"""What surrounds the views: the link the page was opened with, the sidebar, the top bar, and the estimates of what was asked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import streamlit as st

from memcore import links, presets
from memcore.architecture import ModelArchitecture
from memcore.catalog import Device
from memcore.estimate import MemoryBreakdown, estimate
from memcore.links import METHODS, UPLOAD
from memcore.markup import escape
from memcore.scenario import FIELDS, QLORA_QUANTIZATION, Scenario, ScenarioError, choices
from memcore.summary import by_method

from . import fields, machine

LOG = logging.getLogger(__name__)
STYLE = """<style>
@media (min-width: 900px) {
    .st-key-top_bar { margin-top: -2.5rem }
    [data-testid=stHeader], [data-testid=stToolbar] { pointer-events: none; background: transparent }
    [data-testid=stHeader] button { pointer-events: auto }
}
</style>"""
"""The bar stands beside the menu, not below it: the first screen has that much more room."""


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
    problem: str = ""
    """Why the choices do not go together; `run` is then the last that did."""


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
    """Draw every control and read them. Choices that do not go together are said so, and the last ones that did are in force."""
    state = st.session_state
    values: dict[str, Any] = {key: state.get(key) or fields.default(key) for key in links.ELSEWHERE}
    with st.sidebar:
        model = fields.model_field(values)
        device = fields.device_field(values)
        machine.offer()
        fields.segments(values, "method", METHODS)
        fields.choice(values, "quantization", tuple(name for name in choices("quantization") if name != "none"), "Quantization of QLoRA")
        fields.size_slider(values, "sequence_length")
        fields.size_slider(values, "micro_batch_size")
        fields.segments(values, "gradient_checkpointing", {name: name for name in choices("gradient_checkpointing")})
        with st.expander("Advanced"):
            fields.advanced(values, model)
    chosen = {name: values[name] for name in FIELDS if name in values and name != "model"}
    try:
        runs, problem = scenarios(model, chosen), ""
    except ScenarioError as error:
        last = st.session_state.get("_good_runs")
        instead = "the last run that could be estimated" if last else "this model with a stock run's settings"
        runs, problem = last or scenarios(model, {}), f"{error}. Below is {instead}"
    st.session_state["_good_runs"] = runs
    return Request(run=runs[values["method"]], device=device, by_method=runs, unit=values["unit"], values=values, problem=problem)


def scenarios(model: ModelArchitecture, chosen: dict[str, Any]) -> dict[str, Scenario]:
    """The run with each method. The control of quantization is QLoRA's, whatever the method."""
    chosen = {"quantization": QLORA_QUANTIZATION} | chosen
    chosen["lora_target_modules"] = chosen.get("lora_target_modules") or "all-linear"
    run = Scenario(model=model, **chosen | {"method": "qlora"})
    return by_method(run, run.quantization)


def top_bar() -> Any:
    """Title, unit and reset; the caller puts `share` beside them once the controls are read."""
    st.html(STYLE)
    bar = st.container(horizontal=True, vertical_alignment="center", key="top_bar")
    with bar:
        st.title("Will this fine-tune fit?", anchor=False, width="stretch")
        st.segmented_control(
            "Unit",
            ["GiB", "GB"],
            default="GiB",
            key="unit",
            required=True,
            bind=fields.BIND,
            label_visibility="collapsed",
            help="GiB is 2^30 bytes, as nvidia-smi counts; GB is 10^9 bytes, as on the box.",
        )
        _presets()
        st.button("Reset", icon=":material/restart_alt:", on_click=_reset, help="All controls back to what a stock TRL and PEFT run does.")
    return bar


def share(request: Request) -> None:
    """The link that opens this page with these settings."""
    with st.popover("Share", icon=":material/link:"):
        query = links.write(request.values)
        st.caption("Opens this page with these settings:")
        st.code(f"{(st.context.url or '').split('?')[0].rstrip('/')}/{'?' + query if query else ''}", language=None, wrap_lines=True)
        if request.values["model"] == UPLOAD:
            st.warning("The config.json is not in the link: send it along.", icon=":material/link_off:")


def view(views: dict[str, Any]) -> str:
    """Which view to show; a choice once there are several."""
    if len(views) == 1:
        return next(iter(views))
    return st.segmented_control(
        "View", list(views), default=fields.default("view"), key="view", required=True, bind=fields.BIND, label_visibility="collapsed"
    )


def answer(request: Request) -> tuple[Request, dict[str, MemoryBreakdown]]:
    """The estimates of a request; where there is none, the reason and the last request that had one."""
    if request.problem:
        st.error(f"{escape(request.problem)}.", icon=":material/error:")
    try:
        breakdowns = {method: estimate(run) for method, run in request.by_method.items()}
    except Exception as error:  # at the edge of the page: whatever it is, the page stays
        LOG.exception("no estimate for %s", request.values)
        said = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        st.error(f"{escape(str(said))}. Below is the last run that could be estimated.", icon=":material/error:")
        if "_good_answer" not in st.session_state:
            st.stop()
        return st.session_state["_good_answer"]
    st.session_state["_good_answer"] = request, breakdowns
    return request, breakdowns


def set_controls(**values: Any) -> None:
    """Put values into controls, from a button's callback."""
    st.session_state.update(values)


def _presets() -> None:
    """Well-known set-ups, each one click."""
    menu = st.popover("Start from", icon=":material/bolt:", help="Well-known set-ups to start from.")
    with menu, st.container(gap=None):
        for preset in presets.presets().values():
            st.button(
                preset.label,
                key=f"preset_{preset.name}",
                type="tertiary",
                help=escape(preset.notes),
                on_click=_start_from,
                args=(preset.name,),
            )


def _start_from(name: str) -> None:
    preset = presets.presets()[name]
    _reset()
    set_controls(**links.of_run(preset.run), model=preset.run.model.name, device=preset.device.name)


def _reset() -> None:
    set_controls(**{key: control.default for key, control in links.controls().items() if key not in ("view", "pin")})


def notices(request: Request) -> None:
    """What could not be used of a link or of a choice; shown until the next move."""
    state = st.session_state
    fresh = state.pop("_notices", [])
    if fresh or request.values != state.get("_noticed", (None, []))[0]:
        state["_noticed"] = request.values, fresh
    if found := state["_noticed"][1]:
        st.warning("**Not everything could be used.**\n\n" + "\n".join(f"- {escape(n)}" for n in found), icon=":material/link_off:")
