"""The policy gradient that advantages give, for each task group by itself.

The gradient is linear in the advantages, so one backward pass a step serves all estimates. What is kept of a step's
gradient is a sketch: all its entries with random signs, folded into `WIDTH` sums. Inner products of sketches are those
of the gradients but for an error of about 1 / sqrt(WIDTH) of the product of their lengths.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.models.images import PromptImages, distinct
from gigpo_jax.models.vision import Images, pack_images
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.logprobs import token_logprobs
from gigpo_jax.trajectory import Step

WIDTH = 8192


def group_gradients(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, trained: Any, steps: Sequence[Step]
) -> Callable[[np.ndarray], np.ndarray]:
    """Builds advantages [N] -> sketches of the gradients [G, WIDTH] f32 of sum of advantage x log-probability.

    Args:
      config: as from `config.resolve`.
      policy: the model.
      mesh: of one device.
      trained: the parameters that the gradient is of, in place of `policy.trained`.
      steps: N steps; those of a task group give one row of the result, groups in ascending order.
    """
    forward = forward_function(config, policy.config, mesh)
    length = max(len(s.turn.prompt_tokens) + len(s.turn.response_tokens) - 1 for s in steps)
    responses = max(len(s.turn.response_tokens) for s in steps)

    def logprob(
        trained: Any, frozen: Any, tokens: jax.Array, first: jax.Array, targets: jax.Array, pictures: Any
    ) -> jax.Array:
        known = (tokens >= 0).astype(jnp.int32)[None]
        positions, images = pictures or (jnp.arange(length)[None] * known, None)
        hidden, embedding = forward(trained, frozen, jnp.maximum(tokens, 0)[None], positions, known, images)
        at = jnp.minimum(first + jnp.arange(responses), length - 1)
        how = {"chunk": config.batch.logprob_chunk, "temperature": config.sampling.temperature}
        values, _ = token_logprobs(hidden[0, at], embedding, jnp.maximum(targets, 0), **how)
        return jnp.sum(jnp.where(targets >= 0, values, 0.0))

    @jax.jit
    def sketch(*inputs: Any) -> jax.Array:
        leaves = jax.tree.leaves(jax.grad(logprob)(*inputs))
        return jnp.sum(jnp.stack([folded(leaf, number) for number, leaf in enumerate(leaves)]), 0)

    def of(step: Step) -> np.ndarray:
        prompt, response = step.turn.prompt_tokens, step.turn.response_tokens
        tokens = _padded(np.concatenate([prompt, response])[:-1], length)
        targets, pictures = _padded(response, responses), _pictures(step.turn.images, length)
        return np.asarray(sketch(trained, policy.frozen, tokens, len(prompt) - 1, targets, pictures))

    sketches = np.stack([of(step) for step in tqdm(steps, desc="gradients", unit="step", leave=False, disable=None)])
    _, group = np.unique([step.group for step in steps], return_inverse=True)

    def gradients(advantages: np.ndarray) -> np.ndarray:
        sums = np.zeros((group.max() + 1, WIDTH), np.float32)
        np.add.at(sums, group, advantages[:, None].astype(np.float32) * sketches)
        return sums

    return gradients


def folded(array: jax.Array, number: int) -> jax.Array:
    """The sketch [WIDTH] f32 of an array; `number` chooses its signs."""
    flat = jnp.pad(array.astype(jnp.float32).ravel(), (0, -array.size % WIDTH))
    signs = jax.random.rademacher(jax.random.key(number), flat.shape, jnp.float32)
    return (flat * signs).reshape(-1, WIDTH).sum(0)


def _pictures(prompt: PromptImages | None, length: int) -> tuple[np.ndarray, Images] | None:
    """The positions [1, 3, length] and the images of one step; each size of images is compiled for."""
    if prompt is None:
        return None
    end, positions = len(prompt.layout.index), np.tile(np.arange(length, dtype=np.int32), (1, 3, 1))
    positions[0, :, :end], positions[0, :, end:] = prompt.layout.positions, positions[0, :, end:] + prompt.layout.shift
    images, (index,) = distinct([prompt])
    row, longest = _padded(index, length)[None], max(len(image.patches) for image in images)
    return positions, pack_images(images, row, number=len(images), longest=longest)


def _padded(tokens: np.ndarray, length: int) -> np.ndarray:
    return np.pad(tokens.astype(np.int32), (0, length - len(tokens)), constant_values=-1)
