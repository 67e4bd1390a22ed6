"""The operations a decoder is made of: what each allocates, keeps for its backward pass, and allocates there.

Each function is one PyTorch operation (or the few that a library's module always runs together), on `tape.Tensor`s.
The comments name what `derivatives.yaml` saves. Nothing here knows a model family or a training method.
"""

from __future__ import annotations

import numpy as np

from .tape import EFFICIENT_ROWS, FLASH_ROWS, INDEX, ONE, SCORES, TOKENS, WORKING, Tape, Tensor
from .units import BYTE, FLOAT32, HALF, INT64

SCORES_TERM, LOGITS_TERM = INDEX["attention_scores"], INDEX["logits"]


def _one_new(elements, width: int, term: int = WORKING, scratch: int = 0):
    """A backward pass that makes one gradient, after `scratch` temporaries of the same size."""

    def backward(tape, grads):
        temporaries = [tape.new(elements, width, term) for _ in range(scratch)]
        grad = tape.new(elements, width, term)
        tape.note()
        del temporaries
        return [grad]

    return backward


def _passed_on(tape: Tape, grads: list) -> list:
    """A backward pass that hands the gradient on as it is."""
    return [grads[0]]


def _unary(
    tape: Tape, x: Tensor, saves: tuple, *, width: int | None = None, elements=None, term: int = WORKING, scratch: int = 0
) -> Tensor:
    """One input, one output, one new gradient; `saves`: what is kept, None for the output itself."""
    out = tape.new(x.elements if elements is None else elements, width or x.width, term)
    tape.note()
    tape.node((x,), (out,), tuple(out if s is None else s for s in saves), _one_new(x.elements, x.width, term, scratch))
    return out


def cast(tape: Tape, x: Tensor, width: int, term: int = WORKING) -> Tensor:
    """x.to(dtype): nothing where the dtype is the same already; saves nothing."""
    return x if x.width == width else _unary(tape, x, (), width=width, term=term)


def clone(tape: Tape, x: Tensor, term: int = WORKING) -> Tensor:
    """A copy whose gradient is passed on as it is."""
    out = tape.new(x.elements, x.width, term)
    tape.note()
    tape.node((x,), (out,), (), _passed_on)
    return out


def clamped_swiglu(tape: Tape, both: Tensor) -> Tensor:
    """gpt-oss: clamp gate and up, (up + 1) * gate * sigmoid(alpha * gate)."""
    half = both.elements / 2
    gate = _clamp(tape, narrow(tape, both, half))
    up = _clamp(tape, narrow(tape, both, half))
    del both
    glu = multiply(tape, gate, _unary(tape, scale(tape, gate), (None,)))
    del gate
    return multiply(tape, shift(tape, up), glu)


def _clamp(tape: Tape, x: Tensor) -> Tensor:
    return _unary(tape, x, (x,))


def activation(tape: Tape, x: Tensor, name: str) -> Tensor:
    """silu, gelu and relu keep one tensor; quick_gelu, gelu_new and relu2 are several operations in Python."""
    if name == "quick_gelu":
        return multiply(tape, x, _unary(tape, scale(tape, x), (None,)))
    if name in ("gelu_new", "gelu_fast"):
        cube = power(tape, x)
        inner = add(tape, x, scale(tape, cube))
        del cube
        tanh = _unary(tape, scale(tape, inner), (None,))
        del inner
        return multiply(tape, scale(tape, x), shift(tape, tanh))
    if name in ("relu2", "relu_squared"):
        relu = _unary(tape, x, (None,))
        return _unary(tape, relu, (relu,), scratch=1)
    if name == "relu":
        return _unary(tape, x, (None,))
    return _unary(tape, x, (x,))


def power(tape: Tape, x: Tensor) -> Tensor:
    """x ** n: keeps x; backward makes x ** (n - 1) and its multiple. float32 under autocast."""
    if tape.autocast:
        x = cast(tape, x, FLOAT32)
    return _unary(tape, x, (x,), scratch=2)


def scale(tape: Tape, x: Tensor, term: int = WORKING) -> Tensor:
    """Times a Python number."""
    return _unary(tape, x, (), term=term)


