"""Runs side by side: up to four that were pinned, and the one on the page."""

from __future__ import annotations

import streamlit as st

from memcore import export, figures, figures_whatif, pins
from memcore.estimate import MemoryBreakdown
from memcore.links import METHODS
from memcore.markup import escape, escaped
from memcore.pins import Pinned
from memcore.units import format_bytes

from .controls import Request, set_controls

NOW = "On the page"


def pinned() -> tuple[str, ...]:
    return tuple(st.session_state.get("pin", ()))


def keep(texts: tuple[str, ...]) -> None:
    """As the pins of this page, and in its address."""
    st.session_state["pin"] = texts
    if texts:
        st.query_params["pin"] = list(texts)
    else:
        st.query_params.pop("pin", None)


def pin_button(request: Request) -> None:
    """Pins the run on the page."""
    why = ""
    if len(pinned()) >= pins.MOST:
        why = f"{pins.MOST} runs are pinned, which is the most. Remove one in Compare."
    elif not pins.can_pin(request.values):
        why = "A model that is not in the catalog cannot be part of a link, so its run cannot be pinned."
    elif request.problem:
        why = "These choices do not go together."
    elif not pins.readable(request.values):
        why = "The custom model or device cannot be used as it is."
    st.button(
        f"Pin ({len(pinned())})" if pinned() else "Pin",
        icon=":material/keep:",
        key="pin_this",
        disabled=bool(why),
        help=why or "Keep this run to compare it with others, in the view Compare. It becomes part of the link.",
        on_click=_pin,
        args=([request.values],),
    )


def _pin(every: list[dict]) -> None:
    texts = list(pinned())
    for values in every[: pins.MOST - len(texts)]:
        run = pins.read(pins.write("", values)).run
        taken = [text.partition(pins.BETWEEN)[0] for text in texts]
        texts.append(pins.write(pins.suggest_name(run, taken), values))
    keep(tuple(texts))
    st.toast("Pinned: see Compare.", icon=":material/keep:")


def show(request: Request, breakdowns: dict[str, MemoryBreakdown]) -> None:
    """The whole view."""
    found, problems = pins.read_all(pinned())
    for problem in problems:
        st.warning(escape(problem), icon=":material/link_off:")
    if not found:
        _empty(request)
        _pins()
        return
    now = Pinned(name=NOW, run=request.run, device=request.device, values=request.values)
    every = [now, *found]
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.subheader("Side by side", anchor=False, width="content")
        st.html(figures.legend(), width="content")
    alt = "; ".join(f"{name}: {format_bytes(pin.breakdown.device, request.unit)}" for name, pin in zip(pins.labels(every), every, strict=True))
    st.plotly_chart(figures_whatif.side_by_side(pins.stacks(every), request.unit), key="side_by_side", config=figures.CONFIG, alt=alt)
    _pins()
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("What differs", anchor=False, width="content")
        st.download_button(
            "Save all as CSV",
            lambda: export.to_csv(pins.every_term(every)),
            "memcore-comparison.csv",
            "text/csv",
            on_click="ignore",
            key="csv_comparison",
            icon=":material/download:",
            help="Every term of every run, with its scenario and device.",
        )
    with st.container(key="differences"):
        st.table(escaped(pins.differences(every, request.unit)), hide_index=True, border="horizontal", alt="What differs, and what each needs")


def _empty(request: Request) -> None:
    st.subheader("Nothing to compare yet", anchor=False)
    st.markdown(
        "**Pin** keeps the run on the page. Change something, pin again, and the runs stand side by side here: "
        "up to four, beside the one on the page. Pins are part of the link."
    )
    if pins.can_pin(request.values) and not request.problem and pins.readable(request.values):
        st.button(
            "Pin this run with each method",
            icon=":material/keep:",
            key="pin_methods",
            on_click=_pin,
            args=([request.values | {"method": method} for method in METHODS],),
        )


def _pins() -> None:
    """A row for each pin: its name, which can be changed, and buttons to open and remove it."""
    for i, text in enumerate(pinned()):
        key = f"pin_name_{i}"
        st.session_state[key] = text.partition(pins.BETWEEN)[0]
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", key=f"pin_row_{i}"):
            st.text_input(f"Name of pin {i + 1}", key=key, max_chars=pins.LONGEST_NAME, label_visibility="collapsed", on_change=_rename, args=(i, key))
            st.button("Open", key=f"pin_open_{i}", help="Put this run into the controls.", on_click=_open, args=(text,))
            st.button("", key=f"pin_remove_{i}", icon=":material/close:", help=f"Remove pin {i + 1}", on_click=_remove, args=(i,))


def _rename(i: int, key: str) -> None:
    texts = list(pinned())
    texts[i] = pins.rename(texts[i], st.session_state[key])
    keep(tuple(texts))


def _remove(i: int) -> None:
    keep(tuple(text for j, text in enumerate(pinned()) if j != i))


def _open(text: str) -> None:
    try:
        values = pins.read(text).values
    except ValueError:
        return  # the view says why
    set_controls(**values)
