"""A small model of PyTorch's autograd that counts bytes instead of computing numbers.

Operations are run on `Tensor`s that have a size and no data. As in PyTorch, a tensor's memory lives as long as something
refers to it: a local variable of the forward pass, a node of the graph that saved it for its backward pass, a gradient
buffer of the engine. Python's own reference counting decides, so code written like a model's forward pass allocates and
frees like it. After every operation the tape notes what is alive; the largest note of a phase is that phase's peak.

A size is a vector of coefficients over `BASIS`: the same pass through the tape answers every batch, length and rank.

Sources: PyTorch 2.13 `torch/csrc/autograd/{engine,input_buffer}.cpp` (order, release and in-place sums),
`tools/autograd/derivatives.yaml` (what each operation saves).
"""

from __future__ import annotations

import heapq
import itertools
import sys

import numpy as np

BASIS = (
    "1",
    "tokens",  # b*s
    "tokens*s",  # b*s*s: attention scores of one head
    "s",
    "rank",
    "rank*tokens",
    "b*ceil128(s)",  # flash attention pads its workspaces to 128 rows
    "b*ceil64(s)",  # the memory-efficient kernel to 64
    "sort",  # rows of partial sums in the embedding's backward pass, above 3072 tokens
    "labels",  # bytes of the shifted labels
    "chunk",  # tokens whose logits a fused linear loss holds at once
    "image tokens",  # that images add, over the batch
    "1, n>1",  # 1 where there is more than one GPU, else nothing
    "tokens, n>1",  # tokens where there is more than one GPU, else nothing
    "1/n",  # a constant divided among n GPUs
    "rank/n",
)
SIZE = len(BASIS)


def _unit(name: str) -> np.ndarray:
    vector = np.zeros(SIZE)
    vector[BASIS.index(name)] = 1.0
    return vector


ONE, TOKENS, SCORES, SEQUENCE = (_unit(n) for n in ("1", "tokens", "tokens*s", "s"))
RANK, RANK_TOKENS = _unit("rank"), _unit("rank*tokens")
FLASH_ROWS, EFFICIENT_ROWS = _unit("b*ceil128(s)"), _unit("b*ceil64(s)")
SORT_ROWS, LABELS, CHUNK = _unit("sort"), _unit("labels"), _unit("chunk")
SEVERAL, SEVERAL_TOKENS, IMAGE_TOKENS = _unit("1, n>1"), _unit("tokens, n>1"), _unit("image tokens")
SHARE, RANK_SHARE = _unit("1/n"), _unit("rank/n")

TERMS = (
    "activations",  # kept by autograd for the backward pass
    "checkpoints",  # layer inputs kept under gradient checkpointing
    "recomputed",  # one layer's activations, computed again in the backward pass
    "working",  # outputs, gradients and temporaries of the operation at work
    "attention_scores",  # what grows with the square of the length
    "logits",  # everything as wide as the vocabulary
    "weight_casts",  # 16-bit copies autocast makes of float32 weights
    "dequantized",  # one quantized matrix unpacked to 16 bits
    "gradients",
)
INDEX = {name: i for i, name in enumerate(TERMS)}
WORKING, ACTIVATIONS, RECOMPUTED, CHECKPOINTS, GRADIENTS = (
    INDEX[n] for n in ("working", "activations", "recomputed", "checkpoints", "gradients")
)


class Storage:
    """Bytes on the device, alive while anything refers to them."""

    __slots__ = ("__weakref__", "saves", "size", "tape", "term")

    def __init__(self, tape: Tape, size: np.ndarray, term: int):
        self.tape, self.size, self.term, self.saves = tape, size, term, 0
        tape.live[term] += size

    def move(self, term: int) -> None:
        self.tape.live[self.term] -= self.size
        self.tape.live[term] += self.size
        self.term = term

    def __del__(self):
        self.tape.live[self.term] -= self.size


class Tensor:
    """A shape without data: `elements` (a vector over BASIS) of `width` bytes in a storage that views share."""

    __slots__ = ("elements", "keeps", "leaf", "node", "output", "requires_grad", "storage", "view", "width")

    def __init__(self, storage, elements, width, requires_grad=False, node=None, leaf=None, view=False, output=0):
        self.storage, self.elements, self.width = storage, elements, width
        self.requires_grad, self.node, self.leaf, self.view, self.output = requires_grad, node, leaf, view, output
        self.keeps: Storage | None = None  # what a node that saves this tensor holds instead


class Leaf:
    """Where a gradient ends: a trainable parameter, or the input of the part of the model being run."""

    __slots__ = ("grad", "keeps")

    def __init__(self, keeps: bool):
        self.grad, self.keeps = None, keeps


