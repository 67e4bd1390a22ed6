"""How much memory will this fine-tune need, exactly, and will it fit?

The public names, nothing else. Each is imported when it is first used, so that `import memcore` costs nothing.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

_HOME = {
    "ModelArchitecture": "architecture",
    "ConfigError": "configs",
    "custom_model": "configs",
    "lora_fields_from_adapter_config": "configs",
    "model_from_config": "configs",
    "Device": "catalog",
    "UnknownName": "catalog",
    "custom_device": "catalog",
    "devices": "catalog",
    "model": "catalog",
    "models": "catalog",
    "optimizers": "catalog",
    "precisions": "catalog",
    "quantizations": "catalog",
    "shardings": "catalog",
    "software": "catalog",
    "Scenario": "scenario",
    "ScenarioError": "scenario",
    "MemoryBreakdown": "estimate",
    "estimate": "estimate",
    "stages": "estimate",
    "parameter_ledger": "rules",
    "rule_of_thumb": "rules",
    "fewest_gpus": "solver",
    "largest": "solver",
    "largest_model": "solver",
    "smallest_device": "solver",
    "sweep": "sweep",
    "advise": "advice",
    "cheapest_plan": "advice",
    "TrainerFile": "trainers",
    "TrainerFileError": "trainers",
    "read_trainer_file": "trainers",
    "write_trainer_file": "trainers",
    "validate": "validation",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return [*__all__, "__version__"]


for _name in ("estimate", "sweep"):  # a function with its module's name is bound now: importing the module later would hide it
    if _find_spec(f"{__name__}.{_name}"):
        __getattr__(_name)
