"""What is counted in the text of a compiled program, against numbers worked out by hand.

The text is in the words of a TPU program: three layers a token, of which each gathers its weights,
writes the cache and reads a layer of it; then a loop of seven turns, a conditional and a copy into
on-chip memory, S(1).
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from gigpo_jax.learner.expected_tokens import FILL
from gigpo_jax.tools.preflight.cost import Cost, count_cost
from gigpo_jax.tools.preflight.hlo import Program, Shape

TEXT = (Path(__file__).parents[2] / "data" / "hlo" / "step.txt").read_text()
TOKENS = 5
LAYER = 8 * 2 * 512 * 128 * 2  # bytes of one layer of the cache


@pytest.fixture(scope="module")
def counted() -> Cost:
    return count_cost(Program(TEXT), (TOKENS,))


def test_products_count_as_often_as_their_loops_turn(counted: Cost) -> None:
    layer = (
        2 * 8 * 256 * 256 + 2 * 8 * 2 * 6 * 512 * 128
    )  # the projection; the scores of each slot and head alone
    attention = (
        3 * 2 * (2 * 512 * 512 * 64) / 2
    )  # three products of two heads, the half that is causal
    turn = 2 * 16 * 16 * 32 + 1000 + attention  # a dot, and what the custom call says of itself
    assert counted.operations == TOKENS * 3 * layer + 7 * turn


def test_bytes_are_those_that_move_to_or_from_main_memory(counted: Cost) -> None:
    read = 64 * 256 * 2 + 8 * 256 * 2  # one layer of the weights, the input
    written = 8 * 2 * 128 * 2  # the new token, in place: not the cache
    copied = (
        LAYER + LAYER
    )  # a layer of the cache read, and written once: the other result stays on the chip
    scores = LAYER
    turn = 4 * 16 * 32 * 4 + 16 * 16 * 4 + 16 * 32 * 4
    once = (
        2 * 3 * LAYER + 64 * 1000 * 4
    )  # the cache in another layout; half of a copy into on-chip memory
    assert counted.bytes == TOKENS * 3 * (read + written + copied + scores) + 7 * turn + once


def test_collectives_count_by_kind(counted: Cost) -> None:
    assert counted.sent == {"all-gather": TOKENS * 3 * 256 * 256 * 2}


def test_copies_are_found_in_loops_and_outside(counted: Cost) -> None:
    whole = Shape("bf16", (3, 8, 2, 512, 128))
    layer = Shape("bf16", (1, 8, 2, 512, 128))
    assert counted.copied == {(whole, False): 3 * LAYER, (layer, True): TOKENS * 3 * LAYER}


def test_a_program_that_this_machine_compiles() -> None:
    """XLA's own text today, not on the day of the file: a scan over layers in a while loop."""

    def step(w: jax.Array, x: jax.Array, turns: jax.Array) -> jax.Array:
        def turn(_: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

        return jax.lax.fori_loop(0, turns, turn, x)

    w = jnp.zeros((6, 32, 32))
    x = jnp.zeros((16, 32))
    counted = count_cost(Program(jax.jit(step).lower(w, x, 4).compile().as_text()), (4,))
    assert counted.operations == 4 * 6 * 2 * 16 * 32 * 32
    least = 4 * 6 * 4 * (32 * 32 + 2 * 16 * 32)  # each layer's weights, its input and output
    assert least <= counted.bytes <= 4 * least


def test_a_loop_of_unknown_turns_in_another_counts_as_said_or_once() -> None:
    """The blocks of a cache that are filled, in the loop over tokens."""

    def step(w: jax.Array, x: jax.Array, turns: jax.Array, blocks: jax.Array) -> jax.Array:
        def turn(_: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, blocks, lambda _, x: jnp.tanh(x @ w), x)

        return jax.lax.fori_loop(0, turns, turn, x)

    text = jax.jit(step).lower(jnp.zeros((32, 32)), jnp.zeros((16, 32)), 4, 3).compile().as_text()
    assert count_cost(Program(text), (4,)).operations == 4 * 2 * 16 * 32 * 32
    assert count_cost(Program(text), (4, 3)).operations == 4 * 3 * 2 * 16 * 32 * 32


def test_products_of_experts_count_those_that_are_here() -> None:
    """Two of eight experts: a quarter of the rows, in a product and in the gradient of matrices."""
    call = (
        'custom-call(%n, %x, {}), custom_call_target="tpu_custom_call", metadata={{op_name="{}"}}'
    )
    estimate = ', backend_config={"cost_estimate":{"flops":"16384","transcendentals":"0"}}'
    lines = [
        "ENTRY %main (x: bf16[64,8], k: bf16[2,8,16], n: s32[2]) -> bf16[2,8,16] {",
        "  %x = bf16[64,8]{1,0} parameter(0)",
        "  %k = bf16[2,8,16]{2,1,0} parameter(1)",
        "  %n = s32[2]{0} parameter(2)",
        f"  %y = bf16[64,16]{{1,0}} {call.format('%k', 'jit(f)/ragged-dot-none')}{estimate}",
        f"  ROOT %z = bf16[2,8,16]{{2,1,0}} {call.format('%y', 'jit(f)/jit(tgmm)/call')}{estimate}",
        "}",
    ]
    text = "\n".join(lines)
    assert count_cost(Program(text), ()).operations == 2 * 16384
    assert count_cost(Program(text, experts=8), ()).operations == 2 * 16384 / 4
    other = text.replace("ragged-dot-none", "other").replace("tgmm", "other")
    assert count_cost(Program(other, experts=8), ()).operations == 2 * 16384


@pytest.mark.parametrize("heads", [4, 8])
@pytest.mark.parametrize(
    ("target", "operands"),
    [
        ("__cudnn$fmhaSoftmax", "%q, %k, %k"),
        ("__cudnn$fmhaScaleBiasSoftmax", "%q, %k, %k, %m"),
        ("splash_mha_fwd", "%s, %k"),
        ("splash_mha_fwd", "%t, %s, %k"),
    ],
)
def test_attention_counts_its_queries_and_no_mask(heads: int, target: str, operands: str) -> None:
    """Masks are larger than the queries here; what they save is not known."""
    query = f"bf16[2,64,{heads},8]"
    lines = [
        f"ENTRY %main (q: {query}, k: bf16[2,64,2,8], m: bf16[2,1,64,64]) -> {query} {{",
        f"  %q = {query}{{3,2,1,0}} parameter(0)",
        "  %k = bf16[2,64,2,8]{3,2,1,0} parameter(1)",
        "  %m = bf16[2,1,64,64]{3,2,1,0} parameter(2)",
        f"  %s = bf16[2,{heads},64,8]{{3,2,1,0}} parameter(3)",
        "  %t = s32[2,4,64,64]{3,2,1,0} parameter(4)",
        f'  ROOT %y = {query}{{3,2,1,0}} custom-call({operands}), custom_call_target="{target}"',
        "}",
    ]
    # Two products, and half of the pairs of tokens.
    expected = 2 * 2 * 2 * heads * 8 * 64 * 64 / 2
    assert count_cost(Program("\n".join(lines)), ()).operations == expected


def test_the_decode_kernel_reads_the_filled_part_of_a_layer() -> None:
    cache = "bf16[4,16,2,1280,8]"
    call = 'custom-call(%q, %c, %c), custom_call_target="__gpu$xla.gpu.triton", metadata={NAME}'
    lines = [
        f"ENTRY %main (q: bf16[16,2,6,8], c: {cache}) -> f32[16,2,6,8] {{",
        "  %q = bf16[16,2,6,8]{3,2,1,0} parameter(0)",
        f"  %c = {cache}{{4,3,2,1,0}} parameter(1)",
        f"  ROOT %y = f32[16,2,6,8]{{3,2,1,0}} {call}",
        "}",
    ]
    text = "\n".join(lines)
    kernel = Program(text.replace("NAME", 'op_name="jit(f)/decode_attention/pallas_call"'))
    small = 16 * 2 * 6 * 8 * (2 + 4)
    entry = 2 * 16 * 2 * 8 * 2  # of keys and values, in one layer
    assert count_cost(kernel, ()).bytes == small + FILL * 1280 * entry
    other = Program(text.replace("NAME", 'op_name="jit(f)/other"'))
    assert count_cost(other, ()).bytes == small + 4 * 1280 * entry


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="ENTRY"):
        Program("module @jit_step {\n}\n")
