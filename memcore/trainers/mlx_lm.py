"""MLX LM: what its keys mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import TrainerFileError, show
from .models import roles_of, targets
from .settings import Settings

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario

ATTENTION = ("q", "k", "v", "qkv", "o", "q_a", "q_b", "kv_a", "kv_b")
ENDINGS = {"mlx-4bit": "-4bit", "mlx-8bit": "-8bit"}


def read_mlx_lm(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """Weights are the checkpoint's, quantized where its name says so; adapters are float32; there is no autocast."""
    kind = s.get("fine_tune_type")
    if kind not in ("lora", "dora", "full"):
        raise TrainerFileError(f"fine_tune_type ({show(kind)}) must be lora, dora or full")
    if kind == "full" and stored:
        raise TrainerFileError(
            f"model is stored in {stored}, which a full fine-tune cannot train; choose a bf16 version, or fine_tune_type: lora"
        )
    if kind == "dora":
        s.note(s.table.notes["dora"])
    if kind == "full":
        s.note(s.table.notes["full"])
    fields = {
        "method": "full" if kind == "full" else "qlora" if stored else "lora",
        "quantization": stored or "none",
        "precision": "bf16",
        "autocast": False,
        "optimizer": s.choice("optimizer"),
        "gradient_checkpointing": "full" if s.get("grad_checkpoint") else "none",
        "attention": "flash",
        "loss": "full-logits",
        "kernels": "torch",
    }
    _layers(s, model)
    if kind != "full":
        fields["adapter_precision"] = "fp32"
        fields["lora_target_modules"] = targets(s.get("lora_parameters.keys"), model, s, "lora_parameters.keys") or "all-linear"
    return fields


def _layers(s: Settings, model: ModelArchitecture | None) -> None:
    """num_layers trains the last layers only; a Scenario trains all of them, so fewer are said, not followed."""
    number = s.get("num_layers")
    if isinstance(number, bool) or not isinstance(number, int):
        raise TrainerFileError(f"num_layers ({show(number)}) must be a whole number of layers, or -1 for all")
    there = len(model.layers) if model else None
    if number < 1 or there is not None and number == there:
        return
    if there is not None and number > there:
        raise TrainerFileError(f"num_layers ({show(number)}) is more than the {there} layers of {model.name}; write -1 for all")  # type: ignore[union-attr]
    s.note(s.table.notes["layers"].format(num_layers=number, all_layers=there or "of them"))
    if found := s.find("num_layers"):
        s.refuse(found[0], "the estimate trains every layer, and so is above what the run takes")


def write_mlx_lm(run: Scenario) -> dict[str, Any]:
    """A file of `mlx_lm.lora --config`."""
    from .table import trainers

    ending = ENDINGS.get(run.quantization, "")
    name = f"mlx-community/{run.model.name.rpartition('/')[2]}{ending}" if ending else run.model.name
    optimizers = {ours: theirs for theirs, ours in trainers()["mlx-lm"].values["mlx_optimizer"].items()}
    keys: dict[str, Any] = {"model": name, "fine_tune_type": "full" if run.method == "full" else "lora"}
    keys["optimizer"] = optimizers.get(run.optimizer, "adamw")
    keys["grad_checkpoint"] = run.gradient_checkpointing != "none"
    if run.method != "full":
        keys["lora_parameters.scale"] = 20.0
        if run.lora_target_modules != "all-linear":
            keys["lora_parameters.keys"] = [_path(name, run) for name in run.lora_target_modules]
    return keys


def _path(name: str, run: Scenario) -> str:
    return f"{'self_attn' if roles_of(run.model).get(name) in ATTENTION else 'mlp'}.{name}"
