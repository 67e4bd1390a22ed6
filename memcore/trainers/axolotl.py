"""axolotl: what its keys mean together for a Scenario, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .common import (
    attention,
    optimizer,
    peft_targets,
    quantized,
    sharding,
    storage,
    written_attention,
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


FALSE = ("", "false", "none", "no")


def read_axolotl(s: Settings, model: ModelArchitecture | None, stored: str) -> dict[str, Any]:
    """Weights are loaded in bf16 for full fine-tuning too; checkpointing is reentrant."""
    adapter = (s.get("adapter") or "").lower()
    four, eight = s.get("load_in_4bit"), s.get("load_in_8bit")
    if adapter not in ("lora", "qlora", *FALSE):
        raise TrainerFileError(f"adapter ({show(adapter)}) is not one a Scenario can describe; choose lora, qlora, or leave it out")
    full = adapter in FALSE
    _check(adapter, full, four, eight)
    quantization = stored or ("gptq-int4" if s.get("gptq") and not full else "")
    if (four or eight) and not quantization:
        kind, double = (
            ("nf4", True)
            if eight
            else (s.get("bnb_config_kwargs.bnb_4bit_quant_type"), s.get("bnb_config_kwargs.bnb_4bit_use_double_quant"))
        )
        quantization = quantized(s, four, eight, kind, double)
    if full and quantization:
        raise TrainerFileError("the model is quantized, and without an adapter nothing could be trained; add adapter: qlora")
    method = "full" if full else "qlora" if quantization else "lora"
    divided, engine = sharding(s)
    dtype, half = _precision(s)
    fields = {
        "method": method,
        "quantization": quantization or "none",
        "optimizer": optimizer(s, "optimizer"),
        **_checkpointing(s),
        "attention": _attention(s),
        **divided,
        **storage(method, dtype, half, engine),
        **_liger(s),
    }
    if (size := s.get("batch_size")) and not s.given("gradient_accumulation_steps"):
        fields["gradient_accumulation_steps"] = max(1, size // s.get("micro_batch_size"))
        s.assumed.pop("gradient_accumulation_steps", None)
    groups = [s.get(key) for key in ("dp_shard_size", "dp_replicate_size") if s.given(key)]
    if groups:
        fields["data_parallel_size"] = groups[0] * (groups[1] if len(groups) > 1 else 1)
    if not full:
        fields |= _adapters(s, model, engine == "deepspeed" and half != "")
        if not any(key in s.values for key in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")) and not eight:
            s.note(s.table.notes["kernels"])
    return fields


def _check(adapter: str, full: bool, four: bool, eight: bool) -> None:
    if full and (four or eight):
        raise TrainerFileError(
            f"load_in_{4 if four else 8}bit (true) needs an adapter; add adapter: {'qlora' if four else 'lora'}, or remove it"
        )
    if adapter == "qlora" and eight:
        raise TrainerFileError("adapter (qlora) and load_in_8bit (true) do not go together; write adapter: lora for 8 bits")
    if adapter == "qlora" and not four:
        raise TrainerFileError("adapter (qlora) needs load_in_4bit: true; add it, or write adapter: lora")
    if adapter == "lora" and four:
        raise TrainerFileError("adapter (lora) and load_in_4bit (true) do not go together; write adapter: qlora for 4 bits")


def _precision(s: Settings) -> tuple[str, str]:
    """The dtype of the weights, and the 16-bit flag. bf16 is on unless fp16 or float32 is."""
    fp16, float32 = bool(s.get("fp16")), bool(s.get("float32"))
    given = s.find("bf16")
    word = str(s.get("bf16")).lower() if given or not (fp16 or float32) else "false"
    if word not in ("auto", "true", "full", *FALSE):
        raise TrainerFileError(f"bf16 ({show(word)}) must be auto, true, full or false")
    if word == "auto" and fp16:
        word = "false"
    bf16 = word not in FALSE
    if bf16 and fp16:
        raise TrainerFileError(f"{given[0] if given else 'bf16'} ({word}) and fp16 (true) are both set; keep one of them")
    dtype = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    return dtype, "" if word == "full" or dtype == "fp32" else dtype


def _checkpointing(s: Settings) -> dict[str, Any]:
    """Reentrant unless told otherwise; with the layer inputs in host memory where offloading is asked for."""
    word, offload = s.get("gradient_checkpointing").lower(), (s.get("activation_offloading") or "").lower()
    on = word not in FALSE or offload == "hidden_states"
    if s.get("fsdp_config.activation_checkpointing"):
        kind = "full"
    else:
        kind = ("full-reentrant" if s.get("gradient_checkpointing_kwargs.use_reentrant") else "full") if on else "none"
    if on and (word in ("offload", "offload_disk", "unsloth") or offload == "hidden_states"):
        return {"gradient_checkpointing": kind, "activation_offload": True}
    if offload not in FALSE:
        s.refuse(
            "activation_offloading",
            "activations that move to host memory without checkpointing are not in the estimate, which keeps them on the GPU",
        )
    return {"gradient_checkpointing": kind}


def _attention(s: Settings) -> str:
    flags = {
        "flash_attention": "flash-attn",
        "xformers_attention": "flash",
        "flex_attention": "flash",
        "sdp_attention": "sdpa",
        "eager_attention": "eager",
    }
    chosen = [flag for flag in flags if s.given(flag) and s.get(flag)]
    packed = bool(s.get("sample_packing"))
    if len(chosen) > 1:
        raise TrainerFileError(f"{chosen[0]} (true) and {chosen[1]} (true) are both set; keep one of them")
    if chosen and s.given("attn_implementation"):
        raise TrainerFileError(
            f"attn_implementation ({show(s.get('attn_implementation'))}) and {chosen[0]} (true) are both set; keep the first"
        )
    if chosen:
        return flags[chosen[0]]
    return attention(s, "attn_implementation", packed)


def _liger(s: Settings) -> dict[str, str]:
    losses = {
        "liger_fused_linear_cross_entropy": "fused-linear",
        "cut_cross_entropy": "fused-linear",
        "liger_cross_entropy": "triton",
        "chunked_cross_entropy": "chunked",
    }
    chosen = [key for key in losses if s.get(key)]
    if len(chosen) > 1:
        raise TrainerFileError(f"{chosen[0]} (true) and {chosen[1]} (true) are both set; keep one of them")
    if chosen == ["cut_cross_entropy"]:
        s.note("cut_cross_entropy: the estimate is for a fused linear loss, which never stores all logits either")
    parts = [bool(s.get(f"liger_{part}")) for part in ("rms_norm", "rope", "glu_activation")]
    if any(parts) and not all(parts):
        s.note("liger_rms_norm, liger_rope and liger_glu_activation are in the estimate together only; it uses PyTorch's kernels")
    return {"loss": losses[chosen[0]] if chosen else "full-logits", "kernels": "fused" if all(parts) else "torch"}


def _adapters(s: Settings, model: ModelArchitecture | None, cast: bool) -> dict[str, Any]:
    names = s.get("lora_target_modules")
    linear = s.get("lora_target_linear")
    chosen = "all-linear" if linear else targets(names, model, s, "lora_target_modules") if names else None
    if linear and names and s.given("lora_target_modules"):
        s.note("lora_target_linear (true) puts adapters on every linear layer, whatever lora_target_modules names")
    chosen = chosen or peft_targets(s, model, "lora_target_modules")
    fields: dict[str, Any] = {"lora_target_modules": chosen} if chosen else {}
    fields["adapter_precision"] = "fp32" if s.get("peft_autocast_adapter_dtype") and not cast else "bf16"
    if kept := s.get("lora_modules_to_save"):
        fields["modules_to_save"] = saved(kept, s, "lora_modules_to_save")
    return fields


def write_axolotl(run: Scenario) -> dict[str, Any]:
    """A file of `axolotl train`."""
    dtype, flags, engine = written_precision(run)
    keys: dict[str, Any] = {"base_model": run.model.name}
    if run.method != "full":
        keys |= _written_adapters(run)
    if engine == "deepspeed" or dtype == "float16":
        keys |= flags
    elif run.precision == "fp32" and engine != "fsdp":
        keys["bf16"] = False
    else:
        keys["bf16"] = "auto" if run.autocast else "full"
    keys |= {"optimizer": "muon"} if run.optimizer == "muon" else written_optimizer(run, "optimizer")
    keys["gradient_checkpointing"] = "offload" if run.activation_offload else run.gradient_checkpointing != "none"
    if run.gradient_checkpointing != "none":
        keys["gradient_checkpointing_kwargs"] = {"use_reentrant": run.gradient_checkpointing == "full-reentrant"}
    keys["attn_implementation"] = written_attention(run)
    keys["sample_packing"] = run.attention.startswith("flash")
    keys |= _written_liger(run)
    if engine == "fsdp":
        config = {
            "reshard_after_forward": run.sharding != "zero2",
            "offload_params": run.sharding == "fsdp-offload",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        }
        return keys | {"fsdp_version": 2, "fsdp_config": config}
    return keys | written_sharding(run, engine)


def _written_adapters(run: Scenario) -> dict[str, Any]:
    four = run.quantization in ("nf4", "nf4-double-quant", "fp4")
    keys: dict[str, Any] = {"adapter": "qlora" if four else "lora", "lora_alpha": 2 * run.lora_rank}
    if four:
        keys["load_in_4bit"] = True
        kwargs = {"bnb_4bit_quant_type": run.quantization[:3], "bnb_4bit_use_double_quant": run.quantization.endswith("double-quant")}
        keys |= {} if run.quantization == "nf4-double-quant" else {"bnb_config_kwargs": kwargs}
    elif run.quantization == "int8":
        keys["load_in_8bit"] = True
    elif run.quantization == "gptq-int4":
        keys["gptq"] = True
    keys |= (
        {"lora_target_linear": True} if run.lora_target_modules == "all-linear" else {"lora_target_modules": list(run.lora_target_modules)}
    )
    if run.modules_to_save:
        keys["lora_modules_to_save"] = list(run.modules_to_save)
    return keys | ({"peft_autocast_adapter_dtype": False} if run.adapter_precision == "bf16" else {})


def _written_liger(run: Scenario) -> dict[str, Any]:
    loss = {"fused-linear": "liger_fused_linear_cross_entropy", "triton": "liger_cross_entropy", "chunked": "chunked_cross_entropy"}.get(
        run.loss
    )
    keys: dict[str, Any] = dict.fromkeys(("liger_rms_norm", "liger_rope", "liger_glu_activation"), True) if run.kernels == "fused" else {}
    plugin = {"plugins": ["axolotl.integrations.liger.LigerPlugin"]} if keys or loss and loss.startswith("liger") else {}
    return plugin | keys | ({loss: True} if loss else {})
