"""Devices against methods: what the run on the page fits on, and the largest model each device can train with its settings."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from memcore import catalog, export, figures, figures_whatif, matrix
from memcore.catalog import Device
from memcore.estimate import MemoryBreakdown
from memcore.links import METHODS
from memcore.markup import escape
from memcore.units import format_bytes

from .controls import Request, set_controls

FIT, LARGEST = "What fits", "Largest model"
CLASSES = {
    "consumer": "Consumer",
    "laptop": "Laptop",
    "workstation": "Workstation",
    "datacenter": "Data center",
    "cloud": "Free cloud",
    "apple": "Apple",
    "embedded": "Embedded",
    "slice": "Slice",
}


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The whole view."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="devices_choices"):
        kind = request.device.kind
        chosen = st.pills(
            "Devices",
            list(CLASSES),
            selection_mode="multi",
            default=[kind if kind in CLASSES else "consumer"],
            format_func=CLASSES.get,
            key="device_classes",
            persist_state="session",
        )
        question = st.segmented_control("Show", [FIT, LARGEST], default=FIT, required=True, key="devices_question", persist_state="session")
    devices = [device for device in catalog.devices().values() if device.kind in chosen]
    if not devices:
        st.info("Choose a class of devices above.", icon=":material/filter_alt:")
        return
    if question == FIT:
        _fit(request, devices)
    else:
        _largest(request, devices)


def _fit(request: Request, devices: list[Device]) -> None:
    table = matrix.fit(request.by_method, devices)
    with st.container(horizontal=True, key="devices_numbers"):
        for method in METHODS:
            _card(request, table, method)
    st.caption(
        f"✓ fits, even at the high end of the band · ! tight: the typical value does · ✗ does not fit. The number: {request.unit} left, or lacking."
    )
    alt = "; ".join(matrix.sentence(table, request.run, method) for method in METHODS)
    st.plotly_chart(figures_whatif.fit_map(table, request.unit), key="fit_map", config=figures.CONFIG, alt=f"{alt}; the table below has every number")
    _table(matrix.shown_fit(table, request.unit), table, request, "devices", "spare")


def _card(request: Request, table: pd.DataFrame, method: str) -> None:
    fits, tight, of, least = matrix.summary(table, method)
    elsewhere = least or matrix.smallest(request.by_method[method])
    needs = float(table.loc[table["method"] == method, "needs_bytes"].iloc[0])
    with st.container(border=True, height="stretch", width="stretch", gap="xsmall"):
        st.markdown(f"**{METHODS[method]}** needs {format_bytes(needs, request.unit)}: fits on {fits} of {of}{f', tight on {tight}' if tight else ''}")
        if elsewhere:
            label = escape(catalog.devices()[elsewhere].label)
            st.button(
                f"{label} is the smallest" if least else f"{label} would do",
                key=f"use_device_{method}",
                type="tertiary",
                icon=":material/arrow_forward:",
                wrap=True,
                help="Click to use it.",
                on_click=set_controls,
                kwargs={"device": elsewhere, "method": method},
            )
        else:
            st.caption("No device of the catalog is large enough.")


def _largest(request: Request, devices: list[Device]) -> None:
    with st.spinner("Looking for the largest model of each…"):
        table = matrix.largest(request.by_method, devices)
    st.caption("The largest model of the catalog that fits with the settings on the page, in parameters. Point at a cell for its name.")
    st.plotly_chart(
        figures_whatif.largest_map(table, request.unit),
        key="largest_map",
        config=figures.CONFIG,
        alt="The largest model of each device and method; the table below names them",
    )
    _table(matrix.shown_largest(table, request.unit), table, request, "largest-models", "billions")


def _table(shown: pd.DataFrame, table: pd.DataFrame, request: Request, what: str, number: str) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("As a table", anchor=False, width="content")
        st.download_button(
            "Save as CSV",
            lambda: export.to_csv(export.with_scenario(table.rename(columns=matrix.IN_A_FILE), request.run, request.device)),
            f"memcore-{what}.csv",
            "text/csv",
            on_click="ignore",
            key=f"csv_{what}",
            icon=":material/download:",
        )
    columns = {column: st.column_config.TextColumn(width="medium") for column in METHODS.values()}
    columns |= {column: st.column_config.NumberColumn(format="%.1f") for column in shown.columns if number in column or "Gives" in column}
    with st.container(key="devices_table"):
        st.dataframe(shown, hide_index=True, column_config=columns, alt="Every device with what it leaves, by method; columns can be sorted")
