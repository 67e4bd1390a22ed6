"""Models by their Hub id: what is asked, what every answer means, and what never leaves this machine. The Hub here is a stand-in."""

import json
import sys
import threading
import time
import types
from importlib.machinery import ModuleSpec

import pytest
from streamlit.testing.v1 import AppTest
from test_dashboard import SCRIPT, needed_by, needs

import memcore
from memcore import configs, hub, links

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
PARAMETERS = 210_240  # of these shapes: 64 x 1000 twice, and two layers of 41,088 with the final norm's 64


class HubHTTPError(OSError):
    def __init__(self, status=None):
        super().__init__("an answer")
        self.response = types.SimpleNamespace(status_code=status) if status else None


class RepositoryNotFoundError(HubHTTPError):
    pass


class GatedRepoError(RepositoryNotFoundError):  # as in the library
    pass


class RemoteEntryNotFoundError(HubHTTPError):
    pass


class EntryNotFoundError(Exception):
    pass


class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):  # as in the library
    pass


class Library(types.ModuleType):
    """What memcore uses of huggingface_hub: files by name, or an error instead of them."""

    def __init__(self, folder, files, error=None, cached=False, wait=0.0):
        super().__init__("huggingface_hub")
        self.__spec__ = ModuleSpec("huggingface_hub", None)
        self.folder, self.files, self.error, self.cached, self.wait = folder, files, error, cached, wait
        self.asked = []

    def hf_hub_url(self, name, file):
        return f"{name}/{file}"

    def get_hf_file_metadata(self, url, timeout):
        assert timeout <= 10
        self.asked.append(url)
        time.sleep(self.wait)
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(size=len(self.files[self._there(url)]))

    def _there(self, url):
        file = url.rpartition("/")[2]
        if file not in self.files:
            raise RemoteEntryNotFoundError(404)
        return file

    def hf_hub_download(self, name, file, etag_timeout=None, local_files_only=False):
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("not in the cache")
        path = self.folder / file
        path.write_bytes(self.files[self._there(file)])
        return str(path)


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Call it with what the Hub has."""

    def library(files=None, **how):
        files = {"config.json": json.dumps(CONFIG).encode()} if files is None else files
        found = Library(tmp_path, files, **how)
        monkeypatch.setitem(sys.modules, "huggingface_hub", found)
        return found

    return library


def test_a_model_is_what_its_config_says(library):
    library()
    found = hub.model("someone/tiny")
    assert found.model.parameters == PARAMETERS and found.model.name == "someone/tiny" and found.checkpoint is None


def test_the_index_is_compared_with_the_count(library):
    index = {"metadata": {"total_size": 2 * PARAMETERS}, "weight_map": {}}
    library({"config.json": json.dumps(CONFIG).encode(), "model.safetensors.index.json": json.dumps(index).encode()})
    assert hub.model("someone/tiny").checkpoint.agrees


def test_a_single_file_is_known_by_its_size(library):
    library({"config.json": json.dumps(CONFIG).encode(), "model.safetensors": bytes(2 * PARAMETERS)})
    assert hub.model("someone/tiny").checkpoint.agrees


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (GatedRepoError(403), ("is gated", "https://huggingface.co/someone/tiny", "HF_TOKEN", "hf auth login", "upload its config.json")),
        (RepositoryNotFoundError(404), ("there is no model someone/tiny", "private", "spelling")),
        (RemoteEntryNotFoundError(404), ("has no config.json", "GGUF")),
        (HubHTTPError(401), ("401", "HF_TOKEN", "renew")),
        (HubHTTPError(429), ("429", "later")),
        (HubHTTPError(), ("cannot be reached", "upload its config.json")),
        (TimeoutError(), ("cannot be reached",)),
        (ConnectionError("OfflineModeIsEnabled"), ("cannot be reached",)),
    ],
    ids=["gated", "missing", "no config", "bad token", "too many", "network", "timeout", "offline"],
)
def test_every_answer_says_what_to_do(library, error, words):
    library(error=error)
    with pytest.raises(hub.HubError) as caught:
        hub.model("someone/tiny")
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_offline_the_cache_will_do(library):
    library(error=ConnectionError(), cached=True)
    assert hub.model("someone/tiny").model.parameters == PARAMETERS


def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(hub.HubError, match=r"pip install 'memcore\[hub\]'"):
        hub.model("someone/tiny")


def test_it_does_not_wait_for_ever(library, monkeypatch):
    library(wait=0.5)
    monkeypatch.setattr(hub, "SECONDS", 0.1)
    start = time.monotonic()
    with pytest.raises(hub.HubError, match="did not answer"):
        hub.model("someone/tiny")
    assert time.monotonic() - start < 0.4
    for thread in threading.enumerate():  # what was left behind is not the next test's
        if thread.name == "hub":
            thread.join()


def test_a_huge_config_is_not_fetched(library):
    asked = library({"config.json": b" " * (5 * 2**20)})
    with pytest.raises(hub.HubError, match="5 MiB long"):
        hub.model("someone/tiny")
    assert not list(asked.folder.iterdir())


def test_a_config_that_is_not_understood_is_refused_by_name(library):
    library({"config.json": b'{"model_type": "nothing"}'})
    with pytest.raises(configs.ConfigError, match="model_type"):
        hub.model("someone/tiny")


@pytest.mark.parametrize(
    "text",
    [
        "../../etc/passwd",
        "..",
        "a/..",
        "../a",
        "a/b/c",
        "/etc/passwd",
        "a\\b",
        "a\x00b",
        "a%2f..%2fb",
        "https://evil.example/a/b",
        "file:///etc/passwd",
        "a/b@main:../x",
        "",
        " ",
        "x" * 300,
        "a/-b",
        ".hidden/a",
        "http://169.254.169.254/latest",
        "a--b/c",
    ],
)
def test_path_tricks_are_refused_before_anything_is_asked(library, text):
    asked = library()
    with pytest.raises(hub.HubError, match="is not a model of the Hub"):
        hub.model(text)
    assert asked.asked == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("  gpt2 ", "gpt2"),
        ("https://huggingface.co/Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("hf.co/Qwen/Qwen3-4B/blob/main/config.json?x=1", "Qwen/Qwen3-4B"),
        ("microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-3.5-mini-instruct"),
    ],
)
def test_ids_and_addresses_of_pages_are_understood(text, name):
    assert hub.model_id(text) == name


@pytest.mark.usefixtures("quick")
class TestOnThePage:
    @pytest.fixture
    def page(self):
        app = AppTest.from_file(str(SCRIPT), default_timeout=60)
        app.query_params["model"] = links.HUB
        return app

    def test_an_id_is_the_model_and_part_of_the_link(self, library, page):
        library()
        page.query_params["hub_id"] = "someone/tiny"
        page.run()
        model = hub.model("someone/tiny").model
        assert not page.exception and needs(page) == needed_by(memcore.Scenario(model=model))
        assert any("hub_id=someone%2Ftiny" in c.value for c in page.code)

    def test_sliders_do_not_ask_again(self, library, page):
        asked = library()
        page.query_params["hub_id"] = "someone/tiny"
        page.run()
        before = len(asked.asked)
        page.select_slider(key="micro_batch_size").set_value(1).run()
        assert len(asked.asked) == before > 0

    def test_an_answer_that_is_no_model_leaves_the_page_as_it_was(self, library, page):
        asked = library(error=ConnectionError())
        page.query_params["hub_id"] = "someone/tiny"
        page.run()
        assert needs(page) == needed_by(memcore.Scenario(model=links.DEFAULT_MODEL))
        assert any("upload its config.json instead" in e.value for e in page.error)
        asked.error = None
        page.button(key="hub_again").click().run()
        assert not any("Hub" in e.value for e in page.error) and "tiny" in page.success[0].value

    def test_nothing_is_asked_before_an_id_is_given(self, library, page):
        asked = library()
        page.run()
        assert asked.asked == [] and any("Type a model's id" in i.value for i in page.info)
