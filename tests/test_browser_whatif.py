"""From a verdict to a decision, in a real browser: applying changes, sharing the result, comparing, choosing a device."""

import csv
import io
import os
import stat
from urllib.parse import urlsplit

import pytest
from serving import ROOT, SETTLED, Server
from test_browser import CUT_OFF, RUN, needs, wait_for_needs

import memcore
from memcore import catalog, links, whatif

pytestmark = pytest.mark.browser

CARD = catalog.devices()[links.DEFAULT_DEVICE]


def verdict(page):
    return page.locator("[data-testid=stAlert]").first.inner_text()


def test_two_clicks_lead_from_does_not_fit_to_a_fitting_scenario_to_share(page, open_page, settle):
    assert "Does not fit." in verdict(page)
    page.get_by_role("button", name="Apply").first.click()
    wait_for_needs(page, whatif.plan_to_fit(RUN, CARD).run)
    settle(page)
    assert "Fits." in verdict(page)
    page.get_by_role("button", name="Share").click()
    link = page.locator("[data-testid=stCode]").inner_text().strip()
    for address in (link, page.url):
        other = open_page(f"?{urlsplit(address).query}")
        assert "Fits." in verdict(other) and needs(other) == needs(page)


def test_the_plan_is_applied_by_keyboard_alone(page, settle):
    page.locator(".st-key-numbers").click()  # the keyboard goes on from here
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText").endswith("Apply"):
            break
    page.keyboard.press("Enter")
    wait_for_needs(page, whatif.plan_to_fit(RUN, CARD).run)


def test_a_change_of_the_list_is_applied_and_in_the_address(page, settle):
    shorter = next(r for r in whatif.remedies(RUN, CARD) if r.key == "shorter_sequences")
    page.locator(".st-key-apply_shorter_sequences button").click()
    wait_for_needs(page, shorter.run)
    settle(page)
    assert f"sequence_length={links.controls()['sequence_length'].write(shorter.run.sequence_length)}" in page.url


def test_a_warning_opens_to_its_source(page):
    line = page.locator("details.warning").first
    assert not line.locator("a").is_visible()
    line.locator("summary").press("Enter")
    assert line.locator("a").is_visible()


def test_what_fits_nowhere_says_where_it_does(open_page):
    page = open_page("?model=mistralai%2FMixtral-8x7B-v0.1&device=NVIDIA+GeForce+RTX+2060+6GB")
    said, larger = whatif.nothing_helps(memcore.Scenario(model="mistralai/Mixtral-8x7B-v0.1"), catalog.devices()["NVIDIA GeForce RTX 2060 6GB"])
    assert larger.label in page.locator(".st-key-plan").inner_text()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize(
    "query",
    [
        "?device=NVIDIA+H200",
        "?model=mistralai%2FMixtral-8x7B-v0.1&device=NVIDIA+GeForce+RTX+2060+6GB",
        "?view=Devices&device=NVIDIA+H200",
        "?view=Compare",
        "?view=Compare&pin=Llama-3.1-8B+Full+4+%C3%97+4K%7Cmethod%3Dfull&pin=W%7Cmethod%3Dlora",
    ],
)
def test_nothing_is_cut_off_in_other_states_and_views(open_page, width, query):
    wide, sticking_out = open_page(query, width=width).evaluate(CUT_OFF)
    assert wide <= 0 and sticking_out == []


