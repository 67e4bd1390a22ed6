"""Several GPUs: what they divide, stage by stage, the host's memory as a second verdict, and what other numbers of them would do."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd
import streamlit as st

from memcore import figures, figures_several, several, summary
from memcore.catalog import Device
from memcore.estimate import MemoryBreakdown
from memcore.markup import escape
from memcore.scenario import Scenario

from .controls import Request


def show(request: Request, breakdown: MemoryBreakdown) -> None:
    """The section of the Estimate view; nothing where one GPU does everything from its own memory."""
    run = request.run
    found = several.host(breakdown)
    if run.gpus == 1 and found is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute", gap="medium"):
        st.subheader("Several GPUs" if run.gpus > 1 else "The host's memory", anchor=False, width="content")
        st.html(figures.legend(), width="content")
    if run.gpus > 1:
        said = [f"{several.together(run)}.", several.twice_as_many(run, request.unit), several.sharded_instead(run, request.unit)]
        st.markdown("\n".join(f"- {escape(sentence)}" for sentence in said if sentence))
    if found is not None:
        (st.info if found.machine else st.error)(escape(several.host_sentence(found, request.unit)), icon=":material/memory:")
    if run.gpus > 1:
        _stages(request)
        _parts(request, breakdown)
        st.markdown("**Fewest of this device for each method**, with everything divided among them and the micro batch as it is")
        with st.container(key="fewest_gpus"):
            st.table(
                _fewest(tuple(request.by_method.items()), request.device, request.unit),
                hide_index=True,
                border="horizontal",
                alt="Fewest GPUs for each method",
            )


def _stages(request: Request) -> None:
    """A bar for one GPU of each pipeline stage, where there are several."""
    if request.run.pipeline_parallel_size == 1:
        return
    found = several.by_stage(request.run)
    drawn = several.shown(found)
    fewer = f" ({len(drawn)} of {len(found)}; the table has all)" if len(drawn) < len(found) else ""
    st.markdown(f"**One GPU of each pipeline stage**{fewer}; the others of a stage hold the same")
    st.plotly_chart(
        figures_several.by_stage(summary.stacks(drawn), request.device.usable_bytes, request.unit),
        key="stages",
        config=figures.CONFIG,
        alt="What one GPU of each pipeline stage needs; the table below has the numbers",
    )
    with st.expander("As a table", key="stages_table"):
        st.table(several.stage_table(found, request.unit), hide_index=True, border="horizontal", alt="Every pipeline stage")


def _parts(request: Request, breakdown: MemoryBreakdown) -> None:
    """What is divided, what is whole on each, what its own tokens need."""
    st.markdown("**What more GPUs would and would not shrink**, on the busiest one")
    st.plotly_chart(
        figures_several.divided_and_whole(several.by_kind(breakdown), request.unit),
        key="divided_and_whole",
        config=figures.CONFIG,
        alt="Live tensors at the peak: divided among the GPUs, whole on each, and for its own tokens",
    )
    with st.expander("As a table", key="divided_table"):
        st.table(several.kind_table(breakdown, request.unit), hide_index=True, border="horizontal", alt="Divided and whole parts by group")


@lru_cache(maxsize=512)
def _fewest(by_method: tuple[tuple[str, Scenario], ...], device: Device, unit: str) -> pd.DataFrame:
    return several.fewest(dict(by_method), device, unit)


def fewest_caption(run: Scenario, device: Device) -> None:
    """How many of this device the run takes, where one is not enough."""
    if not device.unified and (sentence := _fewest_sentence(run, device)):
        st.caption(f":material/memory: {sentence}")


@lru_cache(maxsize=2048)
def _fewest_sentence(run: Scenario, device: Device) -> str:
    return several.fewest_sentence(run, device)
