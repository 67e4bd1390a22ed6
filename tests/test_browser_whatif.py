"""From a verdict to a decision, in a real browser: applying changes, sharing the result, comparing, choosing a device."""

from urllib.parse import urlsplit

import pytest
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
    said, larger = whatif.nothing_helps(
        memcore.Scenario(model="mistralai/Mixtral-8x7B-v0.1"), catalog.devices()["NVIDIA GeForce RTX 2060 6GB"]
    )
    assert larger.label in page.locator(".st-key-plan").inner_text()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("query", ["?device=NVIDIA+H200", "?model=mistralai%2FMixtral-8x7B-v0.1&device=NVIDIA+GeForce+RTX+2060+6GB"])
def test_nothing_is_cut_off_where_it_fits_or_never_does(open_page, width, query):
    wide, sticking_out = open_page(query, width=width).evaluate(CUT_OFF)
    assert wide <= 0 and sticking_out == []
