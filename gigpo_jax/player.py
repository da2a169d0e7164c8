"""The policy in its environments: engine and worker processes of a run, ready to play episodes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from tqdm import tqdm

from gigpo_jax import partition
from gigpo_jax.env_bridge.types import Task
from gigpo_jax.environment import episode_settings, make_pool
from gigpo_jax.policy import Policy
from gigpo_jax.rollout import rollout
from gigpo_jax.sampling.jax_engine import JaxEngine
from gigpo_jax.trajectory import Trajectory


class Player:
    """Plays episodes; close it when done.

    Attributes:
      engine: the sampler.
      pool: the environments.
    """

    def __init__(
        self, config: ConfigDict, policy: Policy, params: Any, *, options: dict[str, Any], version: int
    ) -> None:
        """Starts the worker processes and compiles the engine.

        Args:
          config: `env`, `engine`, `sampling` say how.
          policy: shape and tokenizer.
          params: the parameters to sample from.
          options: what the environment is built with (`environment.env_options`).
          version: of these parameters.
        """
        self._config, self._tokenizer = config, policy.tokenizer
        self.pool = make_pool(config, options, config.engine.slots)
        engine, sampling = config.engine, config.sampling
        self.engine = JaxEngine(
            policy.config,
            _here(params),
            tokenizer=policy.tokenizer,
            slots=engine.slots,
            max_length=sampling.max_prompt_tokens + sampling.max_reply_tokens,
            prefill_buckets=tuple(engine.prefill_buckets),
            prefill_rows=tuple(engine.prefill_rows),
            decode_steps=engine.decode_steps,
            dtype=jnp.dtype(engine.dtype),
            version=version,
        )
        self.engine.warmup()

    async def play(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        iteration: int,
        temperature: float,
        title: str,
        first_group: int = 0,
    ) -> list[Trajectory]:
        """Plays `group_size` episodes of each task; arguments as for `rollout`, `title` is shown beside the bar."""
        config = self._config
        with tqdm(total=len(tasks) * group_size, desc=title, unit="ep", leave=False) as bar:
            return await rollout(
                tasks,
                engine=self.engine,
                pool=self.pool,
                tokenizer=self._tokenizer,
                settings=episode_settings(
                    config, temperature=temperature, stop_token_ids=self._tokenizer.stop_token_ids
                ),
                group_size=group_size,
                seed=config.seed,
                iteration=iteration,
                first_group=first_group,
                max_aborted_share=config.env.max_aborted_share,
                on_episode=lambda _: bar.update(),
            )

    def update_weights(self, params: Any, version: int) -> None:
        """Samples from other parameters from now on."""
        self.engine.update_weights(_here(params), version)

    def close(self) -> None:
        """Stops the engine and the worker processes."""
        self.engine.close()
        self.pool.close()


def _here(params: Any) -> Any:
    """Parameters that this process can sample from alone: as they are, or a copy where other hosts hold parts."""
    return params if jax.process_count() == 1 else partition.local_copy(params)
