"""Training samples: one environment step each, as tokens with advantages and weights."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gigpo_jax.trajectory import Step, StepCredit, continues_tokens

if TYPE_CHECKING:
    from gigpo_jax.models.vision.images import PromptImages


@dataclass(frozen=True)
class Sample:
    """One environment step: a prompt and the response to it.

    Attributes:
      prompt_tokens: [P] i32, P >= 1.
      response_tokens: [R] i32, the exact tokens that were sampled.
      logprobs: [R] f32, nats; behaviour log-probabilities of the response tokens.
      advantage: advantage of every response token, or [R] f32.
      weight: weight of every response token in the loss, or [R] f32, all above 0.
      images: images of the prompt; None for a prompt of text alone.
      routes: [P + R - 1, R'] integers, experts that the tokens of the model's input went through in
        the rollout; None: the routers choose.
      fields: optional fields of `StepBatch` by name: one number, or [R], or a pytree of these.
    """

    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    logprobs: np.ndarray
    advantage: float | np.ndarray = 0.0
    weight: float | np.ndarray = 1.0
    images: "PromptImages | None" = None
    routes: np.ndarray | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of `input_tokens`; 0 without a response, from which nothing is learned."""
        if len(self.response_tokens) == 0:
            return 0
        return len(self.prompt_tokens) + len(self.response_tokens) - 1

    @property
    def input_tokens(self) -> np.ndarray:
        """The model's input: all tokens but the last one, which predicts nothing."""
        return np.concatenate([self.prompt_tokens, self.response_tokens[:-1]])

    def continues(self, earlier: "Sample") -> bool:
        """Tests whether the prompt begins with an earlier prompt, its images and its response."""
        past = (earlier.prompt_tokens, earlier.response_tokens)
        if not continues_tokens(self.prompt_tokens, *past):
            return False
        if self.images is None or earlier.images is None:
            return self.images is earlier.images
        # Equal tokens have places for equal numbers of features, whatever the images show.
        digests = [image.digest for image in earlier.images.images]
        first_images = self.images.images[: len(digests)]
        return digests == [image.digest for image in first_images]


Text = Sequence[Sample]  # a sample, or several of which each continues the one before


def join_continuations(samples: Sequence[Sample]) -> list[np.ndarray]:
    """Lists the samples of each text, [k] i64 indices of samples that continue each other."""
    starts = [
        number
        for number, (earlier, sample) in enumerate(itertools.pairwise(samples), start=1)
        if not sample.continues(earlier)
    ]
    # Without samples there is no text.
    return np.split(np.arange(len(samples)), starts) if samples else []


def step_samples(steps: Sequence[Step]) -> list[Sample]:
    """One sample a step, without advantages."""
    samples = []
    for step in steps:
        turn = step.turn
        tokens = (turn.prompt_tokens, turn.response_tokens, turn.logprobs)
        samples.append(Sample(*tokens, images=turn.images, routes=turn.routes))
    return samples


def training_samples(
    samples: Sequence[Sample],
    credit: StepCredit,
    weights: Sequence[float | np.ndarray],
    fields: Mapping[str, Sequence[Any]],
) -> list[Sample]:
    """Returns the learned samples with their advantages, weights and optional fields."""
    out = []
    for row in credit.learned_rows:
        sample = samples[row]
        if credit.tokens is None:
            advantage = credit.total[row]
        else:
            # Rows of `tokens` are padded to the longest response.
            advantage = credit.tokens[row, : len(sample.response_tokens)]
        sample_fields = {name: values[row] for name, values in fields.items()}
        out.append(replace(sample, advantage=advantage, weight=weights[row], fields=sample_fields))
    return out
