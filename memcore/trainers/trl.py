"""TRL's SFTTrainer, and Trainer's own arguments: what their keys mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import (
    activation_offload,
    attention,
    half_precision,
    optimizer,
    peft_targets,
    quantized,
    sharding,
    storage,
    written_attention,
    written_optimizer,
    written_precision,
    written_sharding,
    written_targets,
)
from .errors import TrainerFileError
from .models import saved, targets
from .settings import Settings

if TYPE_CHECKING:
    from ..architecture import ModelArchitecture
    from ..scenario import Scenario


def read_transformers(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """Trainer's arguments; the dtype is the checkpoint's and nothing is checkpointed unless asked for."""
    return _trainer(s, model, stored, trl=False)


def read_trl(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """SFTTrainer: float32 weights, bf16 autocast and checkpointing unless told otherwise; adapters in bf16 beside quantized weights."""
    return _trainer(s, model, stored, trl=True)


def _trainer(s: Settings, model: ModelArchitecture | None, stored: str, trl: bool) -> dict[str, Any]:
    four, eight = s.get("load_in_4bit"), s.get("load_in_8bit")
    adapters = s.get("use_peft")
    if not trl and not s.given("use_peft"):  # Trainer knows nothing of adapters: the script's arguments tell
        adapters = any(
            s.given(key) for key in ("lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit") if s.find(key) and s.find(key)[1]
        )
        if adapters:
            s.assumed.pop("use_peft", None)
    quantization = (
        stored or quantized(s, four, eight, s.get("bnb_4bit_quant_type"), s.get("use_bnb_nested_quant")) if four or eight else stored
    )
    if quantization and not adapters:
        bits = "load_in_4bit" if four else "load_in_8bit" if eight else "the model's name"
        raise TrainerFileError(f"{bits} quantizes the weights, which a full fine-tune would train; add use_peft: true, or remove it")
    method = "qlora" if quantization else "lora" if adapters else "full"
    divided, engine = sharding(s)
    half = _half(s)
    fields = {
        "method": method,
        "quantization": quantization or "none",
        "optimizer": optimizer(s, "optim"),
        "gradient_checkpointing": _checkpointing(s),
        "attention": attention(s, "attn_implementation", bool(s.get("packing")) or trl and bool(s.get("padding_free"))),
        **divided,
        **storage(method, s.choice("dtype"), half, engine),
        **_liger(s, trl),
    }
    if trl and engine == "deepspeed" and divided["sharding"] == "fsdp" and adapters and fields["gradient_checkpointing"] == "full":
        fields["gradient_checkpointing"] = "full-reentrant"
        s.note("TRL uses reentrant checkpointing with PEFT and ZeRO-3")
    fields |= activation_offload(s, "activation_offloading", fields["gradient_checkpointing"])
    if adapters:
        bf16 = engine == "deepspeed" or trl and bool(quantization)
        fields |= {"adapter_precision": "bf16" if bf16 and half != "" or trl and quantization else "fp32"} | _adapters(s, model)
    return fields


def _adapters(s: Settings, model: ModelArchitecture | None) -> dict[str, Any]:
    names = s.get("lora_target_modules")
    chosen = targets(names, model, s, "lora_target_modules") if names else None
    chosen = chosen or peft_targets(s, model, "lora_target_modules")
    fields: dict[str, Any] = {"lora_target_modules": chosen} if chosen else {}
    if kept := s.get("lora_modules_to_save"):
        fields["modules_to_save"] = saved(kept, s, "lora_modules_to_save")
    return fields


def _half(s: Settings) -> str:
    """The 16-bit flag; TRL's bf16 is on unless fp16 is."""
    fp16 = s.get("fp16")
    if fp16 and not s.given("bf16"):
        return "fp16"
    return half_precision(s, s.get("bf16"), fp16)


def _checkpointing(s: Settings) -> str:
    if s.get("fsdp_config.activation_checkpointing"):
        return "full"
    if not s.get("gradient_checkpointing"):
        return "none"
    return "full-reentrant" if s.get("gradient_checkpointing_kwargs.use_reentrant") else "full"


def _liger(s: Settings, trl: bool) -> dict[str, str]:
    """Liger's kernels: the fused linear loss, or cross-entropy by Triton, and norms, rotary embedding and MLP."""
    loss = s.choice("loss_type") if trl and s.given("loss_type") else "full-logits"
    if not s.get("use_liger_kernel"):
        if trl and not s.given("loss_type"):
            loss = s.choice("loss_type")
        if trl and loss == "full-logits":
            s.note(s.table.notes["loss"])
        return {"loss": loss, "kernels": "torch"}
    if loss == "chunked":
        raise TrainerFileError("loss_type (chunked_nll) and use_liger_kernel (true) do not go together; remove one of them")
    fused, triton = s.get("liger_kernel_config.fused_linear_cross_entropy"), s.get("liger_kernel_config.cross_entropy")
    parts = [s.get(f"liger_kernel_config.{part}") for part in ("rms_norm", "rope", "swiglu")]
    if any(parts) and not all(parts):
        s.note("liger_kernel_config: some of Liger's kernels alone are not in the estimate, which uses PyTorch's")
    return {"loss": "triton" if triton else "fused-linear" if fused else "full-logits", "kernels": "fused" if all(parts) else "torch"}


def write_trl(run: Scenario) -> dict[str, Any]:
    """Arguments of `trl sft`."""
    dtype, flags, engine = written_precision(run)
    keys: dict[str, Any] = {"model_name_or_path": run.model.name, "dtype": dtype, **flags}
    if run.method != "full":
        keys |= {"use_peft": True, "lora_target_modules": written_targets(run, ["all-linear"]), "lora_alpha": 2 * run.lora_rank}
        if run.modules_to_save:
            keys["lora_modules_to_save"] = list(run.modules_to_save)
    if run.quantization == "int8":
        keys["load_in_8bit"] = True
    elif run.quantization in ("nf4", "nf4-double-quant", "fp4"):
        keys |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": run.quantization[:3],
            "use_bnb_nested_quant": run.quantization.endswith("double-quant"),
        }
    keys |= written_optimizer(run, "optim")
    keys["gradient_checkpointing"] = run.gradient_checkpointing != "none"
    if run.gradient_checkpointing != "none":
        keys["gradient_checkpointing_kwargs"] = {"use_reentrant": run.gradient_checkpointing == "full-reentrant"}
    if run.activation_offload:
        keys["activation_offloading"] = True
    keys["attn_implementation"] = written_attention(run)
    return keys | _written_loss(run) | written_sharding(run, engine)


def _written_loss(run: Scenario) -> dict[str, Any]:
    fused = run.kernels == "fused"
    if run.loss == "fused-linear" and fused:
        return {"use_liger_kernel": True}
    if run.loss in ("fused-linear", "triton") or fused and run.loss == "full-logits":
        config = dict.fromkeys(("rms_norm", "rope", "swiglu"), fused)
        return {
            "use_liger_kernel": True,
            "liger_kernel_config": config
            | {"cross_entropy": run.loss == "triton", "fused_linear_cross_entropy": run.loss == "fused-linear"},
        }
    return {"loss_type": "chunked_nll" if run.loss == "chunked" else "nll"}
