"""Config keys of the endpoint: gigpo serve, gigpo engine and harnesses (docs/serve.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import PORT, Part
from gigpo_jax.config.keys import declare, part_keys
from gigpo_jax.config.requirements import require
from gigpo_jax.core.settings import Rule
from gigpo_jax.envs import registry

KEYS = part_keys(
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
    """Checks that a harness may play for as long as a response may take."""
    if not registry.spec(config.env.name).harness:
        return
    request_s = run.engine.request_timeout_s
    # A harness plays its whole episode in one step. With a shorter limit its worker would be
    # replaced while it still waits for a response.
    is_long = config.env.step_timeout_s >= request_s
    reason = "a harness plays a whole episode in this time"
    fix = f"at least engine.request_timeout_s={request_s:g}, such as 900"
    require(is_long, config, "env.step_timeout_s", reason, fix)


PART = Part(KEYS, check_member=check_member)
