"""Examples in prompts of agents: expert episodes, the same on every machine."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.agents import Examples, find_agent
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.prompts import History, PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.rollout.demonstrations import ExpertEpisode, episode_seed, play_expert
from gigpo_jax.rollout.environment import episode_settings
from gigpo_jax.run.progress import show_progress

_ATTEMPTS = 400  # largest number of tasks that the expert tries
_UNLIMITED = 2**24  # tokens


def make_examples(
    config: ConfigDict,
    options: dict[str, Any],
    panel: Collection[str],
    types: Collection[str],
    encode: Callable[..., Sequence[int]],
) -> Examples:
    """Plays `eval.examples` won expert episodes a task type, if the agent's prompts show examples.

    Args:
      config: Config as from `config.resolve`.
      options: Keyword arguments of the environment's builder.
      panel: Ids of the tasks to evaluate on; no example is one of them.
      types: Types of these tasks.
      encode: See `prompt_building.build_prompt`.

    Raises:
      InputError: the environment has no expert, or a prompt with the examples would be too long.
    """
    count = config.eval.examples
    if find_agent(config.agent).template is None or not count:
        return {}
    if registry.spec(config.env.name).expert is None:
        raise InputError(
            f"{config.env.name} has no expert to make examples",
            key="config.eval.examples",
            value=count,
            fix="use 0",
        )
    episodes_by_type = _win_episodes(config, options, panel)
    if not episodes_by_type:
        raise InputError(
            f"the expert of {config.env.name} won no task",
            key="config.eval.examples",
            value=count,
            fix="use 0",
        )
    # Tasks of other types see one episode of each type in turn.
    mixed_episodes: list[ExpertEpisode] = []
    for row in zip_longest(*episodes_by_type.values()):
        mixed_episodes += [episode for episode in row if episode is not None]
    episodes_by_type[""] = mixed_episodes[:count]
    examples = {}
    for task_type, episodes in episodes_by_type.items():
        examples[task_type] = tuple(_make_example(episode) for episode in episodes)
    for task_type in sorted(types):
        episodes = episodes_by_type.get(task_type, episodes_by_type[""])
        _check_room(config, examples, task_type, episodes, encode)
    return examples


def _win_episodes(
    config: ConfigDict, options: dict[str, Any], panel: Collection[str]
) -> dict[str, list[ExpertEpisode]]:
    """Plays tasks with the expert, and returns 1 to `eval.examples` won episodes by task type."""
    name = config.env.name
    spec = registry.spec(name)
    split = config.env.split
    expert_options: dict[str, Any] = {}
    excluded_tasks = panel
    if spec.examples is not None:
        title = f"generating {name} data for examples"
        with show_progress(title, unit="items") as bar:
            data = registry.generate_data(
                name, cache_folder(name), progress=bar.update, **spec.examples.generate
            )
        options = {"data": data}
        split = "train"
        expert_options = dict(spec.examples.demonstrator)
        excluded_tasks = set()  # the data is generated for examples alone
    episodes_by_type: dict[str, list[ExpertEpisode]] = defaultdict(list)
    env = registry.make(name, **options)
    try:
        for number, task in enumerate(islice(env.tasks(split), _ATTEMPTS)):
            episodes = episodes_by_type[task.type]
            if task.id in excluded_tasks or len(episodes) == config.eval.examples:
                continue
            # Seed 0 and not that of the run: all runs show the same examples.
            expert = registry.make_expert(name, episode_seed(0, number), **expert_options)
            episode = play_expert(env, expert, task, spec.max_steps)
            if episode.won:
                episodes.append(episode)
    finally:
        env.close()
    # Sorted by type: prompts do not depend on the order of the split.
    return {kind: episodes for kind, episodes in sorted(episodes_by_type.items()) if episodes}


def _make_example(episode: ExpertEpisode) -> PromptInput:
    """An episode up to its last action, which won."""
    events = tuple(event for _, event in episode.steps)
    return PromptInput(episode.last.task, "", events, len(events), "", None)


def _check_room(
    config: ConfigDict,
    examples: Examples,
    task_type: str,
    episodes: Sequence[ExpertEpisode],
    encode: Callable[..., Sequence[int]],
) -> None:
    """Checks that every step of the examples fits a prompt.

    Raises:
      InputError: a step does not fit into a prompt without history.
    """
    settings = episode_settings(config, temperature=0.0, stop_token_ids=(), examples=examples)
    # Without a limit nothing is cut, so the real lengths show.
    unlimited_settings = replace(settings, prompt_tokens=_UNLIMITED)
    longest_prompt = 0
    for episode in episodes:
        for number, (observation, _) in enumerate(episode.steps):
            # History is what a long prompt loses first, so the check leaves it out.
            history = History(0, task_type)
            room = sum(part.reserve(history) for part in settings.make_parts())
            history.steps = number
            prompt = unlimited_settings.prompt(observation, history, encode)
            length = len(prompt.tokens) + room
            longest_prompt = max(longest_prompt, length)
    if longest_prompt > settings.prompt_tokens:
        selection = f" of {task_type}" if task_type else ""
        raise InputError(
            f"prompts of {config.agent} with {config.eval.examples} example(s){selection} take "
            f"up to {longest_prompt} tokens",
            key="config.sampling.max_prompt_tokens",
            value=settings.prompt_tokens,
            fix="use that, or fewer eval.examples",
        )