def shift(tape: Tape, x: Tensor, term: int = WORKING) -> Tensor:
    """Plus a number, or the mask: the gradient passes through."""
    return clone(tape, x, term)


def tanh_cap(tape: Tape, x: Tensor, term: int) -> Tensor:
    """cap * tanh(x / cap): tanh keeps its result."""
    divided = scale(tape, x, term)
    tanh = _unary(tape, divided, (None,), term=term)
    del divided, x
    return scale(tape, tanh, term)


def add(tape: Tape, a: Tensor, b: Tensor, term: int = WORKING) -> Tensor:
    """a + b: saves nothing; both get the same gradient."""
    out = tape.new(a.elements, max(a.width, b.width), term)
    tape.note()
    tape.node((a, b), (out,), (), lambda tape, grads: [grads[0], grads[0]])
    return out


def multiply(tape: Tape, a: Tensor, b: Tensor, term: int = WORKING) -> Tensor:
    """a * b, b possibly broadcast: each is kept where the other needs a gradient."""
    full, out_width = a.elements, max(a.width, b.width)
    out = tape.new(full, out_width, term)
    tape.note()
    need_a, need_b, small = a.requires_grad, b.requires_grad, b.elements
    broadcast = small is not full and not np.array_equal(small, full)

    def backward(tape, grads):
        grad_b = tape.new(full, out_width, term) if need_b else None
        grad_a = tape.new(full, out_width, term) if need_a else None
        tape.note()
        return [grad_a, (grad_b, small) if broadcast and need_b else grad_b]

    tape.node((a, b), (out,), (*((b,) if need_a else ()), *((a,) if need_b else ())), backward)
    return out


def dropout(tape: Tape, x: Tensor, term: int = WORKING) -> Tensor:
    """native_dropout: a one-byte mask is kept."""
    return _unary(tape, x, (tape.new(x.elements, BYTE, term),), term=term)


def view(tape: Tape, x: Tensor, elements=None) -> Tensor:
    """Another shape on the same storage: the gradient passes through as a view."""
    out = Tensor(x.storage, x.elements if elements is None else elements, x.width, view=True)

    def backward(tape, grads):
        g = grads[0]
        return [Tensor(g.storage, g.elements, g.width, view=True)]

    tape.node((x,), (out,), (), backward)
    return out


def split(tape: Tape, x: Tensor, parts: list) -> list[Tensor]:
    """chunk or split: views whose gradients are concatenated into one new tensor."""
    outs = [Tensor(x.storage, p, x.width, view=True) for p in parts]
    tape.node((x,), tuple(outs), (), _one_new(x.elements, x.width))
    return outs


def narrow(tape: Tape, x: Tensor, elements, term: int = WORKING) -> Tensor:
    """x[..., a:b]: a view; its gradient is a zero-filled tensor of x's whole size."""
    out = Tensor(x.storage, elements, x.width, view=True)
    tape.node((x,), (out,), (), _one_new(x.elements, x.width, term))
    return out


def concatenate(tape: Tape, parts: list[Tensor]) -> Tensor:
    """torch.cat: a new tensor; its gradient is handed out as views."""
    out = tape.new(sum(p.elements for p in parts), parts[0].width)
    tape.note()
    shapes = [p.elements for p in parts]
    tape.node(tuple(parts), (out,), (), lambda tape, grads: [Tensor(grads[0].storage, s, grads[0].width, view=True) for s in shapes])
    return out


