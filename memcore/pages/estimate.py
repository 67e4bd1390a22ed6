"""The estimate: does it fit, where does it go, what would fit, over one step, every number, and the rules beside it."""

from __future__ import annotations

from functools import lru_cache

import streamlit as st

from memcore import export, figures, solver, summary
from memcore.estimate import MemoryBreakdown
from memcore.links import METHODS
from memcore.markup import escape
from memcore.scenario import Scenario
from memcore.units import format_bytes, format_count

from . import accuracy, gpus, uploads, whatif
from .controls import Request, set_controls

ICONS = {"fits": ":material/check_circle:", "tight": ":material/warning:", "does not fit": ":material/cancel:"}
NEEDS_HELP = (
    "What the card must provide: live tensors, what the allocator holds beyond them, and the CUDA context. "
    "In brackets the band that measured runs fall into."
)
ANY_SIZE_HELP = (
    "Between the known models: one shaped like Llama 3 with this many parameters would just fit. "
    "A model with a smaller vocabulary may be larger, one with a larger vocabulary must be smaller."
)
CSV_HELP = "These rows, with the scenario and the device in columns of their own."
BOXES = {"fits": st.success, "tight": st.warning, "does not fit": st.error}


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The whole view, in the order of the questions."""
    breakdown = breakdowns[request.run.method]
    verdict(request, breakdown)
    whatif.make_it_fit(request, breakdown)
    whatif.warnings(request)
    remarks = st.container(key="remarks", gap="xxsmall")
    where_it_goes(request, breakdowns)
    fitting = st.container(key="what_would_fit")
    over_one_step(request, breakdown)
    gpus.show(request, breakdown)
    whatif.how_far(request, breakdown)
    whatif.what_to_change(request, breakdown)
    whatif.time_and_cost(request)
    every_number(request, breakdown)
    published(request, breakdowns)
    with fitting:  # last, because it asks for many estimates: all else is there before it
        what_would_fit(request)
    with remarks:
        uploads.beside_the_verdict(request, breakdown)
        accuracy.beside_the_verdict(request)


def verdict(request: Request, breakdown: MemoryBreakdown) -> None:
    """One sentence and three numbers."""
    v, unit = summary.verdict(breakdown, request.device), request.unit
    said = (
        summary.sentence(v, request.run, request.device, unit),
        summary.peak_sentence(breakdown, unit),
        summary.beside_the_card(breakdown, unit),
    )
    BOXES[v.word](f"**{v.word.capitalize()}.** {escape(' '.join(said))}", icon=ICONS[v.word])
    moved = summary.change(v.needs, st.session_state.get("_needs"))
    if moved is not None:
        st.session_state["_moved"] = moved
    st.session_state["_needs"] = v.needs
    change = st.session_state.get("_moved")
    with st.container(horizontal=True, key="numbers"):
        st.metric(
            f"Needs ({format_bytes(v.low, unit)} to {format_bytes(v.high, unit)})",
            format_bytes(v.needs, unit),
            border=True,
            height="stretch",
            delta=summary.signed(change, unit) if change else None,
            delta_color="inverse",
            delta_description="since the last move" if change else None,
            help=NEEDS_HELP,
        )
        st.metric(
            f"Has (of {format_bytes(request.device.memory_bytes, unit)})",
            format_bytes(v.has, unit),
            border=True,
            height="stretch",
            help=f"What a run may take of this device: {request.device.usable_basis}.",
        )
        st.metric("Spare" if v.spare >= 0 else "Over by", format_bytes(abs(v.spare), unit), border=True, height="stretch")


def heading(text: str) -> None:
    """Of a chart: its name, and the legend beside it."""
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", gap="medium"):
        st.subheader(text, anchor=False, width="content")
        st.html(figures.legend(), width="content")


def where_it_goes(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """A bar for each method."""
    heading("Where it goes")
    figure = figures.where_it_goes(summary.stacks(breakdowns), request.device.usable_bytes, request.run.method, request.unit)
    alt = ", ".join(f"{METHODS[m]} needs {format_bytes(b.device, request.unit)}" for m, b in breakdowns.items())
    st.plotly_chart(
        figure,
        key="where_it_goes",
        config=figures.CONFIG,
        alt=f"{alt}; the device can give {format_bytes(request.device.usable_bytes, request.unit)}",
    )


def what_would_fit(request: Request) -> None:
    """The largest model of each method: as a number of parameters, and by name."""
    st.subheader("What would fit, with these settings", anchor=False)
    with st.container(horizontal=True):
        for method, run in request.by_method.items():
            with st.container(border=True, height="stretch", width="stretch", gap="xsmall"):
                found = largest_model(run, request.device.usable_bytes)
                st.markdown(f"**{METHODS[method]}**: largest known model")
                if found.model:
                    st.button(
                        f"{escape(summary.short_name(found.model))}, {format_count(found.model.parameters)}",
                        key=f"use_{method}",
                        type="tertiary",
                        icon=":material/arrow_forward:",
                        wrap=True,
                        help=f"{found.model.name} needs {format_bytes(found.needs, request.unit)}. Click to use it.",
                        on_click=set_controls,
                        kwargs={"model": found.model.name, "method": method},
                    )
                else:
                    st.markdown(
                        f"None: {escape(found.smallest.name)}, which needs least, needs {format_bytes(found.needs, request.unit)}."
                        if found.smallest
                        else "None has these target modules."
                    )
                size = f"up to {format_count(found.parameters)}" if found.parameters else "none"
                st.caption(f"A model shaped like Llama 3, of any size: {size}", help=ANY_SIZE_HELP)
                gpus.fewest_caption(run, request.device)


@lru_cache(maxsize=2048)
def largest_model(run: Scenario, budget: float) -> solver.LargestModel:
    return solver.largest_model(run, budget)


def over_one_step(request: Request, breakdown: MemoryBreakdown) -> None:
    """Memory by phase, the peak marked."""
    heading("Over one step")
    phases = summary.over_one_step(breakdown)
    figure = figures.over_one_step(phases, summary.room_for_tensors(breakdown, request.device), request.unit)
    st.plotly_chart(figure, key="over_one_step", config=figures.CONFIG, alt=summary.peak_sentence(breakdown, request.unit))


def every_number(request: Request, breakdown: MemoryBreakdown) -> None:
    """The table, and the same as a file."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Every number", anchor=False, width="content")
        terms = summary.terms(breakdown)
        st.download_button(
            "Download CSV",
            lambda: export.to_csv(export.with_scenario(terms, request.run, request.device)),
            export.file_name(request.run),
            "text/csv",
            on_click="ignore",
            key="csv",
            icon=":material/download:",
            help=CSV_HELP,
        )
    with st.container(key="every_number"):
        st.table(
            summary.shown_terms(terms, request.unit),
            hide_index=True,
            border="horizontal",
            alt="Every term at the peak with its bytes, share, formula and source",
        )
    st.caption(f"Together {format_bytes(float(breakdown.device), request.unit)}, what the card must provide.")


def published(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The two published answers beside the estimate, and why they differ here."""
    st.subheader("Beside the published rules", anchor=False)
    breakdown = breakdowns[request.run.method]
    st.markdown("\n".join(f"- {reason}" for reason in summary.why_different(breakdown)))
    left, right = st.columns(2, gap="large")
    with left:
        st.caption("The rule of thumb, for each method; decimal GB, as published")
        st.table(summary.shown_published(breakdowns), hide_index=True, border="horizontal", alt="Estimate and rule of thumb by method")
    with right:
        st.caption(f"The ledger of bytes per parameter: {METHODS[request.run.method]}, {request.run.precision}; decimal GB")
        st.table(summary.shown_ledger(breakdown), hide_index=True, border="horizontal", alt="Ledger of bytes per parameter beside the estimate")
