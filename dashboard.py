"""The page: widgets → Scenario → memcore → figures. Run it with `streamlit run dashboard.py`."""

import streamlit as st

from memcore.pages import controls, estimate

VIEWS = {"Estimate": estimate.show}

st.set_page_config("memcore: memory of a fine-tune", layout="wide", initial_sidebar_state="auto")
controls.open_link()
request = controls.sidebar()
controls.notices()
VIEWS["Estimate"](request)
