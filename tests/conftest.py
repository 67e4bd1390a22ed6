"""The browser: whether its tests run, the served page, and what makes any of them fail.

MEMCORE_BROWSER=auto      (default) browser tests run where Chromium is found, else they are skipped and the header says so
MEMCORE_BROWSER=required  a missing Chromium is an error
MEMCORE_BROWSER=off       they are skipped
MEMCORE_CHROMIUM=PATH     the Chromium to use
"""

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

import pytest
from serving import CHROMIUM_ARGS, ROOT, SETTLE_MS, SETTLED, Server, chromium

MODE = os.environ.get("MEMCORE_BROWSER", "auto")


def browser_missing():
    """Why browser tests cannot run, or "" when they can."""
    if MODE == "off":
        return "MEMCORE_BROWSER=off"
    if not find_spec("playwright"):
        return 'the package playwright is missing: pip install -e ".[dev]"'
    return "" if chromium() else "no Chromium found: apt-get install chromium, or set MEMCORE_CHROMIUM"


def pytest_configure(config):
    if MODE not in ("auto", "required", "off"):
        raise pytest.UsageError(f"MEMCORE_BROWSER={MODE} must be auto, required or off")
    if MODE == "required" and browser_missing():
        raise pytest.UsageError(f"MEMCORE_BROWSER=required, but {browser_missing()}")


def pytest_report_header(config):
    why = browser_missing()
    return f"browser tests: {'NOT RUN, ' + why if why else 'run in ' + chromium()}"


def pytest_collection_modifyitems(items):
    if why := browser_missing():
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=f"browser tests not run: {why}"))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The dashboard, served on a free port for the whole session."""
    server = Server(str(ROOT / "dashboard.py"), tmp_path_factory.mktemp("server") / "log")
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def settle():
    """Call it with a page: returns once the script has run and every chart is drawn."""
    return lambda page: page.wait_for_function(SETTLED, timeout=SETTLE_MS)


@pytest.fixture
def open_page(server, browser, settle):
    """Call it to open the dashboard in a browser context of its own: `open_page("?method=lora", width=390, color_scheme="dark")`.

    The test fails if any of its pages logs an error, raises one, or asks another host for anything, or if the server
    prints a traceback meanwhile.
    """
    contexts, problems, log_before = [], [], len(server.log)

    def watch_host(url):
        address = urlsplit(url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != urlsplit(server.url).netloc:
            problems.append(f"request to another host: {url}")

    def open_page(query="", width=1440, height=900, color_scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=color_scheme, locale="en-US", accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on("request", lambda request: watch_host(request.url))
        page.on("websocket", lambda websocket: watch_host(websocket.url))
        page.goto(f"{server.url}/{query}")
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    if "Traceback" in (log := server.log[log_before:]):
        problems.append(f"server log:\n{log}")
    assert not problems, "\n".join(problems)


@pytest.fixture
def page(open_page):
    """The dashboard as it opens, on a laptop."""
    return open_page()


@pytest.fixture
def open_app():
    """The page without a browser; call it with the parameters of a link."""
    from streamlit.testing.v1 import AppTest

    def open_app(**parameters):
        app = AppTest.from_file(str(ROOT / "dashboard.py"), default_timeout=60)
        for key, value in parameters.items():
            app.query_params[key] = value
        return app.run()

    return open_app


@pytest.fixture
def quick(request, monkeypatch):
    """The page without the question which model would fit, which takes many estimates; a test that asks for `largest` keeps it."""
    if "largest" not in request.fixturenames:
        from memcore.solver import LargestModel

        none = LargestModel(model=None, needs=0.0, parameters=0.0)
        monkeypatch.setattr("memcore.pages.estimate.largest_model", lambda run, budget: none)


@pytest.fixture
def largest():
    """For the tests that look at which model would fit."""
