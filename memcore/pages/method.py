"""How the numbers come about, and what a newcomer needs to know: the ledger's own rows, the phases of a step, facts and their sources."""

from __future__ import annotations

import streamlit as st

from memcore import figures, method, summary
from memcore.estimate import MemoryBreakdown
from memcore.markup import escape

from .controls import Request

TABS = ("The formulas", "One step", "Good to know", "Out of memory?", "Words and sources")


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The whole view."""
    breakdown = breakdowns[request.run.method]
    st.subheader("How the numbers come about", anchor=False)
    formulas, step, facts, memory, words = st.tabs(TABS, key="method_part")
    with formulas:
        _formulas(request, breakdown, breakdowns)
    with step:
        _one_step(request, breakdown)
    with facts:
        _facts(request, breakdowns)
    with memory:
        _out_of_memory(request)
    with words:
        _words()


def _formulas(request: Request, breakdown: MemoryBreakdown, breakdowns: dict[str, MemoryBreakdown]) -> None:
    st.markdown(
        "A decoder layer is a list of operations. Each knows the parameters it holds and the tensors autograd keeps for its backward pass; "
        "from that list follow weights, adapters, activations and working tensors, to the byte. These are the rows that were "
        "just computed, each where it is largest; the peak is the largest *phase*, not the sum of them."
    )
    with st.container(key="method_terms"):
        st.table(
            method.shown_terms(breakdown, request.unit), hide_index=True, border="horizontal", alt="Every term with its formula and numbers"
        )
    st.markdown("**Beside the published rule of thumb**")
    st.markdown("\n".join(f"- {escape(reason)}" for reason in summary.why_different(breakdown)))
    with st.container(key="method_rules"):
        st.table(summary.shown_published(breakdowns), hide_index=True, border="horizontal", alt="Estimate and rule of thumb by method")
    st.caption("Decimal GB, as the rule is published: LoRA 2P + 3, full 12P + 4 (16P + 4 with a float32 master copy), QLoRA 0.72P + 3.")


def _one_step(request: Request, breakdown: MemoryBreakdown) -> None:
    st.markdown("A step goes forward, computes the loss, goes back, and updates the weights. What is alive changes on the way:")
    st.html(figures.legend())
    st.plotly_chart(
        figures.over_one_step(summary.over_one_step(breakdown), summary.room_for_tensors(breakdown, request.device), request.unit),
        key="method_step",
        config=figures.CONFIG,
        alt=summary.peak_sentence(breakdown, request.unit),
    )
    with st.container(key="method_phases"):
        st.table(method.phases(breakdown, request.unit), hide_index=True, border="horizontal", alt="The phases of a step")


def _facts(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    st.markdown("**Who has gradients and optimizer states**, in the run on this page:")
    with st.container(key="who_trains"):
        st.table(method.who_trains(breakdowns, request.unit), hide_index=True, border="horizontal", alt="Trained parameters by method")
    for fact in method.fact_list(request.run):
        st.markdown(f"**{fact.title}.** {fact.text} :gray[{', '.join(fact.sources)}]")


def _out_of_memory(request: Request) -> None:
    st.markdown("**In this order**, cheapest first. What is left to try in the run on this page is marked.")
    lines = [
        f"{i}. **{t.title}**{' :blue-badge[open here]' if t.here else ''}  \n   {t.text}"
        for i, t in enumerate(method.what_to_try(request.run), 1)
    ]
    st.markdown("\n".join(lines))
    st.markdown("**Five common mistakes**")
    for mistake in method.mistakes(request.run, request.device):
        st.markdown(f"**{mistake.title}.** {mistake.text}")
        if mistake.here:
            st.warning(escape(mistake.here), icon=":material/warning:")


def _words() -> None:
    with st.container(key="words"):
        st.table(method.words(), hide_index=True, border="horizontal", alt="Glossary")
    st.markdown("**Sources**")
    st.markdown("\n".join(f"- {source}" for source in method.sources()))
