"""A pasted command line → what it starts, its arguments, and how many GPUs the launcher was told to use."""

from __future__ import annotations

import re
import shlex
from collections import deque

from .errors import TrainerFileError, show

GPU_COUNTS = ("nproc_per_node", "num_processes", "num_gpus")
NODE_COUNTS = ("nnodes", "num_machines", "num_nodes")
LAUNCHER_KEYS = (
    *GPU_COUNTS, *NODE_COUNTS, "master_port", "master_addr", "main_process_port", "main_process_ip", "machine_rank", "node_rank",
    "rdzv_backend", "rdzv_endpoint", "rdzv_id", "multi_gpu", "mixed_precision", "config_file", "accelerate_config", "hostfile", "include",
    "num_cpu_threads_per_process", "standalone", "module",
)  # fmt: skip
LAUNCHERS = ("accelerate", "launch", "torchrun", "deepspeed", "python", "python3")


def parse_command(text: str) -> tuple[str, dict[str, object], dict[str, str]]:
    """Program, arguments by name (dashes become underscores), and the arguments that could not be read, with the reason."""
    joined = re.sub(r"\\\s*\n", " ", text)
    lines = [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    runs = [line for line in lines if "--" in line or "=" in line] or lines
    try:
        words = deque(shlex.split(max(runs, key=len).strip().lstrip("!$ "), comments=True))
    except ValueError as error:
        raise TrainerFileError(f"the command line cannot be read: {error}; close the quotation") from None
    program: list[str] = []
    values: dict[str, object] = {}
    while words and not words[0].startswith("--"):
        word = words.popleft()
        name, equals, value = word.partition("=")
        if equals and name.isupper():
            values[f"environment.{name}"] = value
        elif equals and program and program[0] != "deepspeed":
            values[name] = _value(value)
        else:
            program.append(word)
    unreadable: dict[str, str] = {}
    while words:
        word = words.popleft()
        if not word.startswith("--"):
            if re.fullmatch(r"-[a-z]", word) and words:
                values[word[1:]] = words.popleft()
            else:
                program.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not name:
            continue
        if not equals:
            given = []
            while words and not re.match(r"--[a-zA-Z]|-[a-z]$", words[0]):
                if given and name in LAUNCHER_KEYS:  # one value each; what follows is the script
                    break
                given.append(words.popleft())
            value = " ".join(given) if len(given) < 2 else given
            if not given:
                values[name] = True
                continue
        if isinstance(value, str) and re.search(r"\$\{?\w|`", value):
            unreadable[name] = f"is a shell variable ({show(value)}); write its value"
            continue
        parsed = [_value(v) for v in value] if isinstance(value, list) else _value(value)
        if name in values and values[name] != parsed:
            raise TrainerFileError(f"--{name} is given twice, as {show(values[name])} and {show(parsed)}; keep one")
        values[name] = parsed
    return _named(program), values, unreadable


def gpus(values: dict[str, object]) -> tuple[list[str], int]:
    """The launcher's arguments that say how many GPUs there are, and their product; 0 where none does."""
    count = [name for name in GPU_COUNTS if isinstance(values.get(name), int)]
    nodes = [name for name in NODE_COUNTS if isinstance(values.get(name), int)]
    if count:
        total = int(values[count[0]])  # type: ignore[call-overload]
        if nodes and count[0] != "num_processes":  # accelerate counts processes over all machines
            total *= int(values[nodes[0]])  # type: ignore[call-overload]
        return [count[0], *nodes], total
    for name in ("NPROC_PER_NODE", "CUDA_VISIBLE_DEVICES"):
        value = values.get(f"environment.{name}")
        if isinstance(value, str) and value and re.fullmatch(r"\d+(,\d+)*", value):
            return [f"environment.{name}"], int(value) if name == "NPROC_PER_NODE" else len(value.split(","))
    return [], 0


def _value(text: str) -> object:
    """A number, a truth value or nothing where the word says one; text otherwise."""
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d{1,18}\.?\d{0,18}|\.\d{1,18})([eE][-+]?\d{1,3})?", text):
        return float(text)
    return text


def _named(program: list[str]) -> str:
    """The words that say which trainer it is."""
    return " ".join(word for word in program if word not in LAUNCHERS and word != "-m")[:200]