def matmul(
    tape: Tape, x: Tensor, weight: Tensor, out_elements, *, bias: Tensor | None = None, beside: Tensor | None = None, term: int = WORKING
) -> Tensor:
    """x @ weight.T (+ bias): keeps x where the weight trains, the weight where x needs a gradient; `beside`: the groups of a grouped product."""
    tape.stop_early(tuple(i for i, keep in ((x, weight.requires_grad), (weight, x.requires_grad)) if keep))
    out = tape.new(out_elements, x.width, term)
    tape.note()
    x_shape, w_shape, width, need_x, need_w = x.elements, weight.elements, x.width, x.requires_grad, weight.requires_grad
    b_shape = bias.elements if bias is not None and bias.requires_grad else None

    def backward(tape, grads):
        results = [None, None]
        if need_w:
            results[1] = tape.new(w_shape, width)
            tape.note()
        if need_x:
            results[0] = tape.new(x_shape, width)
            tape.note()
        results = [None if r is None else Tensor(r.storage, r.elements, r.width, view=True) for r in results]
        if b_shape is not None:
            results.append(tape.new(b_shape, width))
        elif bias_there:
            results.append(None)
        return results

    bias_there = bias is not None
    inputs = (x, weight, bias) if bias_there else (x, weight)
    tape.node(
        inputs, (out,), (*((x,) if need_w else ()), *((weight,) if need_x else ()), *((beside,) if beside is not None else ())), backward
    )
    return out


def merged_weight(tape: Tape, a: Tensor, b: Tensor, elements, width: int) -> Tensor:
    """W + B A: a new tensor as large as W, whose gradient is as large again."""
    product = matmul(tape, a, b, elements)
    out = tape.new(elements, width)
    tape.note()
    tape.node((product,), (out,), (), _passed_on)
    return out


def matmul_dequantized(
    tape: Tape, x: Tensor, weight_elements, out_elements, *, scratch=None, copies: int = 1, keeps_input: bool = False
) -> Tensor:
    """A quantized matrix unpacked to 16 bits for the product, forward and backward; nothing but the packed weight is kept.

    `scratch`: float32 scales unpacked first (double quantization); `copies`: 2 where the unpacked matrix is cast again.
    """
    dequantized = INDEX["dequantized"]

    def unpack(tape):
        if scratch is not None:
            scales = tape.new(scratch, FLOAT32, dequantized)
            weight = tape.new(weight_elements * copies, HALF, dequantized)
            tape.note()
            del scales
            return weight
        return tape.new(weight_elements * copies, HALF, dequantized)

    weight = unpack(tape)
    out = tape.new(out_elements, x.width)
    tape.note()
    del weight
    shape, width = x.elements, x.width

    def backward(tape, grads):
        weight = unpack(tape)
        grad = tape.new(shape, width)
        tape.note()
        del weight
        return [grad]

    tape.node((x,), (out,), (x,) if keeps_input else (), backward)
    return out


def fused_product(tape: Tape, x: Tensor, weights: tuple[Tensor, ...], out_elements, *, keeps_input: bool) -> Tensor:
    """Several small products in one kernel: keeps its input or nothing, makes what lies between again."""
    out = tape.new(out_elements, HALF)
    tape.note()
    shape, width, small = x.elements, x.width, [(w.elements, w.width) for w in weights]

    def backward(tape, grads):
        grad = tape.new(shape, width)
        tape.note()
        return [grad, *(tape.new(*s) for s in small)]

    tape.node((x, *weights), (out,), (x,) if keeps_input else (), backward)
    return out


def scatter(tape: Tape, x: Tensor, elements) -> Tensor:
    """index_copy into zeros: keeps its source."""
    return _unary(tape, x, (x,), elements=elements)


def all_gather(tape: Tape, x: Tensor, parts: int) -> Tensor:
    """The whole sequence from every GPU's part; a product that saves it keeps the part and gathers again (Megatron-LM)."""
    out = _unary(tape, x, (), elements=x.elements * parts)
    out.keeps = x.storage
    return out


def reduce_scatter(tape: Tape, x: Tensor, parts: int) -> Tensor:
    """A GPU's part of the sequence of the sum over GPUs; its gradient is gathered."""
    return _unary(tape, x, (), elements=x.elements / parts)


