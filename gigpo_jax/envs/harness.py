"""The entry of an agent program that plays whole episodes (docs/serve.md)."""

from functools import partial

from gigpo_jax.env_bridge.actions import Response
from gigpo_jax.envs.entry_types import Environment, Option
from gigpo_jax.envs.games import show_observation


def harness_entry(build: str, *, max_steps: int, **options: Option) -> Environment:
    """Makes the entry of an agent program, which plays against the endpoint.

    Args:
      build: "module:NAME", called with the options of the config, returns a `harnesses.Harness`.
      max_steps: Largest number of calls in an episode.
      options: Options of `build`.
    """
    return Environment(
        build=build,
        # The program words its own prompts and reads its own responses: neither is ever called.
        styles={"full": show_observation},
        parse=partial(Response, valid=True),
        expert=None,
        max_steps=max_steps,
        history=0,
        invalid_penalty=0.0,
        options=options,
        action_tags=(),
        harness=True,
    )
