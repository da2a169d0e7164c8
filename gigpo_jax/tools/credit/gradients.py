"""The policy gradient that advantages give, for each task group by itself.

The gradient is linear in the advantages, so one backward pass a step serves all estimates. What is
kept of a step's gradient is a sketch: all its entries with random signs, folded into `WIDTH` sums.
Inner products of sketches are inner products of the gradients but for an error of about
1 / sqrt(WIDTH) of the product of their lengths.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.models.vision.images import PromptImages, distinct_images
from gigpo_jax.models.vision.vision import Images, pack_images
from gigpo_jax.policy import Policy, forward_function
from gigpo_jax.rl.logprobs import token_logprobs
from gigpo_jax.run.tracking import track
from gigpo_jax.trajectory import Step

WIDTH = 8192


class _StepInputs(NamedTuple):
    """A step as the gradient's program reads it.

    Attributes:
      tokens: [T] i32, the model's input; -1 in padding.
      last_prompt_token: [] i32, index of the prompt's last token.
      targets: [C] i32, response tokens; -1 in padding.
      pictures: Result of `_pack_pictures`.
    """

    tokens: Any
    last_prompt_token: Any
    targets: Any
    pictures: Any


def group_gradients(
    config: ConfigDict, policy: Policy, mesh: jax.sharding.Mesh, trained: Any, steps: Sequence[Step]
) -> Callable[[np.ndarray], np.ndarray]:
    """Builds a function from advantages to sketches of policy gradients.

    A policy gradient is the gradient of sum(advantage x log-probability) with respect to `trained`.

    Args:
      config: Resolved config.
      policy: Model whose forward pass is used.
      mesh: Mesh of one device.
      trained: Parameters in place of `policy.trained`.
      steps: N steps.

    Returns:
      Function from [N] to [G, WIDTH] f32, one row a task group, groups in ascending order.
    """
    forward = forward_function(config, policy.config, mesh)
    # One length for all steps, so that the program is compiled once for texts.
    length = max(len(s.turn.prompt_tokens) + len(s.turn.response_tokens) - 1 for s in steps)
    responses = max(len(s.turn.response_tokens) for s in steps)

    def logprob(trained: Any, frozen: Any, step: _StepInputs) -> jax.Array:
        # Padding is -1, in segment 0, which nothing attends to. It is no token id: 0 stands for it.
        segments = (step.tokens >= 0).astype(jnp.int32)[None]
        positions, images = step.pictures or (jnp.arange(length)[None] * segments, None)
        hidden, embedding = forward(
            trained, frozen, jnp.maximum(step.tokens, 0)[None], positions, segments, images
        )
        # Position p predicts token p + 1, so the response starts at the last token of the prompt.
        # Behind a short response the index stops at the end, and its targets are masked below.
        response_index = jnp.minimum(step.last_prompt_token + jnp.arange(responses), length - 1)
        values, _ = token_logprobs(
            hidden[0, response_index],
            embedding,
            jnp.maximum(step.targets, 0),
            chunk=config.batch.logprob_chunk,
            temperature=config.sampling.temperature,
        )
        return jnp.sum(jnp.where(step.targets >= 0, values, 0.0))

    @jax.jit
    def sketch(*inputs: Any) -> jax.Array:
        # Folded in the same program: the whole gradient of a step never leaves the device.
        leaves = jax.tree.leaves(jax.grad(logprob)(*inputs))
        return jnp.sum(
            jnp.stack([fold_array(leaf, number) for number, leaf in enumerate(leaves)]), 0
        )

    sketches = np.stack(
        [
            np.asarray(sketch(trained, policy.frozen, _pad_step(step, length, responses)))
            for step in track(steps, "gradients", unit="steps")
        ]
    )
    _, group = np.unique([step.episode.group for step in steps], return_inverse=True)

    def gradients(advantages: np.ndarray) -> np.ndarray:
        # Linear in the advantages: an estimate needs no backward pass of its own.
        sums = np.zeros((group.max() + 1, WIDTH), np.float32)
        np.add.at(sums, group, advantages[:, None].astype(np.float32) * sketches)
        return sums

    return gradients


def fold_array(array: jax.Array, number: int) -> jax.Array:
    """Sketches an array as [WIDTH] f32; `number` chooses the signs."""
    flat = jnp.pad(array.astype(jnp.float32).ravel(), (0, -array.size % WIDTH))
    # The same signs for every step, so that sketches can be added and multiplied. Every leaf has
    # signs of its own: sums of two leaves then do not add up in step with each other.
    signs = jax.random.rademacher(jax.random.key(number), flat.shape, jnp.float32)
    return (flat * signs).reshape(-1, WIDTH).sum(0)


def _pad_step(step: Step, length: int, responses: int) -> _StepInputs:
    """Pads a step to T = `length` tokens and C = `responses` response tokens."""
    prompt = step.turn.prompt_tokens
    response = step.turn.response_tokens
    return _StepInputs(
        # The last token predicts nothing.
        tokens=_pad(np.concatenate([prompt, response])[:-1], length),
        last_prompt_token=len(prompt) - 1,
        targets=_pad(response, responses),
        # Text steps have no pictures, and their positions are counted in the program.
        pictures=_pack_pictures(step.turn.images, length),
    )


def _pack_pictures(prompt: PromptImages | None, length: int) -> tuple[np.ndarray, Images] | None:
    """The positions [1, 3, length] and images of one step.

    The program is compiled once for each size of images.
    """
    if prompt is None:
        return None
    end = len(prompt.layout.index)
    positions = np.tile(np.arange(length, dtype=np.int32), (1, 3, 1))
    positions[0, :, :end] = prompt.layout.positions
    # Tokens behind the images continue from the largest position, not from their index (M-RoPE).
    positions[0, :, end:] += prompt.layout.shift
    images, (index,) = distinct_images([prompt])
    row = _pad(index, length)[None]
    longest = max(len(image.patches) for image in images)
    return positions, pack_images(
        images, row, number=len(images), longest=longest, values=prompt.patch_values
    )


def _pad(tokens: np.ndarray, length: int) -> np.ndarray:
    return np.pad(tokens.astype(np.int32), (0, length - len(tokens)), constant_values=-1)