def rms_norm(tape: Tape, x: Tensor, weight: Tensor | None, rows, *, fp32_weight: bool, one_plus: bool) -> Tensor:
    """Llama's RMSNorm in Python: float32 input and reciprocal root are kept, and the normalised x where the weight trains.

    `fp32_weight`: Gemma, OLMo 2 and gpt-oss apply the weight in float32, so what is kept for it is twice as wide;
    `one_plus`: Gemma multiplies by 1 + weight, a float32 vector that is kept too.
    """
    width = x.width
    x32 = cast(tape, x, FLOAT32)
    square = power(tape, x32)
    variance = _unary_rows(tape, square, rows)
    del square
    inverse = _unary(tape, shift(tape, variance), (None,), scratch=1)
    del variance
    normal = multiply(tape, x32, inverse)
    del x32, inverse
    if weight is None:
        return cast(tape, normal, width)
    if fp32_weight:
        weighted = multiply(tape, normal, _float_weight(tape, weight) if one_plus else weight)
        del normal
        return cast(tape, weighted, width)
    normal = cast(tape, normal, width)
    return multiply(tape, normal, weight)


def _float_weight(tape: Tape, weight: Tensor) -> Tensor:
    """1 + weight.float(), a float32 vector that is kept while the product needs it."""
    out = tape.new(weight.elements, FLOAT32)
    tape.node((weight,), (out,), (), _one_new(weight.elements, FLOAT32))
    return out


def _unary_rows(tape: Tape, x: Tensor, rows) -> Tensor:
    """mean(-1): one number a row; its gradient is as large as x."""
    return _unary(tape, x, (), elements=rows)


def layer_norm(tape: Tape, x: Tensor, weight: Tensor | None, rows, bias: Tensor | None = None) -> Tensor:
    """nn.LayerNorm: one kernel; input, mean and reciprocal deviation are kept. float32 under autocast."""
    if tape.autocast:
        x = cast(tape, x, FLOAT32)
        weight, bias = (None if p is None else cast(tape, p, FLOAT32, INDEX["weight_casts"]) for p in (weight, bias))
    out, statistics = tape.new(x.elements, x.width), tape.new(rows * 2, FLOAT32)
    tape.note()
    parameters = tuple(p for p in (weight, bias) if p is not None)
    shape, width, small = x.elements, x.width, [p.elements for p in parameters]

    def backward(tape, grads):
        grad = tape.new(shape, width)
        tape.note()
        return [grad, *(tape.new(s, width) for s in small)]

    tape.node((x, *parameters), (out,), (x, statistics, *parameters), backward)
    return out


def fused_norm(tape: Tape, x: Tensor, weight: Tensor | None, rows) -> Tensor:
    """A Triton norm (Liger, Unsloth): the 16-bit input and one number a row."""
    out, statistics = tape.new(x.elements, x.width), tape.new(rows, FLOAT32)
    tape.note()
    shape, width = x.elements, x.width
    small = None if weight is None else weight.elements

    def backward(tape, grads):
        grad = tape.new(shape, width)
        tape.note()
        return [grad] if small is None else [grad, tape.new(small, width)]

    tape.node((x,) if weight is None else (x, weight), (out,), (x, statistics), backward)
    return out


def rotate(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor, *, part=None, concatenate_rest: bool = False) -> Tensor:
    """x * cos + rotate_half(x) * sin; where only a part of a head is rotated the rest is concatenated: a new tensor."""
    rest = None
    if concatenate_rest:
        whole, part = x, x.elements if part is None else part
        x = narrow(tape, whole, part)
        rest = narrow(tape, whole, whole.elements - part)
        del whole
    plain = multiply(tape, x, cos)
    turned = multiply(tape, _rotate_half(tape, x), sin)
    del x
    out = add(tape, plain, turned)
    del plain, turned
    if rest is not None:
        rest = cast(tape, rest, out.width)
        return concatenate(tape, [out, rest])
    return out


def _rotate_half(tape: Tape, x: Tensor) -> Tensor:
    first, second = narrow(tape, x, x.elements / 2), narrow(tape, x, x.elements / 2)
    negative = scale(tape, second)
    del second
    return concatenate(tape, [negative, first])


