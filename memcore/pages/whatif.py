"""What if: the change that makes it fit, every change with its price, what to watch out for, how far the device goes, and time."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pandas as pd
import streamlit as st

from memcore import cautions, export, figures, figures_whatif, links, whatif
from memcore.advice import Remedy
from memcore.catalog import Device
from memcore.estimate import MemoryBreakdown
from memcore.markup import escape
from memcore.scenario import Scenario
from memcore.summary import verdict
from memcore.units import format_bytes, parse_count

from . import fields
from .controls import Request, set_controls

WARNING = """<details class="warning"><summary><b aria-hidden="true">⚠</b> {text}</summary>
<a href="{source}" target="_blank" rel="noopener">{source}</a></details>"""
STYLE = """<style>
details.warning { font-size: 0.875rem; line-height: 1.6 }
details.warning summary { cursor: pointer; list-style: none; white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
details.warning[open] summary { white-space: normal }
details.warning b { color: #C77700; margin-right: 0.25em }
details.warning a { margin-left: 1.5em }
.st-key-frontier_title { min-height: 2.5rem; justify-content: center }
@media (max-width: 640px) { details.warning summary { white-space: normal } }
</style>"""
OPEN_WARNINGS = 3
"""More than these are folded."""


def make_it_fit(request: Request, breakdown: MemoryBreakdown) -> None:
    """Where it does not surely fit: the cheapest plan, and one button that applies it."""
    st.html(STYLE)
    run, device, unit = request.run, request.device, request.unit
    v = verdict(breakdown, device)
    if v.word == "fits":
        return
    plan = whatif.plan_to_fit(run, device)
    with st.container(horizontal=True, border=True, vertical_alignment="center", horizontal_alignment="distribute", key="plan", gap="small"):
        if plan is None:
            said, larger = ("No three changes together make it surely fit.", None) if v.word == "tight" else whatif.nothing_helps(run, device, unit)
            st.markdown(escape(said), width="stretch")
            if larger:
                st.button("Use that device", key="apply_plan", on_click=set_controls, kwargs={"device": larger.name})
        else:
            st.markdown(f":material/build: {whatif.plan_sentence(run, plan, device, unit)}", width="stretch")
            st.button("Apply", key="apply_plan", type="primary", icon=":material/done:", on_click=apply, args=(plan.run, run))


def apply(changed: Scenario, run: Scenario) -> None:
    """Put a changed run into the controls."""
    values = links.of_run(changed)
    if changed.model != run.model:
        values["model"] = changed.model.name
    set_controls(**values)


@lru_cache(maxsize=1024)
def known_cautions(run: Scenario, device: Device) -> tuple[cautions.Caution, ...]:
    return tuple(cautions.cautions(run, device))


def warnings(request: Request) -> None:
    """What people trip over and what applies here: a line each, cut to the width; opened, the whole sentence with its source."""
    found = known_cautions(request.run, request.device)
    if not found:
        return
    lines = "".join(WARNING.format(text=html.escape(caution.text), source=html.escape(caution.source)) for caution in found)
    folded = len(found) > OPEN_WARNINGS
    with st.expander(f"{len(found)} warnings from experience", icon=":material/warning:") if folded else st.container(key="warnings"):
        st.html(lines)


def what_to_change(request: Request, breakdown: MemoryBreakdown) -> None:
    """Every change that could be made, what it saves, what it costs, and a button for it."""
    word = verdict(breakdown, request.device).word
    st.subheader("What to change", anchor=False)
    found = whatif.remedies(request.run, request.device)
    helping = [remedy for remedy in found if remedy.helps]
    others = [remedy for remedy in found if not remedy.helps]
    if word == "fits":
        box: Any = st.expander(f"It fits. {len(helping)} changes would save more", key="more_savings", on_change="rerun")
        if not box.open:
            return
    else:
        box = st.container()
    with box:
        for remedy in helping:
            _remedy(remedy, request)
        if others:
            with st.expander(f"{len(others)} changes that save nothing here, and why"):
                for remedy in others:
                    st.markdown(f"**{escape(remedy.label)}.** {escape(remedy.reason)}")
        _csv(whatif.remedies_table(found), request, "remedies")


def _remedy(remedy: Remedy, request: Request) -> None:
    with st.container(horizontal=True, wrap=False, vertical_alignment="center", key=f"remedy_{remedy.key}"):
        mark = ":material/check_circle:" if remedy.fits else ":material/trending_down:"
        effect = whatif.effect(remedy, request.device, request.unit)
        st.markdown(
            f"{mark} **{escape(remedy.label)}** · {effect}  \n:gray[{escape(whatif.cost(remedy))}]",
            width="stretch",
            help=f"Time: {escape(remedy.time_source)}. Remedy: {remedy.source}",
        )
        st.button("Apply", key=f"apply_{remedy.key}", on_click=apply, args=(remedy.run, request.run))


def how_far(request: Request, breakdown: MemoryBreakdown) -> None:
    """The frontier of length and batch, and memory against one thing at a time."""
    run, device, unit = request.run, request.device, request.unit
    st.subheader("How far can I go", anchor=False)
    said = furthest(run, device.usable_bytes)
    st.markdown(said)
    left, right = st.columns(2, gap="large")
    needs = float(breakdown.device)
    with left:
        with st.container(key="frontier_title"):
            st.markdown("**Largest micro batch at each length**")
        table = whatif.frontier(request.by_method, device.usable_bytes)
        figure = figures_whatif.how_far(table, (run.sequence_length, run.micro_batch_size), needs <= device.usable_bytes, run.method)
        st.plotly_chart(figure, key="how_far", config=figures.CONFIG, alt=said)
        _as_table(lambda: whatif.shown_frontier(table, run.sequence_length), table, request, "frontier")
    with right:
        with st.container(horizontal=True, vertical_alignment="center", key="curves_title"):
            st.markdown("**Memory against**", width="content")
            axis = st.segmented_control(
                "Memory against",
                list(whatif.AXES),
                default="sequence_length",
                key="axis",
                required=True,
                persist_state="session",
                format_func=whatif.SHORT_AXES.get,
                label_visibility="collapsed",
            )
        grown = whatif.curves(request.by_method, axis)
        own = whatif.own_value(run, axis)
        window = whatif.window(grown, needs, device.usable_bytes)
        figure = figures_whatif.curves(grown, axis, (own, needs), device.usable_bytes, run.method, window, unit)
        st.plotly_chart(
            figure,
            key="curves",
            config=figures.CONFIG,
            alt=f"Memory against {whatif.AXES[axis].lower()}; this run needs {format_bytes(needs, unit)}",
        )
        _as_table(lambda: whatif.shown_curves(grown, axis, own, unit), grown, request, f"memory-by-{axis}")


@lru_cache(maxsize=1024)
def furthest(run: Scenario, budget: float) -> str:
    return whatif.furthest(run, budget)


def _as_table(shown: Callable[[], pd.DataFrame], table: pd.DataFrame, request: Request, what: str) -> None:
    """The numbers of a chart, when asked for."""
    with st.expander("As a table", key=f"table_{what}", on_change="rerun") as box:
        if box.open:
            st.table(shown(), hide_index=True, border="horizontal")
            _csv(table, request, what)


def _csv(table: pd.DataFrame, request: Request, what: str) -> None:
    st.download_button(
        "Save as CSV",
        lambda: export.to_csv(export.with_scenario(table, request.run, request.device)),
        export.file_name(request.run).removesuffix(".csv") + f"-{what}.csv",
        "text/csv",
        on_click="ignore",
        key=f"csv_{what}",
        icon=":material/download:",
    )


def time_and_cost(request: Request) -> None:
    """Hours and cost of a token budget, on request."""
    with st.expander("Time and cost: an estimate", icon=":material/schedule:", key="time"):
        with st.container(horizontal=True, vertical_alignment="bottom"):
            text = st.text_input(
                "Tokens to train on",
                fields.default("train_tokens"),
                max_chars=20,
                key="train_tokens",
                bind=fields.BIND,
                help="Such as 10M. Samples × their length × epochs, padding included.",
            )
            percent = st.number_input(
                "Speed reached (%)",
                1,
                100,
                fields.default("utilisation"),
                5,
                key="utilisation",
                bind=fields.BIND,
                help="Share of the data sheet's FLOPs and bandwidth that the run reaches.",
            )
            price = st.number_input(
                "Price of a GPU hour",
                0.0,
                links.LARGEST_PRICE,
                fields.default("gpu_price"),
                0.1,
                key="gpu_price",
                bind=fields.BIND,
                help="In any currency; 0 leaves the cost out.",
            )
        try:
            tokens = parse_count(text)
        except ValueError as error:
            st.error(escape(str(error)), icon=":material/error:")
            return
        if not tokens:
            st.error("Tokens in all (0): at least one is needed.", icon=":material/error:")
            return
        table = whatif.durations(request.by_method, tokens, request.device, percent / 100, price)
        st.table(whatif.shown_durations(table), hide_index=True, border="horizontal", alt="Estimated hours and cost by method")
        st.caption(escape(whatif.speed_note(request.device, percent / 100)))
