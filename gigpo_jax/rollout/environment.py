"""Makes the environments of a run, and the settings of episodes, from its config."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from gigpo_jax.config.mix import member_configs, name_member_keys
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams
from gigpo_jax.env_bridge.base import TextEnv
from gigpo_jax.env_bridge.paths import cache_folder
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.envs import registry
from gigpo_jax.rollout.episode_settings import EpisodeSettings
from gigpo_jax.rollout.part_table import find_parts
from gigpo_jax.run.progress import show_progress

if TYPE_CHECKING:
    from gigpo_jax.env_bridge.agents import Examples


@dataclass(frozen=True)
class RunEnvironment:
    """One environment of a run.

    Attributes:
      label: Name in `env.mix`; "" in a run with one environment.
      config: Config of the run, with this environment alone.
      options: Keyword arguments of its builder.
    """

    label: str
    config: ConfigDict
    options: dict[str, Any]

    def make(self) -> TextEnv:
        """Builds it.

        Raises:
          InputError: it or its data is not there.
        """
        with name_member_keys(self.label):
            return registry.make(self.config.env.name, **self.options)


def list_environments(config: ConfigDict) -> list[RunEnvironment]:
    """The environments of a run.

    Raises:
      InputError: see `env_options` and, for a harness, `check_endpoint`.
    """
    environments = []
    for label, member in member_configs(config).items():
        with name_member_keys(label):
            if registry.spec(member.env.name).harness:
                from gigpo_jax.rollout.harness import check_endpoint

                check_endpoint(member)
            environments.append(RunEnvironment(label, member, env_options(member)))
    return environments


def all_tasks(environments: Sequence[RunEnvironment]) -> list[Task]:
    """The tasks of each `env.split`, labelled.

    Raises:
      InputError: an environment or its data is not there, or a split has no tasks.
    """
    tasks = []
    for environment in environments:
        # For its tasks alone: episodes are played by the environments of worker processes.
        with contextlib.closing(environment.make()) as env, name_member_keys(environment.label):
            split = split_tasks(environment.config, env)
        # A mix has one list of tasks, so each task has to name its environment.
        tasks += [replace(task, environment=environment.label) for task in split]
    return tasks


def env_options(config: ConfigDict) -> dict[str, Any]:
    """Generates the data that `env.generate` asks for; returns keyword arguments of the builder.

    Raises:
      InputError: there is no such environment, or it cannot generate games with these values.
    """
    name = config.env.name
    entry = registry.spec(name)
    # Not a shorter length than the entry's: `env.max_steps` may grow from one run to the next, and
    # a game may tell its length.
    arguments = {
        "max_steps": max(entry.max_steps, config.env.max_steps),
        "regret": config.env.regret,
    }
    if config.env.anchor:
        arguments["anchor"] = config.env.anchor
    options = {key: arguments[key] for key in entry.run_arguments if key in arguments}
    options |= config.env.options.to_dict()
    if not config.env.generate:
        return options
    settings = config.env.generate.to_dict()
    with show_progress(f"generating {name} data", unit="items") as bar:
        data = registry.generate_data(name, cache_folder(name), progress=bar.update, **settings)
    return options | {"data": str(data)}


def split_tasks(config: ConfigDict, env: TextEnv) -> list[Task]:
    """The tasks of `env.split`, at least one; else raises InputError."""
    tasks = list(env.tasks(config.env.split))
    if not tasks:
        raise InputError(
            "no tasks",
            key="config.env.split",
            value=repr(config.env.split),
            fix="name another split, or make its data",
        )
    return tasks


def make_pool(environment: RunEnvironment, episodes: int) -> EnvPool:
    """Starts worker processes of an environment.

    Args:
      environment: Environment of the pool.
      episodes: Number of episodes that run at once.
    """
    env = environment.config.env
    spec = registry.spec(env.name)
    build = spec.build
    options = environment.options
    # The worker process then plays whole episodes with the program; see `processes.harness`.
    if spec.harness:
        from gigpo_jax.env_bridge.processes.harness import BUILD

        build = BUILD
        options = {"program": spec.build, "options": options}
    with name_member_keys(environment.label):
        return EnvPool(
            build,
            options,
            workers=env.workers,
            # Rounded up: no episode that the engine has room for waits for an environment.
            envs_per_worker=-(-episodes // env.workers),
            start_timeout_s=env.start_timeout_s,
            step_timeout_s=env.step_timeout_s,
        )


def episode_settings(
    config: ConfigDict,
    *,
    temperature: float,
    stop_token_ids: tuple[int, ...],
    examples: "Examples | None" = None,
    is_training: bool = False,
) -> EpisodeSettings:
    """Builds the settings of episodes.

    Args:
      config: Config of a run with one environment.
      temperature: Sampling temperature; 0 is greedy, and switches top-p and top-k off.
      stop_token_ids: Tokens that end a response.
      examples: Examples that prompts of the agent show; None: there are none.
      is_training: Whether the episodes have the parts of training alone.
    """
    env = config.env
    sampling = config.sampling
    spec = registry.spec(env.name)
    settings = EpisodeSettings(
        template=registry.find_style(env.name, env.prompt),
        parse=spec.parse,
        max_steps=env.max_steps,
        prompt_tokens=sampling.max_prompt_tokens,
        history=env.history,
        show_admissible=env.show_admissible,
        invalid_penalty=env.invalid_penalty,
        regret_reward=env.regret_reward,
        overlong_buffer=env.overlong_buffer,
        sampling=SamplingParams(
            temperature=temperature,
            top_p=sampling.top_p if temperature else 1.0,
            top_k=sampling.top_k if temperature else -1,
            max_tokens=sampling.max_response_tokens,
            stop_token_ids=stop_token_ids,
            stop_strings=tuple(sampling.stop),
        ),
        seed=config.seed,
        trials=config.eval.trials,
        plan=env.plan,
        parts=find_parts(config, is_training=is_training),
    )
    if env.plan == "none" and env.context != "summary" and config.agent == "plain":
        return settings
    from gigpo_jax.rollout.prompt_changes import change_prompts

    return change_prompts(config, settings, examples or {})
