"""The served page and the Chromium that looks at it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_ARGS = [
    "--no-sandbox",  # root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # no calls home: what leaves this machine must be the page's own doing
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
]
START_SECONDS = 60
SETTLE_MS = 30_000

SETTLED = """() => {
    const app = document.querySelector('[data-testid=stApp]');
    const charts = [...document.querySelectorAll('[data-testid=stPlotlyChart]')].map(c => c.querySelector('.js-plotly-plot'));
    return app?.dataset.testScriptState === 'notRunning'
        && document.querySelector('[data-testid=stMain] [data-testid=stElementContainer]')
        && !document.querySelector('[data-testid=stSkeleton]')  // a widget or chart whose code is still loading
        && charts.every(c => c?.data && c.querySelector('.main-svg'));
}"""


def chromium():
    """Path of the Chromium to use, or None."""
    names = (os.environ.get("MEMCORE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Server:
    """A running dashboard: its address, and its log."""

    def __init__(self, script, log_path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        command = [sys.executable, "-m", "streamlit", "run", script, "--server.address=127.0.0.1", f"--server.port={port}"]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--server.headless=true"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_until_up(self):
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=1) as answer:
                    if answer.read() == b"ok":
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the dashboard did not start:\n{self.log}")
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
