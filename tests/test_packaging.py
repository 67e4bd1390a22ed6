"""The package: what is public, what importing it costs, and that an installed copy finds its data."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import memcore

ROOT = Path(__file__).resolve().parents[1]


def python(code, **options):
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, **options)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [name for name, home in memcore._HOME.items() if find_spec(f"memcore.{home}")])
def test_a_public_name_is_there(name):
    value = getattr(memcore, name)
    assert callable(value) and name in dir(memcore) and name in memcore.__all__


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'memcore' has no attribute 'nonsense'"):
        memcore.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["estimate", "sweep"])
def test_a_function_named_like_its_module_is_the_function(name):
    pytest.importorskip(f"memcore.{name}")
    assert python(f"import memcore.{name}, json; print(json.dumps(callable(memcore.{name})))") is True


def test_importing_memcore_pulls_in_nothing_heavy():
    modules = python("import memcore, sys, json; print(json.dumps([*sys.modules]))")
    assert not {"streamlit", "plotly", "huggingface_hub", "pandas"} & set(modules)


@pytest.mark.slow
def test_an_installed_copy_finds_its_data_from_another_folder(tmp_path):
    pytest.importorskip("pip")
    source, site, elsewhere = tmp_path / "source", tmp_path / "site", tmp_path / "elsewhere"
    for folder in ("memcore", "data"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([*install, str(site), str(source)], cwd=elsewhere, check=True, capture_output=True, timeout=300)

    files = {p.relative_to(source) for p in (source / "memcore").rglob("*.py")}
    files |= {Path("memcore") / p.relative_to(source) for p in (source / "data").rglob("*") if p.suffix in (".csv", ".toml", ".md")}
    assert {f for f in files if not (site / f).exists()} == set()

    code = "import memcore, json; print(json.dumps([memcore.__file__, sorted(memcore.models()), sorted(memcore.devices())]))"
    file, models, devices = python(code, cwd=elsewhere, env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"})
    assert Path(file).is_relative_to(site)
    assert models == sorted(memcore.models()) and devices == sorted(memcore.devices())
