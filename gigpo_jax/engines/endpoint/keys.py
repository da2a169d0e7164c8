"""Config keys of the endpoint: gigpo serve, gigpo engine and harnesses (docs/serve.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import PORT, KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import Rule
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare("serve.host", "address to listen on", Rule("an address", bool), may_change=True),
    declare("serve.port", "port to listen on; 0: any free one", PORT, may_change=True),
    declare(
        "serve.clamp",
        "whether limits, sampling settings and model names of requests give way to those of the "
        "run, in place of a refusal; for agents that are not changed",
        may_change=True,
    ),
)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks an environment that plays whole episodes by itself."""
    env = config.env
    if not registry.spec(env.name).harness:
        return
    request_s = run.engine.request_timeout_s
    # A harness plays its whole episode in one step. With a shorter limit its worker would be
    # replaced while it still waits for a response.
    is_long = env.step_timeout_s >= request_s
    reason = "a harness plays a whole episode in this time"
    fix = f"at least engine.request_timeout_s={request_s:g}, such as 900"
    require(is_long, config, "env.step_timeout_s", reason, fix)
    reason = "the program of the harness ends its episodes"
    require(not env.first_max_steps, config, "env.first_max_steps", reason, "use 0")
    reason = "the program of the harness posts the rewards"
    require(not env.regret_reward, config, "env.regret_reward", reason, "use 0")
    # More needs snapshots of the engine; the endpoint has one engine.
    is_new = run.train.max_staleness <= 1
    reason = "a harness plays with the newest weights"
    fix = f"at most 1 with env.name={env.name}"
    require(is_new, run, "train.max_staleness", reason, fix)


KEY_SET = KeySet(KEYS, check_member=check_member)
