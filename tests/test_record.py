"""A record printed from a config.json says what the file says."""

import json
import tomllib
from pathlib import Path

import pytest

from memcore import configs, record

CONFIGS = sorted((Path(__file__).parent / "truth" / "configs").glob("*.json"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_printed_record_gives_the_same_model(path):
    config = json.loads(path.read_text())
    (entry,) = tomllib.loads(record.record("maker/name", config))["model"]
    kept = {k: v for k, v in config.items() if k not in record.LEFT_OUT}
    assert {k: entry[k] for k, v in kept.items() if v is not None and not isinstance(v, dict)} == {
        k: v for k, v in kept.items() if v is not None and not isinstance(v, dict)
    }
    read = {k: entry[k] for k in kept if k in entry}
    for dotted in entry.get("null_keys", ()):
        *outer, key = dotted.split(".")
        part = read
        for part_name in outer:
            part = part[part_name]
        part[key] = None
    assert configs.model_from_config(read).parameters == configs.model_from_config(config).parameters


def test_the_command_prints_it_and_refuses_what_is_no_config(tmp_path, capsys):
    assert record.main(["maker/name", str(CONFIGS[0])]) == 0
    assert capsys.readouterr().out.startswith("[[model]]\nid = ")
    broken = tmp_path / "config.json"
    broken.write_text("[1, 2]")
    assert record.main(["maker/name", str(broken)]) == 1
    assert capsys.readouterr().err.strip()
    assert record.main([]) == 2
