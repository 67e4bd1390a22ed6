"""A decoder layer as a list of operations, for every family and every training method.

`Layers` runs a block's forward pass on a tape: it finds the modules by their role, wraps them in the adapters and the
quantization of the run, and calls the operations in the order the library's own code does. What the layer keeps, what
one recomputation holds and where its peak is all follow from that; there is no closed form per family.

Source of the orders: transformers 5.24 `models/*/modeling_*.py`, peft 0.21 `tuners/lora/{layer,bnb}.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from . import adapters
from . import operations as op
from .architecture import Block, Experts, Linear, ModelArchitecture, Norm, Weight
from .tape import INDEX, ONE, RANK, RANK_TOKENS, SEQUENCE, TOKENS, Tape, Tensor
from .units import FLOAT32, HALF, INT32, INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How a run treats a model's modules: everything about a Scenario that decides which tensors there are, and no sizes."""

    trains_base: bool
    """Full fine-tuning: every weight gets a gradient."""
    adapters: bool
    targets: tuple[str, ...] | None
    """Module names that get an adapter; None: every linear module of the layers."""
    saved_modules: tuple[str, ...]
    weight_width: int
    """Bytes of a weight that is not quantized."""
    norm_width: int
    outer_width: int
    """Bytes of an embedding or head weight; 4 where k-bit preparation upcasts them."""
    adapter_width: int
    quantization: str
    """Family of the quantization: "none", "bitsandbytes", "gptq", "mlx"; bitsandbytes also "int8"."""
    fused_experts: bool
    """All experts of a layer are one parameter a projection; else each is a linear module of its own."""
    dequantizes: bool
    """A quantized matrix is unpacked to 16 bits where it is used."""
    scale_block: int
    """Weights per scale where the scales are quantized too and unpacked first; 0: they are not."""
    quantizes_head: bool
    autocast: bool
    dropout: bool
    checkpointing: str
    attention: str
    masked: bool
    """The length reaches a sliding window: PyTorch's SDPA gets a mask."""
    loss: str
    fused_kernels: bool
    repeats_kv: bool
    """The library copies k and v to the number of query heads before a flash kernel."""
    casts_quantized_input: bool
    """PEFT before 0.15 casts the input of an adapter on a quantized layer under autocast too."""
    holds_outputs: bool
    sharded_gradients: bool
    sharded_weights: bool
    """FSDP: what a frozen layer keeps of its checkpointed input differs (see `step.compile_step`)."""
    sequence_parallel: int
    """GPUs that divide the residual stream's tokens between the products; 1: none."""
    upcasts_logits: str
    shifts_logits: bool
    chunks: int
    fused_qkv: bool
    """Lit-GPT: one matrix for q, k and v, with an adapter on q and v whose output is kept."""
    keeps_quantized_input: bool
    """bitsandbytes before 0.42 keeps the input of every quantized product, and unpacks a matrix in its own dtype before it casts it."""


@cache
def by_role(block: Block) -> dict[str, Linear | Norm]:
    """The modules of a block that `Layers` looks for: linears by their role, norms by their role and "_norm"."""
    return {
        m.role + ("_norm" if isinstance(m, Norm) else ""): m for m in block.modules if isinstance(m, (Norm, Linear)) and m.role != "other"
    }


