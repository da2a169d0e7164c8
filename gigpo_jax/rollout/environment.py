"""The environments of a run, as its config describes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax.config.mix import members, own_keys
from gigpo_jax.env_bridge import harness
from gigpo_jax.env_bridge.agents import NO_EXAMPLES, Examples, find_agent
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.pool import EnvPool
from gigpo_jax.env_bridge.prompts import PromptInput, numbered
from gigpo_jax.env_bridge.types import Observation, Task
from gigpo_jax.envs import registry
from gigpo_jax.errors import InputError
from gigpo_jax.rollout.demonstrations import response_text
from gigpo_jax.rollout.episode import EpisodeSettings
from gigpo_jax.rollout.harness import check_endpoint
from gigpo_jax.sampling.base import SamplingParams


@dataclass(frozen=True)
class RunEnvironment:
    """One environment of a run.

    Attributes:
      label: its name in `env.mix`; "" in a run with one environment.
      config: of the run, with this environment alone.
      options: what it is built with.
    """

    label: str
    config: ConfigDict
    options: dict[str, Any]

    def make(self) -> TextEnv:
        """Builds it; raises InputError if it or its data is not there."""
        with own_keys(self.label):
            return registry.make(self.config.env.name, **self.options)


def environments(config: ConfigDict) -> list[RunEnvironment]:
    """The environments of a run; raises InputError as `env_options` and, for a harness, `check_endpoint`."""
    found = []
    for label, member in members(config).items():
        with own_keys(label):
            if registry.spec(member.env.name).harness:
                check_endpoint(member)
            found.append(RunEnvironment(label, member, env_options(member)))
    return found


def all_tasks(run: Sequence[RunEnvironment]) -> list[Task]:
    """The tasks of each `env.split`, with the label of their environment; raises InputError as `list_tasks`."""
    tasks = []
    for environment in run:
        with own_keys(environment.label):
            own = list_tasks(environment.config, environment.options)
        tasks += [replace(task, environment=environment.label) for task in own]
    return tasks


def env_options(config: ConfigDict) -> dict[str, Any]:
    """What the environment's builder is called with; games that `env.generate` asks for are made first.

    Raises:
      InputError: no such environment; generation is not possible, or not with these values.
    """
    options = config.env.options.to_dict()
    if not config.env.generate:
        return options
    wanted = config.env.generate.to_dict()
    with tqdm(desc=f"{config.env.name} data", unit="", delay=1, leave=False, disable=None) as bar:
        data = registry.generate(config.env.name, cache_folder(config.env.name), progress=bar.update, **wanted)
    return options | {"data": str(data)}


def list_tasks(config: ConfigDict, options: dict[str, Any]) -> list[Task]:
    """The tasks of `env.split`; raises InputError if the environment or its data is not there."""
    env = registry.make(config.env.name, **options)
    try:
        return split_tasks(config, env)
    finally:
        env.close()


def split_tasks(config: ConfigDict, env: TextEnv) -> list[Task]:
    """The tasks of `env.split`, at least one; else raises InputError."""
    tasks = list(env.tasks(config.env.split))
    if not tasks:
        raise InputError(f"config.env.split={config.env.split!r}: no tasks; name another split, or make its data")
    return tasks


def first_observations(config: ConfigDict) -> list[Observation]:
    """What the first task of `env.split` begins with, in each environment."""
    found = []
    for environment in environments(config):
        env = environment.make()
        try:
            found.append(env.reset(split_tasks(environment.config, env)[0]))
        finally:
            env.close()
    return found


def make_pool(environment: RunEnvironment, episodes: int) -> EnvPool:
    """Worker processes of an environment with room for so many episodes at once."""
    env, spec = environment.config.env, registry.spec(environment.config.env.name)
    options = environment.options
    with own_keys(environment.label):
        return EnvPool(
            harness.BUILD if spec.harness else spec.build,
            {"program": spec.build, "options": options} if spec.harness else options,
            workers=env.workers,
            envs_per_worker=-(-episodes // env.workers),
            start_timeout_s=env.start_timeout_s,
            step_timeout_s=env.step_timeout_s,
        )


def episode_settings(
    config: ConfigDict, *, temperature: float, stop_token_ids: tuple[int, ...], examples: Examples = NO_EXAMPLES
) -> EpisodeSettings:
    """How episodes are played, at a temperature (0 is greedy, and then top-p and top-k are off).

    Prompts and parsing are those of `agent`, which may show `examples`.
    """
    env, sampling, agent, entry = config.env, config.sampling, find_agent(config.agent), registry.spec(config.env.name)
    about = registry.about(env.name)
    examples, known = _with_numbers(examples)
    return EpisodeSettings(
        template=agent.template(about, examples) if agent.template else registry.style(env.name, env.prompt),
        parse=agent.parser(entry.parse, entry.write or response_text),
        max_steps=env.max_steps,
        prompt_tokens=sampling.max_prompt_tokens,
        history=env.history,
        show_admissible=env.show_admissible,
        invalid_penalty=env.invalid_penalty,
        overlong_buffer=env.overlong_buffer,
        overlong_penalty=env.overlong_penalty,
        require_admissible=env.require_admissible,
        sampling=SamplingParams(
            temperature=temperature,
            top_p=sampling.top_p if temperature else 1.0,
            top_k=sampling.top_k if temperature else -1,
            max_tokens=sampling.max_response_tokens,
            stop_token_ids=stop_token_ids,
            stop_strings=agent.stop or tuple(sampling.stop),
        ),
        seed=config.seed,
        trials=config.eval.trials,
        reflection=agent.reflection(about) if agent.reflection else None,
        max_aborted_fraction=env.max_aborted_fraction,
        known=known,
    )


def _with_numbers(examples: Examples) -> tuple[Examples, tuple[np.ndarray, ...]]:
    """The examples with a number at the mark of each of their images, and all these images."""
    found: dict[str, list[PromptInput]] = {kind: [] for kind in examples}
    known: tuple[np.ndarray, ...] = ()
    for kind, shown in examples.items():
        for example in shown:
            events = []
            for event in example.history:
                text, known = numbered(event.observation, event.images, known)
                events.append(replace(event, observation=text))
            found[kind].append(replace(example, history=tuple(events)))
    return found, known
