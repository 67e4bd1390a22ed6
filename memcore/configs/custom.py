"""A model of a given size and no known shape: Llama's, scaled from the nearest well-known one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..architecture import ModelArchitecture
from .blocks import language_model
from .dense import LLAMA
from .reading import ConfigError, Keys

SMALLEST, LARGEST = 10**6, 10**14
PLAIN_SIZES = "give the number of parameters itself, for example 7e9 for 7 billion"


@dataclass(frozen=True)
class Shape:
    parameters: float
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tied: bool


SHAPES = (  # as in the config.json of each
    Shape(134_515_008, 576, 30, 1536, 9, 3, 49152, True),  # SmolLM2-135M
    Shape(361_821_120, 960, 32, 2560, 15, 5, 49152, True),  # SmolLM2-360M
    Shape(1_235_814_400, 2048, 16, 8192, 32, 8, 128256, True),  # Llama 3.2 1B
    Shape(3_212_749_824, 3072, 28, 8192, 24, 8, 128256, True),  # Llama 3.2 3B
    Shape(8_030_261_248, 4096, 32, 14336, 32, 8, 128256, False),  # Llama 3.1 8B
    Shape(32_763_876_352, 5120, 64, 27648, 40, 8, 152064, False),  # Qwen2.5-32B, without its biases
    Shape(70_553_706_496, 8192, 80, 28672, 64, 8, 128256, False),  # Llama 3.1 70B
    Shape(405_853_388_800, 16384, 126, 53248, 128, 8, 128256, False),  # Llama 3.1 405B
)


def custom_model(parameters: float) -> ModelArchitecture:
    """A Llama-shaped model with a given number of parameters.

    Takes the well-known shape nearest in size, scales depth and width with the third root of the ratio (parameters go
    as depth times width squared), and chooses the width of the feed-forward part so that the count is met to within
    0.1 %. Below the smallest shape the vocabulary shrinks with the model.
    """
    target = _checked(parameters)
    known = min(SHAPES, key=lambda shape: abs(math.log(target / shape.parameters)))
    scale = (target / known.parameters) ** (1 / 3)
    head_dim = known.hidden_size // known.num_attention_heads
    step = head_dim * known.num_key_value_heads
    hidden = max(1, round(known.hidden_size * scale / step)) * step
    vocab = known.vocab_size if target >= SHAPES[0].parameters else max(256, int(known.vocab_size * target / known.parameters))
    depth = max(1, round(known.num_hidden_layers * scale))
    outside = (1 if known.tied else 2) * vocab * hidden + hidden
    attention = 2 * hidden * hidden + 2 * hidden * step + 2 * hidden
    while True:
        wide = round(((target - outside) / depth - attention) / (3 * hidden))
        if wide >= hidden or depth == 1:
            break
        depth -= 1
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": depth, "intermediate_size": max(1, wide), "head_dim": head_dim,
        "num_attention_heads": hidden // head_dim, "num_key_value_heads": known.num_key_value_heads, "vocab_size": vocab,
        "tie_word_embeddings": known.tied, "max_position_embeddings": 131072,
    }
    model = language_model(Keys(config, "llama"), LLAMA)
    guess = f"Its shape is a guess, Llama's scaled to {_words(target)} parameters; a config.json gives the real one."
    return replace(model, name=f"Custom {_words(target)}", uncertain=(guess,))


def _checked(parameters: float) -> int:
    if isinstance(parameters, bool) or not hasattr(parameters, "__float__") or isinstance(parameters, str):
        raise ConfigError(f"parameters must be a number; {PLAIN_SIZES}")
    try:
        value = float(parameters)
    except (OverflowError, TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"parameters must be a finite number; {PLAIN_SIZES}")
    if not SMALLEST <= value <= LARGEST:
        raise ConfigError(f"parameters ({value:g}) must lie between {SMALLEST:.0e} and {LARGEST:.0e}; {PLAIN_SIZES}")
    return round(value)


def _words(parameters: int) -> str:
    for unit, word in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if parameters >= unit:
            return f"{parameters / unit:.1f} {word}"
    return str(parameters)