class Node:
    """One operation of the graph: what it saved, where its input gradients go, how it computes them."""

    __slots__ = ("backward", "edges", "frame", "outputs", "saved", "sequence", "widths")

    def __init__(self, sequence, edges, widths, backward, outputs=1):
        self.sequence, self.edges, self.widths, self.backward, self.outputs = sequence, edges, widths, backward, outputs
        self.saved: list = []
        self.frame: Frame | None = None


class Frame:
    """One checkpointed call: its input, what to run again, and what running it again has kept so far.

    The nodes of the call refer to it, so the input lives until the last of them is done.
    """

    __slots__ = ("count", "function", "input", "stored")

    def __init__(self, function):
        self.function, self.input, self.count, self.stored = function, None, 0, None


class _EarlyStop(Exception):
    """Recomputation has produced the last tensor that the backward pass needs."""


class Tape:
    """What is alive now (`live`, TERMS x BASIS), and what was after each operation (`events`)."""

    def __init__(self, *, autocast: bool, accumulates: bool = False):
        self.live = np.zeros((len(TERMS), SIZE))
        self.events: list[np.ndarray] = []
        self.autocast = autocast
        self.accumulates = accumulates  # gradients are added to those of an earlier micro batch
        self.cast_cache: dict[int, Tensor] = {}
        self.kept_gradients: list[Storage] = []
        self.saved_term = ACTIVATIONS
        self._sequence = itertools.count()
        self._frame: Frame | None = None  # recording a checkpointed call: nothing is kept
        self._replay: Frame | None = None  # running it again: kept outside the graph
        self.grad_enabled = True

    # ---- memory

    def new(self, elements: np.ndarray, width: int, term: int = WORKING) -> Tensor:
        return Tensor(Storage(self, elements * width, term), elements, width)

    def note(self, *extra: np.ndarray) -> None:
        """Remember what is alive, with workspaces that exist only inside the kernel just run."""
        live = self.live.copy()
        for size in extra:
            live[WORKING] += size
        self.events.append(live)

    # ---- graph

    def leaf(self, elements: np.ndarray, width: int, *, requires_grad: bool, storage: Storage | None = None, keeps: bool = False) -> Tensor:
        """A tensor that is nobody's output: a parameter (no storage here: the ledger counts it) or an input."""
        return Tensor(storage, elements, width, requires_grad, leaf=Leaf(keeps) if requires_grad else None)

    def node(self, inputs: tuple, outputs: tuple, saves: tuple, backward) -> None:
        """Attach the operation that made `outputs` from `inputs`; `saves` are the tensors kept for `backward`."""
        if not self.grad_enabled or not any(t.requires_grad for t in inputs):
            return
        edges = [None if not t.requires_grad else ((t.node, t.output) if t.node is not None else (t.leaf, 0)) for t in inputs]
        node = Node(next(self._sequence), edges, [t.width for t in inputs], backward, len(outputs))
        for tensor in saves:
            self._save(node, tensor.keeps or tensor.storage)
        for i, out in enumerate(outputs):
            out.requires_grad, out.node, out.output = True, node, i

    def _save(self, node: Node, storage: Storage | None) -> None:
        if storage is None:  # parameters are counted by the ledger
            return
        if self._replay is not None:
            frame = self._replay
            frame.stored.append(self._hold(storage))
            if len(frame.stored) == frame.count:
                raise _EarlyStop
        elif self._frame is not None:
            node.frame = self._frame
            node.saved.append(self._frame.count)
            self._frame.count += 1
        else:
            node.saved.append(self._hold(storage))

    def stop_early(self, inputs: tuple) -> None:
        """PyTorch saves an operation's inputs before it runs: a recomputation that needs no more ends before the output is made."""
        frame = self._replay
        if frame is not None and self.grad_enabled:
            storages = [i.keeps or i.storage for i in inputs if i.storage is not None]
            if storages and len(frame.stored) + len(storages) == frame.count:
                frame.stored += [self._hold(s) for s in storages]
                raise _EarlyStop

    def _hold(self, storage: Storage) -> Storage:
        if storage.saves == 0 and storage.term == WORKING:
            storage.move(self.saved_term)
        storage.saves += 1
        return storage

    def _let_go(self, storage: Storage) -> None:
        storage.saves -= 1
        if storage.saves == 0 and storage.term in (ACTIVATIONS, RECOMPUTED):
            storage.move(WORKING)

    # ---- backward

    def backward(self, out: Tensor, grad: Tensor) -> None:
        """Run the engine from `out`; gradients of leaves end in their `grad`."""
        root = out.node
        needed: dict[Node, int] = {root: 0}
        stack = [root]
        while stack:
            for edge in stack.pop().edges:
                if edge is not None:
                    target = edge[0]
                    if target in needed:
                        needed[target] += 1
                    else:
                        needed[target] = 1
                        if isinstance(target, Node):
                            stack.append(target)
        buffers: dict = {root: [None] * root.outputs}
        buffers[root][out.output] = grad
        del grad, out
        ready = [(-root.sequence, root)]
        while ready:
            node = heapq.heappop(ready)[1]
            self._unpack(node)
            outs = node.backward(self, buffers.pop(node))
            for i, (edge, result) in enumerate(zip(node.edges, outs, strict=True)):
                outs[i] = None
                if edge is None or result is None:
                    continue
                outs[i] = self._validate(result, node.widths[i])
                result = None
            self._release(node)
            for i, edge in enumerate(node.edges):
                if edge is None:
                    continue
                target, slot = edge
                result, outs[i] = outs[i], None
                if result is not None:
                    buffer = buffers.setdefault(target, [None] * (target.outputs if isinstance(target, Node) else 1))
                    result = self._accumulate(buffer, slot, result)
                needed[target] -= 1
                if needed[target] == 0 and target in buffers:
                    if isinstance(target, Node):
                        heapq.heappush(ready, (-target.sequence, target))
                    else:
                        self._end(target, buffers.pop(target)[0])

    def _unpack(self, node: Node) -> None:
        if node.frame is None:
            return
        if node.frame.stored is None:
            self._recompute(node.frame)
        for i, position in enumerate(node.saved):
            node.saved[i], node.frame.stored[position] = node.frame.stored[position], None

    def _recompute(self, frame: Frame) -> None:
        frame.stored = []
        before = self.saved_term, self.cast_cache
        self._replay, self.saved_term, self.cast_cache = frame, RECOMPUTED, {}
        try:
            frame.function(frame.input)
        except _EarlyStop as stop:
            stop.__traceback__ = None
        finally:
            self._replay = None
            self.saved_term, self.cast_cache = before

    def _release(self, node: Node) -> None:
        for storage in node.saved:
            self._let_go(storage)
        node.saved, node.frame = [], None

    def _validate(self, result, width: int) -> Tensor:
        """The engine's check of each gradient: reduced to its input's shape, cast to its input's dtype."""
        if isinstance(result, tuple):  # (gradient, elements to reduce it to)
            tensor, elements = result
            result = self.new(elements, tensor.width)
            self.note()
            del tensor
        if result.width != width:
            result = self.new(result.elements, width)
            self.note()
        return result

    def _accumulate(self, buffer: list, slot: int, result: Tensor) -> None:
        old = buffer[slot]
        if old is None:
            buffer[slot] = result
            return
        if old.view or sys.getrefcount(old) > 3 or sys.getrefcount(old.storage) > 2:  # views keep their base; others may still read it
            buffer[slot] = self.new(old.elements, old.width)
        self.note()

    def _end(self, leaf: Leaf, grad: Tensor) -> None:
        if not leaf.keeps:
            leaf.grad = grad
        elif not self.accumulates:
            grad.storage.move(GRADIENTS)
            self.kept_gradients.append(grad.storage)

    # ---- checkpointing and autocast

    def checkpoint(self, function, x: Tensor, *, reentrant: bool) -> Tensor:
        """torch.utils.checkpoint: keep the input, run `function` again in the backward pass."""
        if reentrant:
            return self._checkpoint_reentrant(function, x)
        frame = Frame(function)
        self._frame = frame
        try:
            out = function(x)
        finally:
            self._frame = None
        if out.node is not None:
            x.storage.move(CHECKPOINTS)
            frame.input = Tensor(x.storage, x.elements, x.width, x.requires_grad, leaf=Leaf(False) if x.requires_grad else None)
        return out

    def _checkpoint_reentrant(self, function, x: Tensor) -> Tensor:
        self.grad_enabled = False
        out = function(x)
        self.grad_enabled = True
        if not x.requires_grad:
            return out
        x.storage.move(CHECKPOINTS)
        kept = [Tensor(x.storage, x.elements, x.width)]

        def backward(tape, grads):
            detached = kept.pop()
            before = tape.saved_term, tape.cast_cache
            tape.saved_term, tape.cast_cache = RECOMPUTED, {}
            detached.requires_grad, detached.leaf = True, Leaf(False)
            result = function(detached)
            tape.cast_cache = before[1]
            tape.backward(result, grads[0])
            tape.saved_term = before[0]
            return [detached.leaf.grad]

        self.node((x,), (out,), (), backward)
        return out

    def leave_autocast(self) -> None:
        self.cast_cache.clear()
