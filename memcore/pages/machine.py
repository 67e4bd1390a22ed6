"""This machine's own GPU or unified memory, offered as the device: only to someone who opened the page on the machine that serves it."""

from __future__ import annotations

import streamlit as st

from memcore import links, machine
from memcore.machine import Own
from memcore.markup import escape
from memcore.units import format_bytes

from . import fields

SECONDS_KNOWN = 60
"""How long the free memory is taken to stay the same."""


def local() -> bool:
    """Whether the browser runs on this very machine."""
    headers = st.context.headers
    return machine.is_local(headers.get("host") or st.context.url, st.context.ip_address, headers)


@st.cache_data(ttl=SECONDS_KNOWN, show_spinner=False)
def own() -> list[Own]:
    return machine.own_devices()


def offer() -> None:
    """A button for each kind of device here; nothing where there is none, and nothing on a hosted page."""
    if not local():
        return
    for found in machine.distinct(own()):
        free = "" if found.free_bytes is None else f", {format_bytes(found.free_bytes, fields.unit())} free"
        st.button(
            f"This machine: {escape(found.device.label)}{free}",
            key=f"own_{found.device.name}",
            type="tertiary",
            icon=":material/computer:",
            wrap=True,
            help=f"{format_bytes(found.total_bytes, fields.unit())} in all. What is not free now is in use by other programs: close them first.",
            on_click=_use,
            args=(found,),
        )
        if found.is_busy:
            st.button(
                f"Only what is free: {format_bytes(found.free_bytes, fields.unit())}",
                key=f"own_free_{found.device.name}",
                type="tertiary",
                wrap=True,
                on_click=_use_free,
                args=(found,),
            )


def _use(found: Own) -> None:
    st.session_state.update(links.of_device(found.device))


def _use_free(found: Own) -> None:
    st.session_state.update(links.of_device(machine.free_device(found)))
