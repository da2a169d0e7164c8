"""Episodes that begin in a recorded state: its actions are replayed before the policy acts."""

from collections.abc import Iterator, Sequence

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.conversations import take_summary
from gigpo_jax.env_bridge.processes.pool import PooledEnv
from gigpo_jax.rollout.episode_parts import Episode, measure_wait


async def replay_past(episode: Episode, environment: PooledEnv) -> None:
    """Replays the actions of the job's past, which are no turns: the policy sampled none.

    Raises:
      InputError: The actions lead to another state than the job's.
    """
    past = episode.job.past
    responses = iter(past.responses)
    for action in past.actions:
        _replay_responses(episode, responses)
        observation = episode.observation
        for part in episode.parts:
            part.observe(observation)
        episode.history.add(observation.text, action, images=observation.images)
        result = await measure_wait(environment.step(action), episode.trajectory, "environment_s")
        episode.observation = result.observation
    # A summary after the last action.
    _replay_responses(episode, responses)
    episode.history.plan = past.plan
    if past.state not in (None, (episode.observation.text, episode.observation.anchor)):
        raise InputError(
            f"task {episode.job.task.id!r} answered the same {len(past.actions)} actions "
            "differently",
            key=f"config.train.{past.source}",
            fix="use 0, or an environment that replays exactly (gigpo envs check)",
        )


def _replay_responses(episode: Episode, responses: Iterator[Sequence[int]]) -> None:
    """Adds a response of the past and summaries before."""
    for response in responses:
        prompt = episode.build_prompt()
        if not prompt.asks_summary:
            episode.history.add_response(prompt, response)
            return
        summary = episode.writer.tokenizer.decode(response).strip()
        take_summary(episode.history, prompt, summary)
