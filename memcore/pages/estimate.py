"""The estimate: does it fit, where does it go, what would fit, over one step, every number, and the rules beside it."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from memcore import export, figures, summary
from memcore.estimate import MemoryBreakdown, estimate
from memcore.links import METHODS
from memcore.scenario import Scenario
from memcore.units import format_bytes, format_count

from .controls import Request

ICONS = {"fits": ":material/check_circle:", "tight": ":material/warning:", "does not fit": ":material/cancel:"}
BOXES = {"fits": st.success, "tight": st.warning, "does not fit": st.error}


def show(request: Request) -> None:
    """The whole view, in the order of the questions."""
    breakdowns = {method: estimate(run) for method, run in request.by_method.items()}
    breakdown = breakdowns[request.run.method]
    verdict(request, breakdown)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        where_it_goes(request, breakdowns)
    with right:
        largest_models(request)
    over_one_step(request, breakdown)
    table(request, breakdown)
    published(request, breakdown)


def verdict(request: Request, breakdown: MemoryBreakdown) -> None:
    """One sentence and three numbers."""
    v, unit = summary.verdict(breakdown, request.device), request.unit
    BOXES[v.word](f"**{v.word.capitalize()}.** {summary.sentence(v, request.run, request.device, unit)}", icon=ICONS[v.word])
    moved = summary.change(v.needs, st.session_state.get("_needs"))
    if moved is not None:
        st.session_state["_moved"] = moved
    st.session_state["_needs"] = v.needs
    change = st.session_state.get("_moved")
    with st.container(horizontal=True, key="numbers"):
        st.metric("Needs", format_bytes(v.needs, unit), delta=summary.signed(change, unit) if change else None, delta_color="inverse", delta_description="since the last move", border=True, help=f"Between {format_bytes(v.low, unit)} and {format_bytes(v.high, unit)}")
        st.metric("Has", format_bytes(v.has, unit), border=True)
        st.metric("Spare" if v.spare >= 0 else "Over by", format_bytes(abs(v.spare), unit), border=True)


def where_it_goes(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    st.subheader("Where it goes", anchor=False)
    stacks = summary.stacks(breakdowns)
    figure = figures.where_it_goes(stacks, request.device.usable_bytes, request.run.method, METHODS, request.unit)
    st.plotly_chart(figure, key="where_it_goes", config=figures.CONFIG, alt="Memory by method and part")


@lru_cache(maxsize=1024)
def largest_model(run: Scenario, budget: float):
    import memcore

    return memcore.largest_model(run, budget)


def largest_models(request: Request) -> None:
    st.subheader("What would fit", anchor=False)
    for method, run in request.by_method.items():
        found = largest_model(run, request.device.usable_bytes)
        known = f"{found.model.name} ({format_count(found.model.parameters)})" if found.model else "none"
        st.markdown(f"**{METHODS[method]}** up to {format_count(found.parameters)}: {known}")


def over_one_step(request: Request, breakdown: MemoryBreakdown) -> None:
    st.subheader("Over one step", anchor=False)
    phases = summary.over_one_step(breakdown)
    st.plotly_chart(figures.over_one_step(phases, request.device.usable_bytes, request.unit), key="over_one_step", config=figures.CONFIG, alt="Memory by phase")


def table(request: Request, breakdown: MemoryBreakdown) -> None:
    st.subheader("Every number", anchor=False)
    terms = summary.terms(breakdown)
    st.dataframe(terms, hide_index=True)
    st.download_button("Download CSV", lambda: export.to_csv(export.with_scenario(terms, request.run, request.device)), "memcore.csv", "text/csv", on_click="ignore", key="csv", icon=":material/download:")


def published(request: Request, breakdown: MemoryBreakdown) -> None:
    st.subheader("Beside the published rules", anchor=False)
    for reason in summary.why_different(breakdown, request.unit):
        st.write(reason)
