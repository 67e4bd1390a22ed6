"""What each operation keeps for its backward pass, and how many gradients it makes: tools/autograd/derivatives.yaml, read.

Sizes: x has 100 elements a token, 16 bits; what is kept is given in bytes a token.
"""

import pytest

from memcore import operations as op
from memcore.tape import ACTIVATIONS, BASIS, INDEX, ONE, TOKENS, Tape

WIDE = TOKENS * 100
PER_TOKEN = BASIS.index("tokens")


@pytest.fixture
def tape():
    return Tape(autocast=False)


def hidden(tape, elements=WIDE, width=2):
    return tape.leaf(elements, width, requires_grad=True, storage=tape.new(elements, width).storage)


def parameter(tape, elements, trains, width=2):
    return tape.leaf(ONE * elements, width, requires_grad=trains, keeps=True)


def kept(tape):
    """Bytes a token kept for the backward pass, scores apart."""
    return float(tape.live[ACTIVATIONS, PER_TOKEN])


def peak_of_backward(tape, x, out):
    """Bytes a token at the fullest moment from the gradient of `out` on, beside `x` and `out`, which their owner holds."""
    there = float(x.elements[PER_TOKEN] * x.width + out.elements[PER_TOKEN] * out.width)
    tape.events.clear()
    grads = [tape.new(out.elements, out.width)]
    tape.note()
    tape.backward(out, grads.pop())
    return max(float(e[:, PER_TOKEN].sum()) for e in tape.events) - there


KEEPS = [
    # operation, on x of 200 bytes a token; what is kept for its backward pass; what that pass holds at most beside x and the
    # result: kept tensors, the result's gradient g, gradients and temporaries                      [bytes a token]
    ("add", lambda t, x: op.add(t, x, op.scale(t, x)), 0, 200 + 200),  # g for both; scale's, into which g is added
    ("scale", lambda t, x: op.scale(t, x), 0, 200 + 200),  # g * factor
    ("cast", lambda t, x: op.cast(t, x, 4), 0, 400 + 200),  # g in float32, and cast back
    ("clone", lambda t, x: op.clone(t, x), 0, 200),  # g is passed on
    ("multiply", lambda t, x: op.multiply(t, op.scale(t, x), op.scale(t, x)), 400, 400 + 200 + 2 * 200),  # both; g * other, g * self
    ("silu", lambda t, x: op.activation(t, x, "silu"), 200, 200 + 200),  # its input, x
    ("gelu", lambda t, x: op.activation(t, x, "gelu"), 200, 200 + 200),
    ("relu", lambda t, x: op.activation(t, x, "relu"), 200, 200 + 200),  # its result
    # in Python: x for the cube, tanh, and both factors of the last product, whose gradients are made at once
    ("gelu_new", lambda t, x: op.activation(t, x, "gelu_new"), 800, 600 + 200 + 2 * 200),
    ("dropout", lambda t, x: op.dropout(t, x), 100, 100 + 200 + 200),  # a mask of one byte
    ("product, frozen weight", lambda t, x: op.matmul(t, x, parameter(t, 5000, False), TOKENS * 50), 0, 100 + 200),  # g W
    ("product, trained weight", lambda t, x: op.matmul(t, x, parameter(t, 5000, True), TOKENS * 50), 200, 100 + 200),  # x; g' x has no tokens
    ("quantized product", lambda t, x: op.matmul_dequantized(t, x, ONE * 5000, TOKENS * 50), 0, 100 + 200),
    ("int8 product", lambda t, x: op.matmul_dequantized(t, x, ONE * 5000, TOKENS * 50, keeps_input=True), 200, 100 + 200),
    # Llama's norm in Python: float32 x, its reciprocal root a row; the normalised x where the weight trains. At pow's gradient
    # g * (2 * x ** 1) there are float32 x, its gradient from the product, g of the square, x ** 1, 2 * x ** 1 and the result
    ("rms norm, frozen", lambda t, x: op.rms_norm(t, x, parameter(t, 100, False), TOKENS, fp32_weight=False, one_plus=False), 400 + 4, 6 * 400),
    ("rms norm, trained", lambda t, x: op.rms_norm(t, x, parameter(t, 100, True), TOKENS, fp32_weight=False, one_plus=False), 404 + 200, 6 * 400),
    ("rms norm, float32 weight", lambda t, x: op.rms_norm(t, x, parameter(t, 100, True), TOKENS, fp32_weight=True, one_plus=False), 404 + 400, 6 * 400),
    # mean and deviation a row
    ("layer norm", lambda t, x: op.layer_norm(t, x, parameter(t, 100, True), TOKENS, parameter(t, 100, True)), 200 + 8, 8 + 200 + 200),
    ("fused norm", lambda t, x: op.fused_norm(t, x, parameter(t, 100, True), TOKENS), 200 + 4, 4 + 200 + 200),
]


