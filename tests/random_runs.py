"""Runs of every kind, for tests that compare two ways to the same answer. The same seed gives the same runs."""

import random

import memcore
from memcore.configs import ConfigError
from memcore.scenario import CATALOG_CHOICES, CHOICES, choices


def readable_models():
    """The catalog's models whose config.json memcore reads."""
    for name in memcore.models():
        try:
            yield memcore.model(name)
        except ConfigError:
            continue


def random_run(rng: random.Random, models=None, **fixed) -> memcore.Scenario:
    """A run with every field drawn from what it can be."""
    model = fixed.pop("model", None) or rng.choice(models or list(readable_models()))
    method = fixed.get("method", rng.choice(choices("method")))
    targets = "all-linear" if rng.random() < 0.6 else tuple(rng.sample(model.lora_targets, rng.randint(1, len(model.lora_targets))))
    drawn = {name: rng.choice(choices(name)) for name in CHOICES | CATALOG_CHOICES}
    drawn |= {
        "method": method,
        "quantization": rng.choice([q for q in choices("quantization") if q != "none"]) if method == "qlora" else "none",
        "autocast": rng.random() < 0.5,
        "lora_rank": rng.choice([1, 4, 8, 16, 64, 100, 256]),
        "lora_dropout": rng.choice([0.0, 0.05]),
        "lora_target_modules": targets,
        "modules_to_save": rng.choice([(), (), ("lm_head",), ("embed_tokens", "lm_head")]),
        "micro_batch_size": rng.choice([1, 1, 2, 3, 8, 32]),
        "sequence_length": int(2 ** rng.uniform(4, 14)),
        "gradient_accumulation_steps": rng.choice([1, 1, 4, 16]),
        "data_parallel_size": rng.choice([1, 1, 2, 8]),
        "tensor_parallel_size": rng.choice([1, 1, 1, 2, 4]),
        "sequence_parallel": rng.random() < 0.5,
        "pipeline_parallel_size": rng.choice([1, 1, 1, 2, 3, 8]),
        "context_parallel_size": rng.choice([1, 1, 1, 2]),
        "activation_offload": rng.random() < 0.2,
    }
    try:
        return memcore.Scenario(model=model, **drawn | fixed)
    except memcore.ScenarioError:  # ways of dividing that do not go together, or with this model: as simple as can be
        simple = ("offload", "tensor_parallel_size", "sequence_parallel", "pipeline_parallel_size", "activation_offload")
        return memcore.Scenario(model=model, **{k: v for k, v in drawn.items() if k not in simple} | fixed)
