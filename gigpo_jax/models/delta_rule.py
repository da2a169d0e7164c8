"""The gated delta rule (arXiv 2412.06464), a recurrence over tokens, and its short convolution.

A head has a state S [K, V]. A token with query q, key k, value v, rate b and decay a changes it to
S' = a S + b k (v - a S^T k)^T and reads S'^T q. Texts are computed in chunks of tokens, whose
changes are solved together (arXiv 2406.06484, section 3.2); single tokens by the recurrence. All
numbers are float32: a state sums over a whole text.

R value heads share each of G key heads.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK = 64  # tokens; the published code has the same


def delta_rule(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
    segment_ids: jax.Array,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
    """Runs packed texts, each from an empty state.

    Args:
      query: [B, T, G, K] f32.
      key: [B, T, G, K] f32, of length 1.
      value: [B, T, G, R, V] f32.
      rate: [B, T, G, R] f32, from 0 to 1.
      log_decay: [B, T, G, R] f32, at most 0.
      segment_ids: [B, T] i32, ascending from 1; 0 for padding, which comes last.
      chunk: tokens that are solved together, a power of two.

    Returns:
      What the tokens read [B, T, G, R, V] f32, and the states [B, G, R, K, V] f32 behind the last
      token of each row's last text.
    """
    solved = solve_chunks(query, key, value, rate, log_decay, segment_ids, chunk)
    batch, _, groups, shared, value_dim = value.shape
    state = jnp.zeros((batch, groups, shared, key.shape[-1], value_dim))
    state, read = run_chunks(state, solved)
    return join_chunks(read, query.shape[1]), state


class SolvedChunks(NamedTuple):
    """What N chunks of C tokens in B rows do with a state, f32.

    Attributes:
      written: [N, B, G, R, C, V], values less what earlier tokens of the chunk predict.
      predicted: [N, B, G, R, C, K], for what the state predicts of them.
      scores: [N, B, G, R, C, C], of the chunk's tokens for its tokens.
      state_query: [N, B, G, R, C, K], queries of the state.
      end_key: [N, B, G, R, K, C], keys with their decay up to the chunk's end.
      state_decay: [N, B, G, R], decay of the state; 0 where a text begins in the chunk.
    """

    written: jax.Array
    predicted: jax.Array
    scores: jax.Array
    state_query: jax.Array
    end_key: jax.Array
    state_decay: jax.Array


def solve_chunks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
    segment_ids: jax.Array,
    chunk: int = CHUNK,
) -> SolvedChunks:
    """Solves all that does not depend on a state; arguments as for `delta_rule`."""
    is_token = (segment_ids > 0)[..., None, None]
    # Padding changes nothing: it lies in the text before it, with rate 0 and without decay.
    segments = _split_chunks(jax.lax.cummax(segment_ids, axis=1), chunk)  # [N, B, C]
    # Heads before tokens, [N, B, G, R, C, ...]: all sums below are products of matrices. Queries
    # and keys have an R of 1.
    query, key = (_chunk_heads(x[:, :, :, None], chunk) for x in (query, key))
    value, rate, log_decay = (
        _chunk_heads(x, chunk) for x in (value, rate * is_token, log_decay * is_token)
    )
    decay = jnp.cumsum(log_decay, axis=-1)
    same_text = segments[:, :, :, None] == segments[:, :, None, :]
    visible = same_text & jnp.tril(jnp.ones((chunk, chunk), bool))
    # [N, B, G, R, C, C], the later token first: decays behind the earlier one up to the later one.
    # Of hidden tokens the exponent may be large: it is masked, so that its gradient is not NaN.
    between = decay[..., :, None] - decay[..., None, :]
    between = jnp.exp(jnp.where(_per_head(visible), between, -jnp.inf))

    turned_key = jnp.swapaxes(key, -1, -2)
    changes = jnp.tril((key @ turned_key) * between * rate[..., None], -1)
    solution = _invert(changes + jnp.eye(chunk))
    # Whether a token's text began before its chunk; before the first one there is the state that
    # the row begins with.
    previous = jnp.concatenate([segments[:1, :, 0], segments[:-1, :, -1]])
    from_state = jnp.exp(decay) * _per_head(segments == previous[:, :, None])
    to_end = jnp.exp(decay[..., -1:] - decay) * _per_head(segments == segments[:, :, -1:])

    # A token writes its value less what the state and the chunk's earlier tokens predict.
    return SolvedChunks(
        written=solution @ (value * rate[..., None]),
        predicted=solution @ (key * (rate * from_state)[..., None]),
        scores=(query @ turned_key) * between,
        state_query=query * from_state[..., None],
        end_key=turned_key * to_end[..., None, :],
        state_decay=from_state[..., -1],
    )


def run_chunks(state: jax.Array, chunks: SolvedChunks) -> tuple[jax.Array, jax.Array]:
    """Runs chunks one after the other.

    Args:
      state: [B, G, R, K, V] f32 before the first one; or without B, as in the chunks.
      chunks: result of `solve_chunks`.

    Returns:
      The state behind the last chunk, and what the tokens read [N, B, G, R, C, V] f32.
    """

    def run_chunk(state: jax.Array, chunk: SolvedChunks) -> tuple[jax.Array, jax.Array]:
        written = chunk.written - chunk.predicted @ state
        read = chunk.state_query @ state + chunk.scores @ written
        return state * chunk.state_decay[..., None, None] + chunk.end_key @ written, read

    return jax.lax.scan(run_chunk, state, chunks)


def join_chunks(read: jax.Array, length: int) -> jax.Array:
    """Joins what the tokens of chunks read, [N, B, G, R, C, V] -> [B, T, G, R, V]."""
    read = jnp.transpose(read, (1, 0, 4, 2, 3, 5))
    return read.reshape(len(read), -1, *read.shape[3:])[:, :length]


def delta_step(
    state: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    rate: jax.Array,
    log_decay: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Runs one token of each row.

    Args:
      state: [B, G, R, K, V] f32.
      query: [B, G, K] f32; this and the other arguments are as for `delta_rule`, without T.
      key: [B, G, K] f32.
      value: [B, G, R, V] f32.
      rate: [B, G, R] f32.
      log_decay: [B, G, R] f32.

    Returns:
      What the tokens read [B, G, R, V] f32, and the new states.
    """
    # Sums, not products of matrices: matrix units compute with fewer digits by default.
    state = state * jnp.exp(log_decay)[..., None, None]
    key = key[:, :, None, :, None]
    predicted = jnp.sum(state * key, axis=-2)
    state = state + key * ((value - predicted) * rate[..., None])[..., None, :]
    return jnp.sum(state * query[:, :, None, :, None], axis=-2), state