def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, *, heads: int, head_dim: int, rows, grouped: bool) -> Tensor:
    """The flash kernel: q, k, v, its output and one float32 a row and head are kept.

    Backward: gradients of q, k and v, and the kernel's workspaces (flash_attn `mha_bwd`): softmax_d, a float32 dq
    accumulator padded to 128 rows and 32 (or 64) columns, and k and v gradients per query head where heads are grouped.
    """
    out = tape.new(q.elements, q.width)
    statistics = tape.new(rows * heads, FLOAT32)
    random_state = tape.new(ONE, 24)  # two int64 and an offset, once a call
    tape.note()
    shapes = [(t.elements, t.width) for t in (q, k, v)]
    needs = [t.requires_grad for t in (q, k, v)]
    step = 32 if head_dim <= 128 else 64
    workspace = FLASH_ROWS * heads * FLOAT32 * (1 + -(-head_dim // step) * step)
    if grouped:
        workspace = workspace + q.elements * 2 * q.width

    def backward(tape, grads):
        results = [tape.new(*shape) for shape in shapes]
        tape.note(workspace)
        return [Tensor(r.storage, r.elements, r.width, view=True) if n else None for r, n in zip(results, needs, strict=True)]

    tape.node((q, k, v), (out,), (q, k, v, out, statistics, random_state), backward)
    return out


def efficient_attention(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, out_elements, *, heads: int, head_dim: int, rows, bias: bool
) -> Tensor:
    """The memory-efficient kernel, which a mask, unequal head widths or float32 lead to; a mask becomes a bias in q's dtype."""
    mask = tape.new(SCORES, q.width, SCORES_TERM) if bias else None
    out = tape.new(out_elements, q.width)
    statistics = tape.new(rows * heads, FLOAT32)
    random_state = tape.new(ONE, 16)
    tape.note()
    shapes, needs = [(t.elements, t.width) for t in (q, k, v)], [t.requires_grad for t in (q, k, v)]
    workspace = EFFICIENT_ROWS * heads * FLOAT32 * (1 + (-(-head_dim // 64) * 64 if q.width != FLOAT32 else 0))

    def backward(tape, grads):
        results = [tape.new(*shape) for shape in shapes]
        tape.note(workspace)
        return [Tensor(r.storage, r.elements, r.width, view=True) if n else None for r, n in zip(results, needs, strict=True)]

    tape.node((q, k, v), (out,), (q, k, v, *((mask,) if bias else ()), out, statistics, random_state), backward)
    return out


def eager_attention(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, out_elements, *, heads: int, softcap: bool, attention_dropout: bool, float32_softmax: bool
) -> Tensor:
    """softmax(q k^T) v in Python: the probabilities and, where they are float32, their 16-bit copy are kept, both s*s."""
    scores = SCORES * heads
    width = q.width
    weights = scale(tape, _batched(tape, q, k, scores, SCORES_TERM), SCORES_TERM)
    if softcap:
        weights = tanh_cap(tape, weights, SCORES_TERM)
    weights = shift(tape, weights, SCORES_TERM)
    if float32_softmax or tape.autocast:
        weights = cast(tape, weights, FLOAT32, SCORES_TERM)
    weights = _unary(tape, weights, (None,), term=SCORES_TERM)
    weights = cast(tape, weights, width, SCORES_TERM)
    if attention_dropout:
        weights = dropout(tape, weights, SCORES_TERM)
    out = _batched(tape, weights, v, out_elements, WORKING)
    del weights
    return clone(tape, out)


def sink_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, out_elements, *, heads: int) -> Tensor:
    """gpt-oss: a learned sink is one more column of the scores; softmax in q's dtype, its result kept once, the maxima's indices too."""
    scores, wide = SCORES * heads, SCORES * heads + TOKENS * heads
    weights = scale(tape, _batched(tape, q, k, scores, SCORES_TERM), SCORES_TERM)
    weights = shift(tape, weights, SCORES_TERM)
    combined = _unary(tape, weights, (), elements=wide, term=SCORES_TERM)
    del weights
    indices = tape.new(TOKENS * heads, INT64)
    shifted = _unary(tape, combined, (indices,), term=SCORES_TERM)
    del combined, indices
    probabilities = _unary(tape, shifted, (None,), term=SCORES_TERM)
    del shifted
    out = _batched(tape, narrow(tape, probabilities, scores, SCORES_TERM), v, out_elements, WORKING)
    del probabilities
    return clone(tape, out)


def _batched(tape: Tape, a: Tensor, b: Tensor, out_elements, term: int) -> Tensor:
    out = tape.new(out_elements, a.width, term)
    tape.note()
    shapes = [(t.elements, t.width, t.storage.term if t.storage.term == SCORES_TERM else WORKING) for t in (a, b)]
    needs = a.requires_grad, b.requires_grad

    def backward(tape, grads):
        results = [tape.new(*shape) if n else None for shape, n in zip(shapes, needs, strict=True)]
        tape.note()
        return [None if r is None else Tensor(r.storage, r.elements, r.width, view=True) for r in results]

    tape.node((a, b), (out,), (*((b,) if needs[0] else ()), *((a,) if needs[1] else ())), backward)
    return out


def top_k(tape: Tape, x: Tensor, elements) -> tuple[Tensor, Tensor]:
    """The largest of each row and their indices, which are kept; the gradient fills a zeroed tensor of x's size."""
    indices = tape.new(elements, INT64)
    return _unary(tape, x, (indices,), elements=elements), indices


def normalise(tape: Tape, x: Tensor) -> Tensor:
    """x / x.sum(-1): both are kept, one number a token beside the values."""
    return _unary(tape, x, (None, tape.new(TOKENS, x.width)))


def add_rows(tape: Tape, x: Tensor, rows) -> Tensor:
    """A bias of its own for each row, picked by index: the index is kept."""
    index, out = tape.new(rows, INT64), tape.new(x.elements, x.width)
    tape.note()
    tape.node((x,), (out,), (index,), _passed_on)
    return out


def gather(tape: Tape, x: Tensor, elements, index: Tensor) -> Tensor:
    """x[index]: the index is kept; backward zero-fills a tensor of x's size and puts the gradient into a second one."""
    return _unary(tape, x, (index,), elements=elements, scratch=1)


def repeat_heads(tape: Tape, x: Tensor, elements) -> Tensor:
    """repeat_kv: keys or values copied to the number of query heads; the gradient is summed back."""
    return _unary(tape, x, (), elements=elements)


def shifted_logits(tape: Tape, logits: Tensor) -> Tensor:
    """logits[..., :-1, :].contiguous(): a copy; its gradient fills a zeroed tensor of the logits' size."""
    return _unary(tape, logits, (), term=LOGITS_TERM)


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """log_softmax keeps its result; backward: the gradient of the loss and of log_softmax. float32 under autocast."""
    if tape.autocast:
        logits = cast(tape, logits, FLOAT32, LOGITS_TERM)
    log_softmax = _unary(tape, logits, (None,), term=LOGITS_TERM)
    loss = tape.new(ONE, FLOAT32)
    tape.node((log_softmax,), (loss,), (log_softmax,), _one_new(logits.elements, logits.width, LOGITS_TERM))
    return loss


def inplace_cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Keeps the logits and one float32 a row; the gradient overwrites the logits."""
    loss, statistics = tape.new(ONE, FLOAT32), tape.new(TOKENS, FLOAT32)
    tape.note()
    kept = [Tensor(logits.storage, logits.elements, logits.width)]
    tape.node((logits,), (loss,), (logits, statistics), lambda tape, grads: [kept.pop()])
    return loss


def chunked_cross_entropy(tape: Tape, logits: Tensor, *, keeps_softmax: bool, share: float) -> Tensor:
    """Cross-entropy over chunks of the logits, `share` of them at a time in float32; `keeps_softmax`: log_softmax of all chunks is kept."""
    softmax = tape.new(logits.elements, logits.width, LOGITS_TERM) if keeps_softmax else None
    work = tape.new(logits.elements * share, 2 * FLOAT32, LOGITS_TERM)
    tape.note()
    del work
    loss = tape.new(ONE, FLOAT32)
    shape, width = logits.elements, logits.width

    def backward(tape, grads):
        work = tape.new(shape * share, 2 * FLOAT32, LOGITS_TERM)
        tape.note()
        del work
        grad = tape.new(shape * (0 if keeps_softmax else share), width, LOGITS_TERM)
        tape.note()
        return [grad]

    tape.node((logits,), (loss,), (logits,) if softmax is None else (logits, softmax), backward)
    return loss
