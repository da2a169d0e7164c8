"""Examples in prompts of agents: episodes of the environment's expert, the same on every machine."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.env_bridge.agents import MEMORY, REFLECTION_TOKENS, Examples, find_agent
from gigpo_jax.env_bridge.history import History
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.prompts import PromptInput
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.rollout.demonstrations import ExpertEpisode, episode_seed, play_expert
from gigpo_jax.rollout.environment import episode_settings

_ATTEMPTS = 400  # the most tasks that are looked at
_UNLIMITED = 2**24  # tokens


def make_examples(
    config: ConfigDict,
    options: dict[str, Any],
    panel: Collection[str],
    types: Collection[str],
    encode: Callable[..., Sequence[int]],
) -> Examples:
    """`eval.examples` episodes of each task type that the expert won; none if the agent's prompts show none.

    Args:
      config: as from `config.resolve`.
      options: what the environment is built with.
      panel: ids of the tasks to evaluate on; no example is one of them.
      types: of these tasks.
      encode: as for `prompts.build_prompt`.

    Raises:
      InputError: the environment has no expert, or a prompt with the examples would be too long.
    """
    count = config.eval.examples
    if find_agent(config.agent).template is None or not count:
        return {}
    if registry.spec(config.env.name).expert is None:
        raise InputError(f"config.eval.examples={count}: {config.env.name} has no expert to make examples; use 0")
    won = _won_episodes(config, options, panel)
    mixed = [episode for row in zip_longest(*won.values()) for episode in row if episode is not None]
    if not mixed:
        raise InputError(f"config.eval.examples={count}: the expert of {config.env.name} won no task; use 0")
    won[""] = mixed[:count]
    examples = {kind: tuple(map(_example, episodes)) for kind, episodes in won.items()}
    for kind in sorted(types):
        _check_room(config, examples, kind, won.get(kind, won[""]), encode)
    return examples


def _won_episodes(
    config: ConfigDict, options: dict[str, Any], panel: Collection[str]
) -> dict[str, list[ExpertEpisode]]:
    """Task type -> `eval.examples` won episodes at most, at least one."""
    name, entry = config.env.name, registry.spec(config.env.name)
    found: dict[str, list[ExpertEpisode]] = defaultdict(list)
    split, demonstrator, excluded = config.env.split, {}, panel
    if entry.examples is not None:
        with tqdm(desc=f"{name} data for examples", unit="", delay=1, leave=False, disable=None) as bar:
            data = registry.generate(name, cache_folder(name), progress=bar.update, **entry.examples.generate)
        options, split, demonstrator, excluded = {"data": data}, "train", dict(entry.examples.demonstrator), set()
    env = registry.make(name, **options)
    try:
        for number, task in enumerate(islice(env.tasks(split), _ATTEMPTS)):
            if task.id not in excluded and len(found[task.type]) < config.eval.examples:
                expert = registry.make_expert(name, episode_seed(0, number), **demonstrator)
                episode = play_expert(env, expert, task, entry.max_steps)
                found[task.type] += [episode] if episode.won else []
    finally:
        env.close()
    return {kind: episodes for kind, episodes in sorted(found.items()) if episodes}


def _example(episode: ExpertEpisode) -> PromptInput:
    """An episode up to its last action, which did the task."""
    events = tuple(event for _, event in episode.steps)
    return PromptInput(episode.last.task, "", events, len(events), "", None)


def _check_room(
    config: ConfigDict,
    examples: Examples,
    kind: str,
    episodes: Sequence[ExpertEpisode],
    encode: Callable[..., Sequence[int]],
) -> None:
    """Raises InputError unless every step of the examples would fit into a prompt, without its history."""
    settings = episode_settings(config, temperature=0.0, stop_token_ids=(), examples=examples)
    notes, needed = 0 if settings.reflection is None else MEMORY, 0
    for number, (seen, _) in chain.from_iterable(enumerate(episode.steps) for episode in episodes):
        history = History(0, kind, ("",) * notes)
        history.steps = number
        shown = replace(settings, prompt_tokens=_UNLIMITED).prompt(seen, history, encode)
        needed = max(needed, len(shown.tokens) + notes * REFLECTION_TOKENS)
    if needed > settings.prompt_tokens:
        of = f" of {kind}" if kind else ""
        raise InputError(
            f"config.sampling.max_prompt_tokens={settings.prompt_tokens}: prompts of {config.agent} with "
            f"{config.eval.examples} example(s){of} take up to {needed} tokens; use that, or fewer eval.examples"
        )