def convolve(x: jax.Array, taps: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Convolves each channel over the last W tokens of its own text.

    Args:
      x: [B, T, C].
      taps: [C, 1, W] f32, the newest token's last.
      segment_ids: [B, T] i32.

    Returns:
      [B, T, C] f32.
    """
    width = taps.shape[-1]
    result = x * taps[:, 0, -1]
    for age in range(1, width):
        earlier = jnp.pad(x, [(0, 0), (age, 0), (0, 0)])[:, : x.shape[1]]
        segments = jnp.pad(segment_ids, [(0, 0), (age, 0)])[:, : x.shape[1]]
        is_same = (segments == segment_ids)[..., None]
        result += jnp.where(is_same, earlier, 0.0) * taps[:, 0, width - 1 - age]
    return result


def _split_chunks(x: jax.Array, chunk: int) -> jax.Array:
    """Cuts texts into chunks, [B, T, ...] -> [N, B, C, ...], with zeros behind the last token."""
    batch, length = x.shape[:2]
    count = -(-length // chunk)
    # Segment ids end with their last one: the padding lies in the last text.
    mode = "edge" if x.dtype == jnp.int32 else "constant"
    x = jnp.pad(x, [(0, 0), (0, count * chunk - length), *[(0, 0)] * (x.ndim - 2)], mode=mode)
    return jnp.moveaxis(x.reshape(batch, count, chunk, *x.shape[2:]), 1, 0)


def _chunk_heads(x: jax.Array, chunk: int) -> jax.Array:
    """Cuts texts into chunks of each head, [B, T, G, R, ...] -> [N, B, G, R, C, ...]."""
    return jnp.moveaxis(_split_chunks(x, chunk), 2, 4)


def _per_head(x: jax.Array) -> jax.Array:
    return x[:, :, None, None]


@jax.custom_vjp
def _invert(matrix: jax.Array) -> jax.Array:
    """Inverts lower triangular matrices [..., C, C] with ones on the diagonal."""
    # Halves of halves, by products alone: solvers of triangular systems are slow on accelerators,
    # and not split over devices. A series of powers would lose all digits to cancellation.
    size = matrix.shape[-1]
    if size == 1:
        return matrix
    half = size // 2
    blocks = jnp.stack([matrix[..., :half, :half], matrix[..., half:, half:]])
    first, second = _invert(blocks)
    below = -_multiply(_multiply(second, matrix[..., half:, :half]), first)
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([upper, jnp.concatenate([below, second], axis=-1)], axis=-2)


def _multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    # Full float32: errors of one level would grow in the next ones.
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _invert_forward(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = _invert(matrix)
    return inverse, inverse


def _invert_backward(inverse: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    transposed = jnp.swapaxes(inverse, -1, -2)
    return (-_multiply(_multiply(transposed, gradient), transposed),)


_invert.defvjp(_invert_forward, _invert_backward)