class Layers:
    """The forward passes of one model's layers under one flow, on one tape."""

    def __init__(self, model: ModelArchitecture, flow: Flow, tape: Tape):
        self.model, self.flow, self.tape = model, flow, tape
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None

    # ---- parameters

    def parameter(self, elements, width: int, trains: bool) -> Tensor:
        return self.tape.leaf(elements, width, requires_grad=trains, keeps=True)

    def weight(self, parameter: Tensor, key: object = None) -> Tensor:
        """The weight as a matrix product sees it: a 16-bit copy under autocast, cached where it trains."""
        if not self.tape.autocast or parameter.width == HALF:
            return parameter
        if not parameter.requires_grad:
            return op.cast(self.tape, parameter, HALF, INDEX["weight_casts"])
        cached = self.tape.cast_cache.get(key)
        if cached is None:
            cached = op.cast(self.tape, parameter, HALF, INDEX["weight_casts"])
            self.tape.cast_cache[key] = cached
        return cached

    # ---- modules

    def base_linear(self, m: Linear, x: Tensor, *, trains: bool | None = None, width: int | None = None) -> Tensor:
        flow, tape = self.flow, self.tape
        rows = self._rows(x, m.in_features)
        out = rows * m.out_features
        trains = flow.trains_base if trains is None else trains
        if self._quantized(m):
            inside = op.cast(tape, x, HALF)
            elements = ONE * (m.weight_parameters if flow.dequantizes else 0)
            scratch = elements / flow.scale_block if flow.scale_block else None
            copies = 2 if flow.keeps_quantized_input else 1
            result = op.matmul_dequantized(
                tape,
                inside,
                elements,
                out,
                scratch=scratch,
                copies=copies,
                keeps_input=flow.keeps_quantized_input or flow.quantization == "int8",
            )
            del inside
            return op.cast(tape, result, x.width)
        width = flow.outer_width if width is None else width
        weight = self.weight(self.parameter(ONE * m.weight_parameters, width, trains), (id(m), "weight"))
        bias = self.weight(self.parameter(ONE * m.out_features, width, trains), (id(m), "bias")) if m.bias else None
        if tape.autocast:
            x = op.cast(tape, x, HALF)
        return op.matmul(tape, x, weight, out, bias=bias)

    def linear(self, m: Linear, x: Tensor) -> Tensor:
        flow, tape = self.flow, self.tape
        if not self.adapted(m):
            return self.base_linear(m, x)
        argument = x  # noqa: F841  held by nn.Module's call until the module returns
        result = self.base_linear(m, x)
        if self._quantized(m):
            result = op.clone(tape, result)
            convert = not tape.autocast
            expected = result.width
            if flow.fused_kernels:
                return op.add(tape, result, self._fused_adapter(m, x))
            if convert or flow.casts_quantized_input:
                x = op.cast(tape, x, flow.adapter_width)
            output = self._adapter(m, x)
            if convert:
                output = op.cast(tape, output, expected)
            return op.add(tape, result, output)
        width = result.width
        x = op.cast(tape, x, flow.adapter_width)
        result = op.add(tape, result, self._adapter(m, x))
        return op.cast(tape, result, width)

    def _adapter(self, m: Linear, x: Tensor) -> Tensor:
        """lora_B(lora_A(dropout(x))) * scaling."""
        flow, tape = self.flow, self.tape
        rows = self._rows(x, m.in_features)
        a = self.weight(self.parameter(RANK * m.in_features, flow.adapter_width, True), (id(m), "lora_A"))
        b = self.weight(self.parameter(RANK * m.out_features, flow.adapter_width, True), (id(m), "lora_B"))
        if flow.dropout:
            x = op.dropout(tape, x)
        if tape.autocast:
            x = op.cast(tape, x, HALF)
        inner = op.matmul(tape, x, a, self._ranked(rows))
        del x
        return op.scale(tape, op.matmul(tape, inner, b, rows * m.out_features))

    def _fused_adapter(self, m: Linear, x: Tensor) -> Tensor:
        """The adapter in a fused kernel: A x is computed again in the backward pass; o's input is kept by attention already."""
        flow, tape = self.flow, self.tape
        a = self.weight(self.parameter(RANK * m.in_features, flow.adapter_width, True), (id(m), "lora_A"))
        b = self.weight(self.parameter(RANK * m.out_features, flow.adapter_width, True), (id(m), "lora_B"))
        rows = self._rows(x, m.in_features)
        if flow.dropout:
            x = op.dropout(tape, x)
        return op.fused_product(tape, x, (a, b), rows * m.out_features, keeps_input=m.role != "o")

    def norm(self, m: Norm, x: Tensor, width: int | None = None) -> Tensor:
        flow, tape = self.flow, self.tape
        rows = x.elements / m.size
        width = flow.norm_width if width is None else width
        weight = self.parameter(ONE * m.size, width, flow.trains_base) if m.weight else None
        if flow.fused_kernels:
            return op.fused_norm(tape, x, weight, rows)
        if m.kind == "layer":
            bias = self.parameter(ONE * m.size, width, flow.trains_base) if m.bias else None
            return op.layer_norm(tape, x, weight, rows, bias)
        return op.rms_norm(
            tape, x, weight, rows, fp32_weight=m.kind == "rms-fp32-weight", one_plus=self.model.model_type.startswith("gemma")
        )

    def adapted(self, m: Linear) -> bool:
        return self.flow.adapters and adapters.reaches(self.model, m, self.flow.targets, self.flow.fused_experts)

    def _quantized(self, m: Linear) -> bool:
        if self.flow.quantization == "none" or m.kind != "linear":
            return False
        return self.flow.quantizes_head or m is not self.model.lm_head

    def _rows(self, x: Tensor, size: int) -> np.ndarray:
        return x.elements / size

    def _ranked(self, rows: np.ndarray) -> np.ndarray:
        """`rows` times the rank: tokens become rank*tokens."""
        return rows[1] * RANK_TOKENS

    # ---- one layer

    def forward(self, block: Block, x: Tensor) -> Tensor:
        roles = by_role(block)
        return self._parallel(block, roles, x) if block.parallel else self._sequential(block, roles, x)

    def _sequential(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        tape = self.tape
        if block.mixers:
            residual = x
            x = self._residual_norm(roles, "input", x)
            x = self._mix(block, roles, x)
            x = self._residual_norm(roles, "post_attention", x)
            if block.hidden_dropout:
                x = op.dropout(tape, x)
            x = self._join(residual, x)
            del residual
        if not self._has_mlp(block, roles):
            return x
        residual = x
        x = self._residual_norm(roles, "pre_mlp", x)
        x = self._mlp(block, roles, x)
        x = self._residual_norm(roles, "post_mlp", x)
        if block.hidden_dropout:
            x = op.dropout(tape, x)
        return self._join(residual, x)

    def _join(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x; Granite multiplies x first."""
        if self.model.model_type.startswith("granite"):
            return op.add(self.tape, residual, op.scale(self.tape, x))
        return op.add(self.tape, residual, x)

    def _parallel(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        """GPT-NeoX, Falcon, Phi, Cohere: attention and MLP read the layer's input, through one norm or two."""
        tape = self.tape
        normed = self._residual_norm(roles, "input", x)
        attention = self._mix(block, roles, normed)
        if "pre_mlp_norm" in roles:
            del normed
            normed = self._residual_norm(roles, "pre_mlp", x)
        mlp = self._mlp(block, roles, normed)
        del normed
        mlp = op.add(tape, mlp, attention)
        del attention
        return op.add(tape, mlp, x)

    def _residual_norm(self, roles: dict, role: str, x: Tensor) -> Tensor:
        norm = roles.get(role + "_norm")
        return x if norm is None else self.norm(norm, x)

    @staticmethod
    def _has_mlp(block: Block, roles: dict) -> bool:
        return "down" in roles or any(isinstance(m, Experts) for m in block.modules)

    # ---- token mixers

    def _mix(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        x = self.gathered(x)
        outs = [getattr(self, MIXERS.get(mixer, "_unmeasured_mixer"))(block, roles, x) for mixer in block.mixers]
        out = outs.pop()
        while outs:
            out = op.add(self.tape, outs.pop(), out)
        return self.scattered(out)

    def gathered(self, x: Tensor) -> Tensor:
        """The residual stream as a product needs it: all tokens."""
        return op.all_gather(self.tape, x, self.flow.sequence_parallel) if self.flow.sequence_parallel > 1 else x

    def scattered(self, x: Tensor) -> Tensor:
        return op.reduce_scatter(self.tape, x, self.flow.sequence_parallel) if self.flow.sequence_parallel > 1 else x

    def _attention(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        tape, shape = self.tape, block.attention
        q, k, v = self._project(block, roles, x)
        if "q_norm" in roles:
            q = self.norm(roles["q_norm"], q)
        if "k_norm" in roles:
            k = self.norm(roles["k_norm"], k)
        copied = block.rotary == "cat" or self.flow.fused_qkv or (block.rotary == "interleaved" and 0 < shape.rotary_dim < shape.head_dim)
        if block.rotary:
            cos, sin = self._rotation(block)
            q, k = self._rotate(block, q, cos, sin, copied), self._rotate(block, k, cos, sin, copied)
            del cos, sin
        out, as_q = self._attend(block, q, k, v)
        if copied and as_q:
            out = op.clone(tape, out)
        del q, k, v
        return self.linear(roles["o"], out)

    def _project(self, block: Block, roles: dict, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape, shape = self.tape, block.attention
        if self.flow.fused_qkv:
            return tuple(
                op.split(tape, self._fused_qkv(block, x), [TOKENS * n for n in (shape.query_size, shape.key_size, shape.value_size)])
            )
        if "qkv" in roles:
            fused = self.linear(roles["qkv"], x)
            sizes = [TOKENS * n for n in (shape.query_size, shape.key_size, shape.value_size)]
            if block.parallel and shape.num_key_value_heads == 1:  # Falcon: k and v are picked by index, which copies
                k, v = (op.gather(tape, fused, size, tape.new(ONE, INT64)) for size in sizes[1:])
                return op.narrow(tape, fused, sizes[0]), k, v
            if block.rotary == "cat" and not block.parallel:  # Phi-3: three slices
                return tuple(op.narrow(tape, fused, size) for size in sizes)
            return tuple(op.split(tape, fused, sizes))
        q = op.view(tape, self.linear(roles["q"], x))
        k = op.view(tape, self.linear(roles["k"], x))
        v = op.view(tape, self.linear(roles["v"] if "v" in roles else roles["k"], x))
        return q, k, v

    def _fused_qkv(self, block: Block, x: Tensor) -> Tensor:
        """Lit-GPT's LoRAQKVLinear: q and v adapted by one product, its output scattered into zeros and kept."""
        flow, tape, shape = self.flow, self.tape, block.attention
        size, adapted = self.model.hidden_size, shape.query_size + shape.value_size
        whole = Linear("qkv", "qkv", size, adapted + shape.key_size)
        result = self.base_linear(whole, x)
        if not flow.adapters:
            return result
        a = self.parameter(RANK * (2 * size), flow.adapter_width, True)
        b = self.parameter(RANK * adapted, flow.adapter_width, True)
        dropped = op.dropout(tape, x) if flow.dropout else x
        inner = op.matmul(tape, dropped, a, RANK_TOKENS * 2)
        del dropped
        output = op.matmul(tape, inner, b, TOKENS * adapted)
        del inner
        padded = op.scatter(tape, output, result.elements)
        del output
        return op.add(tape, result, op.scale(tape, padded))

    def _rotation(self, block: Block) -> tuple[Tensor, Tensor]:
        if not self.model.model_type.startswith("glm") or block.rotary != "interleaved":
            return self.cos, self.sin
        size = SEQUENCE * block.attention.rotary_dim  # GLM repeats each number for its pair, in every layer
        return tuple(self.tape.new(size, self.cos.width) for _ in range(2))

    def _rotate(self, block: Block, x: Tensor, cos: Tensor, sin: Tensor, copied: bool) -> Tensor:
        if self.flow.fused_kernels:
            return op.scale(self.tape, x)  # in place; nothing is kept
        part = x.elements * (block.attention.rotary_dim / block.attention.head_dim)
        return op.rotate(self.tape, x, cos, sin, part=part, concatenate_rest=copied)

    def _attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, bool]:
        """The attention kernel PyTorch picks, in its order: flash, memory-efficient, math. Also whether its output is laid out as q is."""
        flow, tape, shape = self.flow, self.tape, block.attention
        heads, rows, model_type = shape.num_attention_heads, TOKENS, self.model.model_type
        grouped = shape.num_key_value_heads != heads
        if flow.fused_qkv and grouped and shape.num_key_value_heads == 1:
            return self._math_attention(block, q, k, v), False
        single = shape.num_key_value_heads == 1 and block.parallel  # Falcon always builds its mask
        wide_k, out_elements = TOKENS * (heads * shape.head_dim), TOKENS * (heads * shape.value_head_dim)
        package = flow.attention == "flash-attn" or (model_type.startswith(FLASH_PACKAGE) and flow.attention == "flash")
        sinks = any(isinstance(m, Weight) and m.name == "sinks" for m in block.modules)
        if sinks or flow.attention == "eager":
            if grouped:
                k, v = op.repeat_heads(tape, k, wide_k), op.repeat_heads(tape, v, out_elements)
            q, k, v = (op.clone(tape, t) if t.view else t for t in self._lowered(q, k, v))  # torch.matmul copies strided heads
            if sinks:
                return op.sink_attention(tape, q, k, v, out_elements, heads=heads), False
            return op.eager_attention(
                tape,
                q,
                k,
                v,
                out_elements,
                heads=heads,
                softcap=shape.softcap,
                attention_dropout=shape.dropout > 0,
                float32_softmax=model_type not in HALF_SOFTMAX,
            ), False
        q, k, v = self._lowered(q, k, v)
        if package:
            q, k, v = (op.cast(tape, t, HALF) for t in (q, k, v))
        masked = not package and (flow.attention == "sdpa" or single or (flow.masked and shape.sliding_window > 0))
        if shape.head_dim != shape.value_head_dim or shape.head_dim > 256 or masked or q.width == FLOAT32:
            if grouped and not masked and not single:
                return self._math_attention(block, q, k, v), False
            if grouped and not single:
                k, v = op.repeat_heads(tape, k, wide_k), op.repeat_heads(tape, v, out_elements)
            return op.efficient_attention(tape, q, k, v, out_elements, heads=heads, head_dim=shape.head_dim, rows=rows, bias=masked), False
        if flow.repeats_kv and grouped:
            k, v = op.repeat_heads(tape, k, wide_k), op.repeat_heads(tape, v, out_elements)
            grouped = False
        return op.flash_attention(tape, q, k, v, heads=heads, head_dim=shape.head_dim, rows=rows, grouped=grouped), True

    def _lowered(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As autocast hands them to a product or an attention kernel."""
        return tuple(op.cast(self.tape, t, HALF) for t in tensors) if self.tape.autocast else tensors

    def _math_attention(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """SDPA's own fallback in float32: scaled q and k, heads repeated, probabilities kept."""
        tape, shape = self.tape, block.attention
        heads = shape.num_attention_heads
        wide = TOKENS * heads * shape.head_dim
        k, v = op.repeat_heads(tape, k, wide), op.repeat_heads(tape, v, wide)
        q, k = op.scale(tape, q), op.scale(tape, k)
        scores = op._batched(tape, q, k, op.SCORES * heads, op.SCORES_TERM)
        scores = op.shift(tape, scores, op.SCORES_TERM)
        weights = op._unary(tape, scores, (None,), term=op.SCORES_TERM)
        del scores
        return op._batched(tape, weights, v, wide, op.WORKING)

    def _latent_attention(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        """DeepSeek: queries and key-values through low-rank projections; a part of each head is rotated and shared."""
        tape, shape = self.tape, block.attention
        heads, rope = shape.num_attention_heads, shape.rotary_dim
        nope = shape.head_dim - rope
        if "q_b" in roles:
            q = self.linear(roles["q_b"], self._residual_norm(roles, "q_a", self.linear(roles["q_a"], x)))
        else:
            q = self.linear(roles["q"], x)
        q = op.view(tape, q)
        q_nope, q_rope = op.split(tape, q, [TOKENS * heads * nope, TOKENS * heads * rope])
        low = roles["kv_a"]
        compressed = self.linear(low, x)
        latent, k_rope = op.split(tape, compressed, [TOKENS * (low.out_features - rope), TOKENS * rope])
        latent = self._residual_norm(roles, "kv_a", latent)
        expanded = op.view(tape, self.linear(roles["kv_b"], latent))
        k_nope, v = op.split(tape, expanded, [TOKENS * heads * nope, TOKENS * heads * shape.value_head_dim])
        q_rope = op.multiply(tape, q_rope, self.cos) if rope else q_rope
        k_rope = op.multiply(tape, k_rope, self.cos) if rope else k_rope
        k_rope = op.repeat_heads(tape, k_rope, TOKENS * heads * rope)
        q, k = op.concatenate(tape, [q_nope, q_rope]), op.concatenate(tape, [k_nope, k_rope])
        del q_nope, q_rope, k_nope, k_rope
        out, _ = self._attend(block, q, k, v)
        del q, k, v
        return self.linear(roles["o"], out)

    def _unmeasured_mixer(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        """State-space, recurrent and convolution mixers: every linear's input and output kept, float32 states beside.

        Not measured: the architecture says so in `uncertain`.
        """
        tape = self.tape
        linears = [m for m in block.modules if isinstance(m, Linear) and m.role in ("other", "q", "k", "v", "o")]
        size = self.model.hidden_size
        inner = max((m.out_features for m in linears), default=size)
        entry = Linear("mixer", "other", size, inner)
        h = (
            self.linear(entry, x)
            if not linears
            else self.linear(linears[0], x)
            if linears[0].in_features == size
            else self.base_linear(entry, x)
        )
        h = op.activation(tape, h, "silu")
        h = op.multiply(tape, h, self._gate(h))
        back = Linear("mixer_out", "other", int(h.elements[1]), size)
        return self.base_linear(back, h)

    def _gate(self, x: Tensor) -> Tensor:
        return op.clone(self.tape, x)

    # ---- MLP and experts

    def _mlp(self, block: Block, roles: dict, x: Tensor) -> Tensor:
        x = self.gathered(x)
        experts = next((m for m in block.modules if isinstance(m, Experts)), None)
        return self.scattered(self._mixture(block, roles, experts, x) if experts is not None else self._dense(block, roles, x, ""))

    def _dense(self, block: Block, roles: dict, x: Tensor, prefix: str) -> Tensor:
        tape = self.tape
        down = roles[prefix + "down"]
        if prefix + "gate_up" in roles:
            both = self.linear(roles[prefix + "gate_up"], x)
            gate, up = op.split(tape, both, [both.elements / 2, both.elements / 2])
            del both
            up = op.multiply(tape, up, op.activation(tape, gate, block.activation))
            return self.linear(down, up)
        if prefix + "gate" in roles:
            gate = op.activation(tape, self.linear(roles[prefix + "gate"], x), block.activation)
            return self.linear(down, op.multiply(tape, gate, self.linear(roles[prefix + "up"], x)))
        h = self.linear(roles[prefix + "up"], x)
        h = op.activation(tape, h, "gelu" if self.flow.fused_qkv and block.activation == "gelu_new" else block.activation)
        return self.linear(down, h)

    def _mixture(self, block: Block, roles: dict, experts: Experts, x: Tensor) -> Tensor:
        """Router, `experts_per_token` experts for each token (grouped products), and the shared expert beside them."""
        flow, tape = self.flow, self.tape
        residual = x
        k = experts.experts_per_token
        router = roles["router"]
        seen = op.cast(tape, x, FLOAT32) if self.model.model_type.startswith(FLOAT32_ROUTER) else x
        logits = self._routing(router, seen) if self.adapted(router) else self.base_linear(router, seen)
        del seen
        weights, chosen = self._route(logits, TOKENS * k, x.width)
        del logits
        rows = TOKENS * (k * experts.hidden_size)
        order, sample, back = (tape.new(TOKENS * k, INT64) for _ in range(3))
        routed = op.gather(tape, x, rows, order)
        weights = op.gather(tape, weights, TOKENS * k, sample)
        if experts.fused and flow.fused_experts:
            out = self._stacked_experts(block, experts, routed)
        else:  # one after the other: together they keep what one would keep of all the tokens they see, beside one's weights
            out = self._dense(block, {m.role: m for m in adapters.expert_linears(self.model, experts)}, routed, "")
        weighted = op.multiply(tape, out, weights)
        weighted = op.gather(tape, weighted, rows, back)
        result = op.cast(tape, op._unary(tape, weighted, (), elements=TOKENS * experts.hidden_size), x.width)
        del routed, out, weighted, weights, order, sample, back, chosen
        if "shared_down" in roles:
            result = op.add(tape, result, self._dense(block, roles, residual, "shared_"))
        return result

    def _stacked_experts(self, block: Block, experts: Experts, routed: Tensor) -> Tensor:
        """All experts as one parameter a projection, in grouped products."""
        flow, tape = self.flow, self.tape
        k = experts.experts_per_token
        up_ranks, down_ranks = adapters.expert_ranks(self.model, experts, flow.targets) if flow.adapters else (0, 0)
        offsets = tape.new(ONE * experts.num_experts, INT32)
        wide = experts.intermediate_size * (2 if experts.gated else 1)
        up_weight = self._expert_weight(experts, wide, experts.hidden_size, up_ranks)
        out = op.matmul(tape, routed, up_weight, TOKENS * (k * wide), beside=offsets)
        if experts.bias:
            out = op.add_rows(tape, out, TOKENS * k)
        del up_weight
        out = self._gate_experts(block, experts, out)
        down_weight = self._expert_weight(experts, experts.hidden_size, experts.intermediate_size, down_ranks)
        return op.matmul(tape, out, down_weight, TOKENS * (k * experts.hidden_size))

    def _route(self, logits: Tensor, elements, width: int) -> tuple[Tensor, Tensor]:
        """The weights of the chosen experts and their numbers: softmax over all in float32, then the largest; gpt-oss the other way round."""
        tape, model_type = self.tape, self.model.model_type
        if model_type == "gpt_oss":
            top, chosen = op.top_k(tape, logits, elements)
            return op._unary(tape, top, (None,)), chosen
        probabilities = op._unary(tape, op.cast(tape, logits, FLOAT32), (None,))
        top, chosen = op.top_k(tape, probabilities, elements)
        if model_type != "deepseek_v2":  # the others divide by the sum of the chosen
            top = op.normalise(tape, top)
        return (top if model_type.startswith(FLOAT32_WEIGHTS) else op.cast(tape, top, width)), chosen

    def _gate_experts(self, block: Block, experts: Experts, both: Tensor) -> Tensor:
        tape = self.tape
        if not experts.gated:
            return op.activation(tape, both, block.activation)
        if experts.bias:
            return op.clamped_swiglu(tape, both)
        gate, up = op.split(tape, both, [both.elements / 2, both.elements / 2])
        return op.multiply(tape, op.activation(tape, gate, block.activation), up)

    def _expert_weight(self, experts: Experts, rows: int, columns: int, ranks: int) -> Tensor:
        """The experts' matrices as one parameter; with an adapter W + B A is made whole, and kept for the backward pass."""
        flow, tape = self.flow, self.tape
        elements = ONE * (experts.num_experts * rows * columns)
        weight = self.parameter(elements, flow.outer_width, flow.trains_base)
        if not ranks:
            return weight
        a, b = (
            op.cast(
                tape,
                self.parameter(RANK * (experts.num_experts * ranks * side), flow.adapter_width, True),
                flow.weight_width,
                INDEX["weight_casts"],
            )
            for side in (columns, rows)
        )
        return op.merged_weight(tape, a, b, elements, flow.weight_width)

    def _routing(self, router: Linear, x: Tensor) -> Tensor:
        flow, tape = self.flow, self.tape
        a, b = (
            op.cast(tape, self.parameter(RANK * side, flow.adapter_width, True), flow.weight_width, INDEX["weight_casts"])
            for side in (router.in_features, router.out_features)
        )
        weight = op.merged_weight(tape, a, b, ONE * router.weight_parameters, flow.weight_width)
        return op.matmul(tape, x, weight, TOKENS * router.out_features)

    # ---- positions

    def rotary_tables(self, width: int) -> None:
        """cos and sin for every position: made once a step, shared by all layers."""
        rotary = max((b.attention.rotary_dim for b in self.model.distinct_layers if b.attention is not None), default=0)
        if rotary:
            self.cos, self.sin = (self.tape.new(SEQUENCE * rotary, width, INDEX["activations"]) for _ in range(2))
            self.cos.storage.saves = self.sin.storage.saves = 1  # held by the model, whatever the layers save and release


FLASH_PACKAGE = ("gemma2", "gemma3")
"""Model types measured with the flash-attn package: PyTorch's SDPA knows neither soft-capping nor sliding windows."""
FLOAT32_ROUTER = ("deepseek", "kimi", "glm4_moe", "dots1")
"""Model types whose router works in float32 and keeps its input so."""
FLOAT32_WEIGHTS = ("mixtral", "deepseek")
"""Model types whose experts are weighted in float32."""
HALF_SOFTMAX = ("gpt2", "gpt_bigcode", "biogpt", "xglm", "opt")
"""Model types whose eager attention leaves the softmax in the dtype of the scores."""
MIXERS = {"attention": "_attention", "latent_attention": "_latent_attention"}