def test_runs_are_pinned_compared_and_shared(page, open_page, settle):
    page.get_by_role("button", name="Pin").click()
    page.get_by_role("button", name="Pin (1)").wait_for()
    page.get_by_role("radio", name="Full", exact=True).click()
    wait_for_needs(page, RUN.replace(method="full"))
    page.get_by_role("radio", name="Compare").click()
    page.locator(".st-key-side_by_side").wait_for()
    settle(page)
    name = page.get_by_role("textbox", name="Name of pin 1")
    name.fill("before & after")
    name.press("Enter")
    page.get_by_role("columnheader", name="before & after").wait_for()
    settle(page)
    page.get_by_role("button", name="Share").click()
    link = page.locator("[data-testid=stCode]").inner_text().strip()
    for address in (link, page.url):
        other = open_page(f"?{urlsplit(address).query}")
        other.get_by_role("columnheader", name="before & after").wait_for()
        assert other.locator(".st-key-differences").inner_text() == page.locator(".st-key-differences").inner_text()
        with other.expect_download() as download:
            other.get_by_role("button", name="Save all as CSV").click()
        rows = list(csv.DictReader(io.StringIO(download.value.path().read_bytes().decode())))
        assert {(row["scenario"], row["method"]) for row in rows} == {("On the page", "full"), ("before & after", "qlora")}


def test_pins_stay_in_the_address_while_controls_move(page, settle):
    page.get_by_role("button", name="Pin").click()
    page.get_by_role("button", name="Pin (1)").wait_for()
    page.locator(".st-key-micro_batch_size input[type=range]").press("ArrowLeft")
    wait_for_needs(page, RUN.replace(micro_batch_size=3))
    settle(page)
    assert "pin=" in page.url and "micro_batch_size=3" in page.url
    page.reload()
    page.get_by_role("button", name="Pin (1)").wait_for()


def test_a_device_is_chosen_from_the_matrix(open_page, settle):
    page = open_page("?view=Devices&device=NVIDIA+H200")
    page.locator(".st-key-use_device_lora button").first.click()
    page.get_by_role("radio", name="LoRA", exact=True).and_(page.locator("[aria-checked=true]")).wait_for()
    settle(page)
    page.get_by_role("radio", name="Largest model").click()
    page.locator(".st-key-largest_map .js-plotly-plot").wait_for()
    settle(page)
    assert page.evaluate("document.querySelector('.st-key-largest_map .js-plotly-plot')._fullData[0].z.length") > 10


REACHABLE = """() => [...document.querySelectorAll('[data-testid=stMain] :is(button, input, summary)')]
    .filter(e => e.checkVisibility() && !e.disabled && !e.closest('[role=radiogroup], [role=toolbar]'))"""
"""Of a group of choices the keyboard reaches one, and the others from there by arrows."""


@pytest.mark.parametrize("view", ["Estimate", "Compare&pin=A%7Cmethod%3Dfull", "Devices"])
def test_everything_that_can_be_pressed_is_reached_by_keyboard(open_page, view):
    page = open_page(f"?view={view}")
    page.evaluate(f"window.reachable = ({REACHABLE})()")
    page.locator("[data-testid=stSidebar] summary").last.focus()
    reached = set()
    for _ in range(page.evaluate("reachable.length") + 40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("reachable.indexOf(document.activeElement)"))
    missed = [page.evaluate("i => reachable[i].outerHTML.slice(0, 200)", i) for i in range(page.evaluate("reachable.length")) if i not in reached]
    assert not missed and len(reached) > 3


@pytest.fixture
def with_gpu(tmp_path, monkeypatch):
    """The dashboard on a machine whose driver tool reports an H100, mostly free."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 81000'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    server = Server(str(ROOT / "dashboard.py"), tmp_path / "log")
    server.wait_until_up()
    yield server
    server.stop()
    assert "Traceback" not in server.log


def test_this_machines_gpu_is_offered_on_this_machine_and_not_through_a_proxy(with_gpu, browser):
    near = browser.new_page()
    near.goto(with_gpu.url)
    near.wait_for_function(SETTLED)
    near.get_by_role("button", name="This machine: H100 SXM 80 GB").click()
    near.wait_for_url("**/?device=H100*")
    proxied = browser.new_context(extra_http_headers={"X-Forwarded-For": "203.0.113.7"}).new_page()
    proxied.goto(with_gpu.url)
    proxied.wait_for_function(SETTLED)
    assert proxied.get_by_text("This machine").count() == 0
    for page in (near, proxied):
        page.close()
