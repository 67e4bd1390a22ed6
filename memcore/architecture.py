"""What a model is made of: the shapes of `config.json` turned into named modules that know their parameters.

A model is a list of decoder layers (`Block`), each a tuple of modules under the names its family uses, plus the modules
outside the layers. Nothing here knows about bytes, training or PyTorch; `layers` reads a block's modules and says what
a training step keeps for them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

LINEAR_ROLES = (
    # attention: separate or fused projections, output
    "q",
    "k",
    "v",
    "qkv",
    "o",
    # latent attention (DeepSeek): low-rank query and key-value paths
    "q_a",
    "q_b",
    "kv_a",
    "kv_b",
    # MLP: gated (gate, up, down; or gate_up fused) or plain (up, down)
    "gate",
    "up",
    "gate_up",
    "down",
    # mixture of experts: the router, and the shared expert's own MLP and gate
    "router",
    "shared_gate",
    "shared_up",
    "shared_gate_up",
    "shared_down",
    "shared_router",
    # anything else: counted, adapted by name, and given a plain product's memory
    "other",
)
NORM_ROLES = (
    "input",
    "post_attention",
    "pre_mlp",
    "post_mlp",  # the residual stream, in the order a block meets them
    "q",
    "k",
    "q_a",
    "kv_a",  # inside attention
    "other",
)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix product, `out_features x in_features`, with or without a bias."""

    name: str
    """As the family names it, for example "q_proj"; what LoRA's `target_modules` refers to."""
    role: str
    """What it does in its block: one of LINEAR_ROLES, by which `layers` finds it whatever the family calls it."""
    in_features: int
    out_features: int
    bias: bool = False
    kind: str = "linear"
    """"linear" (nn.Linear: LoRA and quantization reach it) | "conv1d" (GPT-2), "subclass" (Falcon): LoRA reaches it,
    bitsandbytes in transformers 5 replaces only what is exactly nn.Linear |
    "router" (no nn.Linear in the measured libraries: neither reaches it)."""

    @property
    def weight_parameters(self) -> int:
        return self.in_features * self.out_features

    @property
    def parameters(self) -> int:
        return self.weight_parameters + (self.out_features if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation over the last `size` elements."""

    name: str
    role: str
    """Where it stands: one of NORM_ROLES."""
    size: int
    kind: str = "rms"
    """"rms" (Llama: weight times the 16-bit result) | "rms-fp32-weight" (Gemma, OLMo 2, gpt-oss: weight applied in float32) | "layer" (nn.LayerNorm)."""
    weight: bool = True
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.size * (self.weight + self.bias)


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts, each a (gated) MLP; all of them are resident, `experts_per_token` of them work on a token."""

    name: str
    num_experts: int
    experts_per_token: int
    hidden_size: int
    intermediate_size: int
    gated: bool = True
    bias: bool = False
    fused: bool = True
    """One 3-D parameter per projection (transformers 5), which bitsandbytes does not quantize; else separate nn.Linear."""

    @property
    def weight_parameters(self) -> int:
        return self.num_experts * (3 if self.gated else 2) * self.hidden_size * self.intermediate_size

    @property
    def parameters(self) -> int:
        up = self.intermediate_size * (2 if self.gated else 1)
        return self.weight_parameters + (self.num_experts * (up + self.hidden_size) if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Weight:
    """Any other parameter: a learned position table, attention sinks, a convolution, a state-space matrix."""

    name: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """A lookup table of `num_embeddings` rows."""

    name: str
    num_embeddings: int
    embedding_dim: int

    @property
    def parameters(self) -> int:
        return self.num_embeddings * self.embedding_dim


MIXTRAL, QWEN2_MOE = {"up": ("w1", "w3"), "down": ("w2",)}, {"up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
EXPERT_NAMES = {name: MIXTRAL for name in ("mixtral", "minimax", "minimax_m2")} | {
    name: QWEN2_MOE
    for name in (
        "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe",
        "solar_open", "mellum", "qwen3_moe", "qwen3_omni_moe", "qwen3_next", "hunyuan_v1_moe", "flex_olmo", "olmoe", "sarvam_mla", "exaone_moe",
        "cohere2_moe", "qwen3_vl_moe",
    )
}  # fmt: skip
"""Model types whose stacked experts PEFT adapts, and the names it knows their projections by (see `adapters`)."""
ROUTER_NAME = "gate"
"""What PEFT calls the router of these model types."""

Module = Linear | Norm | Experts | Weight | Embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The shape of a layer's attention."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Width of one query or key head; stored, never derived from hidden_size."""
    value_head_dim: int
    rotary_dim: int = 0
    """Elements of a head that are rotated; 0 where positions are not rotary."""
    sliding_window: int = 0
    """Tokens a query sees; 0: all of them."""
    softcap: bool = False
    """Scores pass through tanh, which flash kernels of PyTorch do not do."""
    dropout: float = 0.0

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def value_size(self) -> int:
        return self.num_key_value_heads * self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One decoder layer: its modules by name and role, and how they are wired."""

    mixers: tuple[str, ...] = ("attention",)
    """What mixes tokens: "attention", "latent_attention", "mamba", "mamba2", "linear_attention", "recurrent", "convolution", and attention
    to an image ("cross_attention"), with another layer's keys and values ("shared_attention"), to compressed ones
    ("compressed_attention") or with routed queries ("routed_attention"); empty for an MLP-only layer."""
    modules: tuple[Module, ...]
    attention: Attention | None = None
    activation: str = "silu"
    """As in config.json (`hidden_act`): "silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2"; of the gate where the MLP is gated."""
    parallel: bool = False
    """Attention and MLP read the same input and are added together (GPT-NeoX, Falcon, Phi, Cohere)."""
    rotary: str = "half"
    """How positions are rotated in the library's code: "half" (Llama: x*cos + rotate_half(x)*sin), "cat" (only a part of a
    head is rotated and concatenated with the rest, so query and key are new tensors), "interleaved", "" (none)."""
    hidden_dropout: float = 0.0
    """Dropout on the residual branches (GPT-2, OPT)."""
    shares: str = ""
    """Not empty: the modules named here are one copy shared with other layers that give the same word (Zamba 2)."""

    @property
    def parameters(self) -> int:
        return sum(m.parameters for m in self.modules)

    def __getitem__(self, name: str) -> Module:
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(module.name == name for module in self.modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A vision or audio encoder with its projector: counted, frozen by default, not part of the language model."""

    name: str
    parameters: int
    hidden_size: int = 0
    num_layers: int = 0
    intermediate_size: int = 0
    tokens_per_image: int = 0
    linear_parameters: int = 0
    """Parameters of nn.Linear weights inside, which k-bit loading quantizes too unless told otherwise."""
    num_attention_heads: int = 1
    head_dim: int = 0
    norm: str = "layer"
    """Kind of the norms in its layers, as in `Norm.kind`."""
    sandwich_norms: bool = False
    """Norms after attention and MLP too (Gemma)."""
    qk_norm: int = 0
    """Width over which queries and keys are normalised; 0: they are not."""
    fused_qkv: bool = False
    """One matrix for q, k and v; their heads are cut out of its output (Qwen-VL, GLM-4V)."""
    rotary: bool = False
    gated: bool = False
    activation: str = "gelu"
    patches_per_token: float = 1.0
    """Image patches that become one token of the language model."""
    kept_beside: int = 0
    """Elements a patch that one layer keeps beside what a language model's would: of layer scales, of a norm on the values."""

    @property
    def reads_images(self) -> bool:
        """Its layers are known and run on the patches of images."""
        return self.num_layers > 0 and self.name != "audio"


@dataclass(frozen=True, kw_only=True)
class ModelArchitecture:
    """A causal language model, described completely by its shapes.

    Built by `memcore.model` (catalog) or `memcore.model_from_config` (any config.json). Sizes are elements, never bytes.
    """

    name: str
    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Block, ...]
    """One entry per decoder layer, first to last; equal layers are the same object."""
    embed_tokens: Embedding
    lm_head: Linear
    """Its weight is the embedding's where `tie_word_embeddings`, and then counted once."""
    final_norm: Norm | None
    tie_word_embeddings: bool
    extra: tuple[Module, ...] = ()
    """Parameters outside layers, embedding, final norm and head: learned positions, per-layer embeddings, projections."""
    towers: tuple[Tower, ...] = ()
    max_position_embeddings: int = 0
    final_softcap: bool = False
    """Logits pass through tanh (Gemma 2): one more tensor as wide as the vocabulary."""
    embedding_dropout: float = 0.0
    uncertain: tuple[str, ...] = ()
    """What is understood but not measured in this architecture, one sentence each; empty where every formula is measured."""
    config: tuple[tuple[str, object], ...] = field(default=(), repr=False, compare=False)
    """The keys of config.json this was built from, for display."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.model_type, self.vocab_size, self.hidden_size, len(self.layers), self.parameters))

    @cached_property
    def distinct_layers(self) -> dict[Block, int]:
        """The different kinds of layer and how many there are of each."""
        return dict(Counter(self.layers))

    @cached_property
    def layer_parameters(self) -> int:
        shared: set[str] = set()
        total = 0
        for block in self.layers:
            for module in block.modules:
                if block.shares and module.name.startswith(block.shares):
                    if module.name in shared:
                        continue
                    shared.add(module.name)
                total += module.parameters
        return total

    @cached_property
    def text_parameters(self) -> int:
        """Parameters of the language model alone."""
        outside = self.embed_tokens.parameters + (self.final_norm.parameters if self.final_norm else 0)
        head = (self.lm_head.out_features if self.lm_head.bias else 0) if self.tie_word_embeddings else self.lm_head.parameters
        return self.layer_parameters + outside + head + sum(m.parameters for m in self.extra)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole checkpoint, towers included."""
        return self.text_parameters + sum(t.parameters for t in self.towers)

    @cached_property
    def lora_targets(self) -> tuple[str, ...]:
        """Names of the layers' linear modules that an adapter can be put on, in the order they appear."""
        names: dict[str, None] = {}
        stacked = EXPERT_NAMES.get(self.model_type)
        for block in self.distinct_layers:
            for module in block.modules:
                if isinstance(module, Linear) and module.kind != "router":
                    names[module.name] = None
                elif isinstance(module, Linear) and stacked:
                    names[ROUTER_NAME] = None
                elif isinstance(module, Experts) and stacked:  # by their own name, and by those of the projections stacked in them
                    names |= dict.fromkeys((module.name, *stacked["up"], *stacked["down"]))
        return tuple(names)
