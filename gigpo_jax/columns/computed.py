"""The optional columns of `StepColumns`: log-probabilities, tags, known answers, values."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from ml_collections import ConfigDict

from gigpo_jax.batching import Sample, step_samples
from gigpo_jax.columns.tagged import tag_columns
from gigpo_jax.columns.text_critic import TextCritic
from gigpo_jax.columns.token_logprobs import TokenLogprobs
from gigpo_jax.envs import registry
from gigpo_jax.models.tokenizer import Tokenizer
from gigpo_jax.trajectory import Step


def computed_columns(
    needs: Collection[str],
    steps: Sequence[Step],
    logprobs: Callable[[Sequence[Sample]], TokenLogprobs],
    config: ConfigDict,
    tokenizer: Tokenizer,
    critic: TextCritic | None = None,
) -> dict[str, np.ndarray]:
    """Those of the columns that are needed, [N] each.

    Args:
      needs: names of columns; other names are passed over.
      steps: of this host; all hosts call this together.
      logprobs: samples -> log-probabilities under the policy before the updates.
      config: as from `config.resolve`.
      tokenizer: of the policy.
      critic: it tells the column `value`; None: there is none.
    """
    columns: dict[str, np.ndarray] = {}
    if not {"entropy", "logprob"}.isdisjoint(needs):
        columns |= logprobs(step_samples(steps)).means()
    if not {"tag", "step_reward"}.isdisjoint(needs):
        columns |= tag_columns(steps)
    if critic is not None:
        columns["value"] = critic.values(steps)
    if "answer_logprob" in needs:
        limit = config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
        prefix = tokenizer.encode(registry.spec(config.env.name).answer_prefix)
        samples = [_answer_sample(step, prefix, tokenizer.encode(step.answer), limit) for step in steps]
        columns["answer_logprob"] = logprobs(samples).means()["logprob"]
    return {name: column for name, column in columns.items() if name in needs}


def _answer_sample(step: Step, prefix: Sequence[int], answer: Sequence[int], limit: int) -> Sample:
    """The answer behind the step's prompt, in at most `limit` tokens: the end of the answer and the begin of the prompt
    are left out."""
    kept = np.asarray(answer[: limit // 2], np.int32)
    before = np.concatenate([step.turn.prompt_tokens, np.asarray(prefix, np.int32)])
    return Sample(before[-(limit - len(kept)) :], kept, np.zeros(len(kept), np.float32))
