"""Unsloth: what the keyword arguments of its calls mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import optimizer, quantized, written_optimizer, written_targets
from .errors import TrainerFileError, show
from .models import saved, targets
from .settings import Settings

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario

LOADING = ("model_name", "max_seq_length", "dtype", "load_in_4bit", "load_in_8bit", "full_finetuning", "float32_mixed_precision")
ADAPTERS = ("r", "target_modules", "lora_alpha", "lora_dropout", "modules_to_save", "use_gradient_checkpointing")


def read_unsloth(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """4-bit weights unless told otherwise, float32 adapters, its own kernels, fused loss and checkpointing."""
    full = s.get("full_finetuning")
    four = bool(s.get("load_in_4bit")) if not full or s.given("load_in_4bit") else False
    eight, sixteen = s.get("load_in_8bit"), s.get("load_in_16bit")
    if (eight or sixteen) and not s.given("load_in_4bit"):
        four = False
        s.assumed.pop("load_in_4bit", None)
    if full and (four or eight):
        raise TrainerFileError(
            f"full_finetuning (True) and load_in_{4 if four else 8}bit (True) do not go together; set the latter to False"
        )
    quantization = quantized(s, four, eight, "nf4", True)
    if stored and stored != quantization and not full:
        s.note(f"the model's name says {stored}, and the arguments {quantization}; the estimate follows the arguments")
    method = "full" if full else "lora" if quantization == "none" else "qlora"
    fields = {
        "method": method,
        "quantization": quantization,
        "optimizer": optimizer(s, "optim"),
        **_checkpointing(s),
        "attention": "flash",
        "loss": s.choice("loss_type") or "fused-linear",
        "kernels": "fused",
        **_precision(s, full),
    }
    if s.given("max_length"):  # rl.py: of SFTConfig's length and the model's, the smaller
        fields["sequence_length"] = min(s.get("max_length"), s.get("max_seq_length"))
    if not full:
        fields["adapter_precision"] = "fp32"
        fields["lora_target_modules"] = targets(s.get("target_modules"), model, s, "target_modules") or "all-linear"
        if kept := s.get("modules_to_save"):
            fields["modules_to_save"] = saved(kept, s, "modules_to_save")
    return fields


def _precision(s: Settings, full: bool) -> dict[str, Any]:
    """16-bit weights with autocast; full fine-tuning in bf16 does without, unless float32_mixed_precision is asked for."""
    dtype = s.choice("dtype")
    if dtype is None:
        dtype = "bf16"
        s.assume("dtype", "bfloat16", "loader.py: bfloat16 where the GPU supports it")
    if not full:
        return {"precision": dtype, "autocast": True}
    if s.given("float32_mixed_precision") and s.get("float32_mixed_precision") or dtype == "fp16":
        return {"precision": "fp32", "autocast": True}
    s.assume("float32_mixed_precision", False, "vision.py: bfloat16 full fine-tuning does not autocast")
    return {"precision": dtype, "autocast": False}


def _checkpointing(s: Settings) -> dict[str, Any]:
    value = s.get("use_gradient_checkpointing")
    if value not in (True, False, "unsloth", "True", "False", "mlp"):
        raise TrainerFileError(f'use_gradient_checkpointing ({show(value)}) must be True, False or "unsloth"')
    if value in (False, "False"):
        return {"gradient_checkpointing": "none"}
    return {"gradient_checkpointing": "full"} | ({"activation_offload": True} if value == "unsloth" else {})


def write_unsloth(run: Scenario) -> dict[str, Any]:
    """Keyword arguments, for `render` to put into its calls."""
    full = run.method == "full"
    keys: dict[str, Any] = {"model_name": run.model.name, "dtype": {"fp16": "float16", "fp32": "float32"}.get(run.precision, "bfloat16")}
    keys |= {"load_in_4bit": run.method == "qlora" and run.quantization != "int8", "load_in_8bit": run.quantization == "int8"}
    if full:
        keys |= {"full_finetuning": True, "float32_mixed_precision": run.precision == "fp32" and run.autocast}
        keys |= {"dtype": "bfloat16"} if run.precision == "fp32" and run.autocast else {}
    else:
        keys |= {"target_modules": written_targets(run, "all-linear"), "lora_alpha": 2 * run.lora_rank}
        keys |= {"modules_to_save": list(run.modules_to_save)} if run.modules_to_save else {}
    keys["use_gradient_checkpointing"] = "unsloth" if run.activation_offload else run.gradient_checkpointing != "none"
    keys |= {"loss_type": {"chunked": "chunked_nll", "full-logits": "dft"}[run.loss]} if run.loss in ("chunked",) else {}
    return keys | written_optimizer(run, "optim")


def render(keys: dict[str, Any], comments: list[str]) -> str:
    """The snippet: the calls with their arguments, each where Unsloth takes it."""
    full = keys.get("full_finetuning", False)
    loading = {key: keys[key] for key in LOADING if key in keys} | (
        {"use_gradient_checkpointing": keys["use_gradient_checkpointing"]} if full else {}
    )
    adapters = {} if full else {key: keys[key] for key in ADAPTERS if key in keys}
    rest = {key: value for key, value in keys.items() if key not in loading and key not in adapters}
    lines = [*comments, "", "import torch", "from trl import SFTConfig, SFTTrainer", "from unsloth import FastLanguageModel", ""]
    lines += _call("model, tokenizer = FastLanguageModel.from_pretrained(", loading)
    if adapters:
        lines += _call("model = FastLanguageModel.get_peft_model(\n    model,", adapters)
    lines += _call("arguments = SFTConfig(", rest | {"output_dir": "out", "learning_rate": 2e-4})
    return "\n".join(lines) + "\n"


def _call(opening: str, arguments: dict[str, Any]) -> list[str]:
    return [opening, *(f"    {key}={f'torch.{value}' if key == 'dtype' else repr(value)}," for key, value in arguments.items()), ")"]
