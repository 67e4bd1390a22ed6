"""The tape lives and frees as autograd does. Sizes: tokens and constants, two bytes an element where nothing else is said."""

import numpy as np
import pytest

from memcore import operations as op
from memcore.layers import Layers
from memcore.tape import ACTIVATIONS, BASIS, CHECKPOINTS, GRADIENTS, INDEX, ONE, RECOMPUTED, TERMS, TOKENS, WORKING, Tape

WIDE = TOKENS * 100


def size(vector):
    """Bytes for one token and one of everything else."""
    return float(vector.sum())


def alive(tape):
    return size(tape.live)


@pytest.fixture
def tape():
    return Tape(autocast=False)


@pytest.fixture
def x(tape):
    """A hidden state that needs a gradient, 200 bytes a token."""
    return tape.leaf(WIDE, 2, requires_grad=True, storage=tape.new(WIDE, 2).storage)


def backward(tape, out):
    grads = [tape.new(out.elements, out.width)]
    tape.backward(out, grads.pop())


def test_a_size_is_a_vector_over_the_basis():
    assert {name: ONE[i] for i, name in enumerate(BASIS)}["1"] == 1
    assert ONE.sum() == TOKENS.sum() == 1
    assert set(INDEX) == set(TERMS)


def test_memory_is_freed_when_nothing_refers_to_it(tape):
    first = tape.new(WIDE, 2)
    second = tape.new(WIDE, 4)
    assert alive(tape) == 200 + 400
    del first
    assert alive(tape) == 400
    del second
    assert alive(tape) == 0


def test_a_view_shares_its_storage_and_keeps_it_whole(tape, x):
    whole = op.scale(tape, x)
    part = op.narrow(tape, whole, WIDE / 10)
    assert alive(tape) == 200 + 200
    del whole
    assert part.storage.size.sum() == 200  # a tenth of it is enough to keep all of it
    assert alive(tape) == 400


def test_nothing_is_kept_where_no_gradient_is_needed(tape):
    x = tape.leaf(WIDE, 2, requires_grad=False, storage=tape.new(WIDE, 2).storage)
    out = op.activation(tape, op.scale(tape, x), "silu")
    assert out.node is None
    assert size(tape.live[ACTIVATIONS]) == 0
    assert alive(tape) == 200 + 200  # what lay between is gone


def test_what_an_operation_saved_lives_until_its_backward_pass(tape, x):
    out = op.activation(tape, op.scale(tape, x), "silu")  # silu keeps its input, the scaled x
    assert size(tape.live[ACTIVATIONS]) == 200
    del x
    backward(tape, out)
    assert size(tape.live[ACTIVATIONS]) == 0


def test_a_tensor_saved_by_several_operations_is_kept_once(tape, x):
    shared = op.scale(tape, x)
    outs = [op.activation(tape, shared, "silu") for _ in range(3)]
    assert len(outs) == 3
    assert size(tape.live[ACTIVATIONS]) == 200


def test_parameters_are_not_counted_here(tape, x):
    weight = tape.leaf(ONE * 5000, 2, requires_grad=True, keeps=True)
    out = op.matmul(tape, x, weight, TOKENS * 50)
    assert alive(tape) == 200 + 100  # input and output; the ledger counts the weight
    assert size(tape.live[ACTIVATIONS]) == 200  # the weight trains, so its input is kept
    assert out.node is not None


class TestGradients:
    def test_a_parameters_gradient_stays(self, tape, x):
        weight = tape.leaf(ONE * 5000, 2, requires_grad=True, keeps=True)
        out = op.matmul(tape, x, weight, TOKENS * 50)
        del x
        backward(tape, out)
        assert size(tape.live[GRADIENTS]) == 10_000

    def test_accumulating_adds_it_to_the_one_that_is_there(self):
        tape = Tape(autocast=False, accumulates=True)
        x = tape.leaf(WIDE, 2, requires_grad=False, storage=tape.new(WIDE, 2).storage)
        weight = tape.leaf(ONE * 5000, 2, requires_grad=True, keeps=True)
        out = op.matmul(tape, x, weight, TOKENS * 50)
        backward(tape, out)
        assert size(tape.live[GRADIENTS]) == 0  # the ledger has it, in every phase
        assert max(size(e) for e in tape.events) >= 10_000  # and one more is alive until it is added

    @staticmethod
    def peak_of_two_uses(tape, x, use):
        """Backward through two uses of one tensor, each with an output of 20 bytes: what is alive at most beside x and the output."""
        shared = op.scale(tape, x)
        outs = [use(shared) for _ in range(2)]
        out = op.add(tape, *outs)
        del shared, outs
        tape.events.clear()
        backward(tape, out)
        return max(size(e) for e in tape.events) - 200 - 20

    def test_two_gradients_of_one_tensor_are_added_in_place(self, tape, x):
        # torch/csrc/autograd/input_buffer.cpp: the sum goes into the first where nothing else holds it
        peak = self.peak_of_two_uses(tape, x, lambda shared: op.narrow(tape, shared, WIDE / 10))
        assert peak == 20 + 2 * 200

    def test_a_gradient_that_is_a_view_is_added_out_of_place(self, tape, x):
        weight = tape.leaf(ONE * 1000, 2, requires_grad=False)  # a matrix product's gradient is a transposed view
        peak = self.peak_of_two_uses(tape, x, lambda shared: op.matmul(tape, shared, weight, WIDE / 10))
        assert peak == 3 * 200

    def test_a_gradient_is_cast_to_its_inputs_width(self, tape, x):
        wide = op.cast(tape, x, 4)
        out = op.scale(tape, wide)
        del wide
        backward(tape, out)
        assert x.leaf.grad.width == 2


