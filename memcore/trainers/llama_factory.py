"""LLaMA-Factory: what its keys mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import (
    activation_offload,
    default_attention,
    half_precision,
    optimizer,
    quantized,
    sharding,
    storage,
    written_optimizer,
    written_precision,
    written_sharding,
)
from .errors import TrainerFileError, show
from .models import saved, targets
from .settings import Settings

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario


def read_llama_factory(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """Checkpointing is on, and reentrant; what trains is upcast to float32 unless pure_bf16 or ZeRO-3 is set."""
    kind, bits = s.get("finetuning_type"), s.get("quantization_bit")
    if kind not in ("lora", "full"):
        raise TrainerFileError(f"finetuning_type ({show(kind)}) trains what a Scenario cannot describe; choose lora or full")
    if bits not in (None, 4, 8):
        raise TrainerFileError(f"quantization_bit ({bits}) must be 4 or 8 for training")
    if kind == "full" and (bits or stored):
        raise TrainerFileError(f"quantization_bit ({bits}) is for finetuning_type lora; a full fine-tune would train these weights")
    stage = s.get("stage")
    if stage not in ("sft", "pt"):
        s.refuse("stage", "preference training and reward models are not in the estimate, which is for SFT")
        s.note(f"stage ({stage}): the estimate is for SFT")
    quantization = stored
    if bits:
        quantization = stored or quantized(s, bits == 4, bits == 8, s.get("quantization_type"), s.get("double_quantization"))
    method = "full" if kind == "full" else "qlora" if quantization else "lora"
    divided, engine = sharding(s)
    pure, fp16 = s.get("pure_bf16"), s.get("fp16")
    half = "" if pure else half_precision(s, s.get("bf16"), fp16)
    dtype = "bf16" if pure or not half else half
    if not pure and not half:
        s.assume("infer_dtype", "auto", "model/patcher.py: the checkpoint's own dtype, bfloat16 for nearly every model")
    fields = {
        "method": method,
        "quantization": quantization or "none",
        "optimizer": "muon" if s.get("use_muon") else optimizer(s, "optim"),
        **divided,
        "attention": _attention(s, stage),
        "prepare_kbit": "norms-fp32" if s.get("upcast_layernorm") else "none",
        **storage(method, dtype, half, engine),
    }
    if method == "full" and not pure and engine != "deepspeed":
        fields["precision"] = "fp32"
    on = not s.get("disable_gradient_checkpointing")
    reentrant = on and s.get("use_reentrant_gc")
    fields["gradient_checkpointing"] = "full-reentrant" if reentrant else "full" if on else "none"
    fields |= activation_offload(s, "use_unsloth_gc", fields["gradient_checkpointing"])
    unsloth, liger = s.get("use_unsloth"), s.get("enable_liger_kernel")
    fields |= {"loss": "fused-linear" if unsloth or liger else "full-logits", "kernels": "fused" if unsloth or liger else "torch"}
    if unsloth:
        fields["software"] = "unsloth"
    if method != "full":
        fields["adapter_precision"] = "bf16" if engine == "deepspeed" and half else "fp32"
        fields["lora_target_modules"] = targets(s.get("lora_target"), model, s, "lora_target") or "all-linear"
        if kept := s.get("additional_target"):
            fields["modules_to_save"] = saved(kept, s, "additional_target")
    return fields


def _attention(s: Settings, stage: str) -> str:
    packed = bool(s.get("neat_packing") or s.get("packing")) or stage == "pt"
    if s.get("flash_attn") != "auto":
        return s.choice("flash_attn") or default_attention(s, "flash_attn", packed)
    s.assumed.pop("flash_attn", None)
    return default_attention(s, "flash_attn", packed)


def write_llama_factory(run: Scenario) -> dict[str, Any]:
    """A training file of `llamafactory-cli train`."""
    _, flags, engine = written_precision(run)
    pure = run.precision == "bf16" and not run.autocast and not engine
    if engine == "fsdp" and run.method != "full" and run.precision == "bf16":
        flags = {"bf16": run.autocast}
    keys: dict[str, Any] = {"model_name_or_path": run.model.name, "finetuning_type": "full" if run.method == "full" else "lora"}
    keys |= {"pure_bf16": True} if pure else flags
    if run.method != "full":
        keys |= {
            "lora_target": "all" if run.lora_target_modules == "all-linear" else ",".join(run.lora_target_modules),
            "lora_alpha": 2 * run.lora_rank,
        }
        if run.modules_to_save:
            keys["additional_target"] = ",".join(run.modules_to_save)
    if run.quantization == "int8":
        keys["quantization_bit"] = 8
    elif run.quantization in ("nf4", "nf4-double-quant", "fp4"):
        keys |= {
            "quantization_bit": 4,
            "quantization_type": run.quantization[:3],
            "double_quantization": run.quantization.endswith("double-quant"),
        }
    keys |= {"use_muon": True} if run.optimizer == "muon" else written_optimizer(run, "optim")
    if run.gradient_checkpointing == "none":
        keys["disable_gradient_checkpointing"] = True
    else:
        keys["use_reentrant_gc"] = run.gradient_checkpointing == "full-reentrant"
    if run.activation_offload:
        keys["use_unsloth_gc"] = True
    keys["flash_attn"] = {"flash": "fa2", "flash-attn": "fa2", "eager": "disabled"}.get(run.attention, run.attention)
    if run.software == "unsloth":
        keys["use_unsloth"] = True
    elif run.kernels == "fused" or run.loss == "fused-linear":
        keys["enable_liger_kernel"] = True
    if run.prepare_kbit == "norms-fp32":
        keys["upcast_layernorm"] = True
    return keys | written_sharding(run, engine)
