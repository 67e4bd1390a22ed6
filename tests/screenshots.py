"""Pictures of the page, to look at: `python tests/screenshots.py [folder] [query]`; without arguments it renews the README's.

Widths 1440 and 390, light and dark; the first screen and the whole page.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from serving import CHROMIUM_ARGS, ROOT, SETTLE_MS, SETTLED, Server, chromium

PICTURE = ROOT / ".github" / "screenshot.png"
PICTURE_QUERY = "?device=NVIDIA+H100+80GB+HBM3"


def pictures(folder, query=""):
    for scheme in ("light", "dark"):
        for width, height in ((1440, 900), (390, 844)):
            yield folder / f"{scheme}-{width}.png", query, scheme, width, height, False
            yield folder / f"{scheme}-{width}-whole.png", query, scheme, width, height, True


def take(browser, url, path, query, scheme, width, height, whole):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-US")
    page = context.new_page()
    page.goto(f"{url}/{query}")
    page.wait_for_function(SETTLED, timeout=SETTLE_MS)
    if whole:  # the page scrolls inside its own container: make the window as tall as that
        tall = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": int(tall)})
        page.wait_for_timeout(500)
    page.screenshot(path=path)
    context.close()


def main(arguments):
    folder = Path(arguments[0]) if arguments else None
    wanted = list(pictures(folder, *arguments[1:2])) if folder else [(PICTURE, PICTURE_QUERY, "light", 1440, 900, False)]
    wanted[0][0].parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs, sync_playwright() as playwright:
        server = Server(str(ROOT / "dashboard.py"), Path(logs) / "log")
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_ARGS)
        try:
            server.wait_until_up()
            for shot in wanted:
                take(browser, server.url, *shot)
                print(shot[0])
        finally:
            browser.close()
            server.stop()
            if "Traceback" in server.log:
                print(server.log)


if __name__ == "__main__":
    main(sys.argv[1:])