class TestCheckpointing:
    @pytest.fixture
    def layer(self, tape):
        def run(x):
            return op.scale(tape, op.activation(tape, op.activation(tape, op.scale(tape, x), "silu"), "silu"))

        return run

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_only_the_input_is_kept(self, tape, x, layer, reentrant):
        out = tape.checkpoint(layer, op.scale(tape, x), reentrant=reentrant)
        assert out.requires_grad
        assert size(tape.live[CHECKPOINTS]) == 200
        assert size(tape.live[ACTIVATIONS]) == 0

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_the_rest_comes_back_for_the_backward_pass_and_goes(self, tape, x, layer, reentrant):
        out = tape.checkpoint(layer, op.scale(tape, x), reentrant=reentrant)
        backward(tape, out)
        assert max(size(e[RECOMPUTED]) for e in tape.events) == 400  # the inputs of both activations
        assert size(tape.live[RECOMPUTED]) == 0
        assert size(tape.live[CHECKPOINTS]) == 0

    def test_recomputing_stops_at_the_last_tensor_that_is_needed(self, tape, x):
        """torch.utils.checkpoint's early stop: what follows the last saved tensor is not run again."""
        finished = []

        def run(x):
            wide = op.cast(tape, op.activation(tape, x, "silu"), 8)  # saves nothing; 800 bytes
            finished.append(wide.width)
            return op.cast(tape, wide, 2)

        out = tape.checkpoint(run, op.scale(tape, x), reentrant=False)
        tape.events.clear()
        backward(tape, out)
        assert len(finished) == 1
        # x, the checkpointed input, the result and its gradient, which becomes one of 800; made again, wide would be beside them
        assert max(size(e) for e in tape.events) == 4 * 200 + 800

    def test_it_stops_before_a_product_whose_inputs_are_the_last_that_are_needed(self, tape, x):
        """autograd saves a product's inputs before it runs."""
        weight = tape.leaf(ONE * 5000, 2, requires_grad=True, keeps=True)
        finished = []

        def run(x):
            out = op.matmul(tape, op.scale(tape, x), weight, TOKENS * 500)
            finished.append(out.width)
            return out

        out = tape.checkpoint(run, op.scale(tape, x), reentrant=False)
        tape.events.clear()
        backward(tape, out)
        assert len(finished) == 1
        # x, the checkpointed input, the product's input and its gradient; the result and its gradient, but not the result once more
        assert max(float(e[:, BASIS.index("tokens")].sum()) for e in tape.events) == 4 * 200 + 2 * 1000


def test_autocast_casts_a_weight_once_and_keeps_the_copy():
    tape = Tape(autocast=True)
    layers = Layers(model=None, flow=None, tape=tape)
    weight = layers.parameter(ONE * 1000, 4, trains=True)
    first, second = layers.weight(weight, "q_proj"), layers.weight(weight, "q_proj")
    assert first is second
    del first, second
    assert size(tape.live[INDEX["weight_casts"]]) == 2000
    tape.leave_autocast()
    assert size(tape.live[INDEX["weight_casts"]]) == 0


def test_what_exists_only_inside_a_kernel_is_noted_with_it(tape, x):
    tape.note(TOKENS * 7)
    assert size(tape.events[-1]) == alive(tape) + 7
    assert size(tape.events[-1][WORKING]) == size(tape.live[WORKING]) + 7


def test_every_event_is_a_table_of_terms_by_sizes(tape, x):
    op.scale(tape, x)
    assert all(np.shape(e) == (len(TERMS), len(BASIS)) for e in tape.events)