@pytest.mark.parametrize(("operation", "expected"), [k[1:3] for k in KEEPS], ids=[k[0] for k in KEEPS])
def test_what_is_kept(tape, operation, expected):
    x = hidden(tape)
    out = operation(tape, x)
    assert out.requires_grad
    assert kept(tape) == expected


@pytest.mark.parametrize(("operation", "peak"), [(k[1], k[3]) for k in KEEPS], ids=[k[0] for k in KEEPS])
def test_what_the_backward_pass_holds_and_that_only_the_gradient_is_left(tape, operation, peak):
    x = hidden(tape)
    out = operation(tape, x)
    assert peak_of_backward(tape, x, out) == peak
    assert kept(tape) == 0
    assert x.leaf.grad.width == x.width
    assert float(x.leaf.grad.elements[PER_TOKEN]) == 100


class TestAttention:
    """Heads of 10: q 100, k and v 50 elements a token."""

    def qkv(self, tape, width=2):
        return hidden(tape, width=width), hidden(tape, WIDE / 2, width), hidden(tape, WIDE / 2, width)

    def test_flash_keeps_q_k_v_its_output_and_a_number_a_row_and_head(self, tape):
        out = op.flash_attention(tape, *self.qkv(tape), heads=10, head_dim=10, rows=TOKENS, grouped=True)
        assert out.node is not None
        assert kept(tape) == 4 * 100 + 4 * 50 + 4 * 10  # 4q + 4kv + 4a
        assert float(tape.live[ACTIVATIONS].sum()) - kept(tape) == 24  # random state

    def test_a_mask_becomes_a_bias_of_the_queries_width(self, tape):
        out = op.efficient_attention(tape, *self.qkv(tape), WIDE, heads=10, head_dim=10, rows=TOKENS, bias=True)
        assert out.node is not None
        assert float(tape.live[INDEX["attention_scores"], BASIS.index("tokens*s")]) == 2

    @pytest.mark.parametrize(
        ("softcap", "float32", "expected"),
        [(False, True, 4 + 2), (True, True, 4 + 2 + 2), (False, False, 2)],  # probabilities, their 16-bit copy; tanh
    )
    def test_eager_keeps_probabilities_of_every_pair_of_tokens(self, tape, softcap, float32, expected):
        q, k, v = hidden(tape), hidden(tape), hidden(tape)
        out = op.eager_attention(tape, q, k, v, WIDE, heads=10, softcap=softcap, attention_dropout=False, float32_softmax=float32)
        assert out.node is not None
        assert float(tape.live[INDEX["attention_scores"], BASIS.index("tokens*s")]) == expected * 10


class TestLogits:
    def test_cross_entropy_keeps_its_log_softmax_in_float32(self, tape):
        loss = op.cross_entropy(tape, op.cast(tape, hidden(tape), 4, INDEX["logits"]))
        assert float(tape.live[INDEX["logits"], PER_TOKEN]) == 4 * 100
        assert loss.node is not None

    def test_its_backward_pass_holds_two_gradients_beside_it(self, tape):
        loss = op.cross_entropy(tape, op.cast(tape, hidden(tape), 4, INDEX["logits"]))
        tape.events.clear()
        grads = [tape.new(ONE, 4)]
        tape.backward(loss, grads.pop())
        assert max(float(e[INDEX["logits"], PER_TOKEN]) for e in tape.events) == 3 * 4 * 100  # 12 bytes an entry

    def test_an_in_place_loss_writes_the_gradient_into_the_logits(self, tape):
        logits = hidden(tape, width=4)
        loss = op.inplace_cross_entropy(tape, logits)
        before = float(tape.live[:, PER_TOKEN].sum())
        grads = [tape.new(ONE, 4)]
        tape.backward(loss, grads.pop())
        assert logits.leaf.grad.storage is logits.storage
        assert max(float(e[:, PER_TOKEN].sum()) for e in tape.events) == before


class TestUnderAutocast:
    def test_a_power_is_taken_in_float32(self):
        tape = Tape(autocast=True)
        out = op.power(tape, hidden(tape))
        assert out.width == 4

    def test_layer_norm_is_computed_in_float32(self):
        tape = Tape(autocast=True)
        out = op.layer_norm(tape, hidden(tape), parameter(tape, 100, True), TOKENS)
        assert out.width == 4
        assert kept(tape) == 4 * 100 + 8


def test_a_quantized_matrix_is_unpacked_for_the_product_and_gone_after(tape):
    x = hidden(tape)
    op.matmul_dequantized(tape, x, ONE * 5000, TOKENS * 50, scratch=ONE * 100)
    dequantized = INDEX["dequantized"]
    assert max(float(e[dequantized].sum()) for e in tape.events) == 2 * 5000 + 4 * 100  # 16 bits, float32 scales beside
    assert float(tape.live[dequantized].sum()) == 0
