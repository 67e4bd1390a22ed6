"""The page: widgets → Scenario → memcore → figures. Run it with `streamlit run dashboard.py`."""

import streamlit as st

from memcore.pages import accuracy, compare, controls, devices, estimate, files, method

VIEWS = {
    "Estimate": estimate.show,
    "Compare": compare.show,
    "Devices": devices.show,
    "Trainer files": files.show,
    "Accuracy": accuracy.show,
    "Method": method.show,
}

st.set_page_config("memcore: will this fine-tune fit?", page_icon="🧮", layout="wide", initial_sidebar_state=330)
controls.open_link()
bar = controls.top_bar()
request = controls.sidebar()
with bar:
    compare.pin_button(request)
    controls.share(request)
controls.notices(request)
view = controls.view(VIEWS)
request, breakdowns = controls.answer(request)
VIEWS[view](request, breakdowns)
