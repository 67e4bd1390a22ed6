"""How close the estimates are: every published run that was measured, beside what memcore says of it."""

from __future__ import annotations

import streamlit as st

from memcore import accuracy, export, figures, figures_accuracy, validation
from memcore.estimate import MemoryBreakdown
from memcore.markup import escape

from .controls import Request


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The whole view."""
    every = accuracy.runs()
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.subheader("Estimates beside measurements", anchor=False, width="content")
        method = st.segmented_control(
            "Runs shown",
            list(accuracy.CHOICES),
            default=accuracy.ALL,
            format_func=accuracy.CHOICES.get,
            key="accuracy_method",
            required=True,
            label_visibility="collapsed",
            width="content",
        )
    frame = accuracy.runs(method)
    if frame.empty:
        st.info("No measured run has this method. Choose another one.", icon=":material/search_off:")
        return
    with st.container(horizontal=True, key="accuracy_numbers"):
        for figure in accuracy.headline(frame):
            st.metric(figure.label, figure.value, help=figure.help, border=True, height="stretch")
    st.html(figures_accuracy.legend(frame, every))
    similar = validation.similar(request.run)
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**Every run: dashed where both agree, grey within 10 %**")
        st.plotly_chart(
            figures_accuracy.measured_and_estimated(frame, every, similar.ids, request.unit),
            key="measured_and_estimated",
            config=figures.CONFIG,
            alt=f"Estimate against measurement of {len(frame)} runs; the table below has every number",
        )
        st.caption(f"Ringed: runs like the one on the page. {escape(similar.sentence)}")
    with right:
        st.markdown("**Error by source and method; a bar marks the median**")
        st.plotly_chart(
            figures_accuracy.errors_by_source(frame, every),
            key="errors_by_source",
            config=figures.CONFIG,
            alt="Error of each run by source and method; the next table has medians and worst",
        )
    st.subheader("By source", anchor=False)
    with st.container(key="by_source"):
        st.table(accuracy.by_source(frame), hide_index=True, border="horizontal", alt="Errors by source, method and what was measured")
    _misses(frame)
    _every_run(request, frame)


def beside_the_verdict(request: Request) -> None:
    """How well runs like the one on the page were predicted."""
    st.caption(f":material/target: {escape(accuracy.sentence(request.run))}", help=escape(validation.similar(request.run).sentence))


def _misses(frame) -> None:
    st.subheader("Worst misses", anchor=False)
    table = accuracy.worst(frame)
    if not table:
        st.success("None: every run is within 1 % for live tensors and 5 % for the whole card.", icon=":material/check_circle:")
        return
    st.caption("Live tensors off by more than 1 %, the whole card by more than 5 %, or a driver's figure outside the band.")
    with st.container(key="worst_misses"):
        st.markdown("\n".join(f"- {line}" for line in table))


def _every_run(request: Request, frame) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Every run", anchor=False, width="content")
        st.download_button(
            "Download CSV",
            lambda: export.to_csv(frame),
            "memcore-measured-runs.csv",
            "text/csv",
            on_click="ignore",
            key="accuracy_csv",
            icon=":material/download:",
            help="These runs with all their settings, in bytes.",
        )
    table = accuracy.every_run(frame, request.unit)
    number = st.column_config.NumberColumn
    st.dataframe(
        table,
        hide_index=True,
        height=360,
        column_config={
            f"Measured ({request.unit})": number(format="%.2f"),
            f"Estimated ({request.unit})": number(format="%.2f"),
            "Error (%)": number(format="%.2f"),
            "Address": st.column_config.LinkColumn(display_text="source"),
        },
        alt="Every measured run with both numbers and the error",
    )
