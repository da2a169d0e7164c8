"""The scoring pass of HCAPO: what the policy reads, and that training uses it."""

import numpy as np
import pytest

from gigpo_jax.learner.samples import Sample
from gigpo_jax.learner.signals.hindsight import CLOSING
from gigpo_jax.learner.signals.policy_scores import token_means
from gigpo_jax.methods.hcapo.episode_ends import SECTION, EpisodeEnds, find_ends
from gigpo_jax.models.text.tokenizer import Tokenizer
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from tests.learner.test_learner_updates import find_signal
from tests.methods.serl.test_teacher import WORDS, learn, learner_of, steps_of


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer([f"{WORDS} {SECTION} {CLOSING}"])


def test_the_policy_reads_the_end_of_each_episode(tokenizer: Tokenizer) -> None:
    steps = steps_of(tokenizer)
    ends = find_ends(steps)
    assert find_ends(steps[::-1]) == ends
    last = {step.trajectory: step for step in steps if step.step == 2}
    assert ends == {number: step.turn.feedback for number, step in last.items()}
    assert len({*ends.values()}) > 1
    learner = learner_of(tokenizer, "hcapo")
    scored = learner.score_steps(steps)
    column = find_signal(learner, EpisodeEnds).compute_columns(scored)["hindsight_logprob"]
    samples = []
    for step in steps:
        text = f"look at the lamp\n\n{SECTION}{ends[step.trajectory]}\n\n{CLOSING}"
        prompt = np.asarray(tokenizer.encode_chat(text), np.int32)
        samples.append(Sample(prompt, step.turn.response_tokens, step.turn.logprobs))
    scores = learner._score(learner.state.params, None, samples)
    expected = token_means(scores.logprob)
    np.testing.assert_allclose(column, expected, rtol=1e-5)
    assert len({*column.tolist()}) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hcapo", "max_rl", "lite_ppo"])
def test_two_iterations_learn(tokenizer: Tokenizer, name: str) -> None:
    for metrics in learn(learner_of(tokenizer, name), steps_of(tokenizer), range(2)):
        assert np.isfinite(metrics["policy/loss"])
        assert metrics["policy/grad_norm"] > 0
