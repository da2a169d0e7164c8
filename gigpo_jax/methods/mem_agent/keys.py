"""Config keys of conversations that the policy summarises (docs/conversations.md)."""

from ml_collections import ConfigDict

from gigpo_jax.config.key_types import KeySet
from gigpo_jax.config.keys import declare, named_keys
from gigpo_jax.config.mix import writes_summaries
from gigpo_jax.config.requirements import require, require_default
from gigpo_jax.config.step_requirements import require_steps
from gigpo_jax.core.settings import NOT_NEGATIVE, one_of
from gigpo_jax.env_bridge.conversations import Conversation
from gigpo_jax.envs import registry

KEYS = named_keys(
    declare(
        "env.context",
        "rule for conversations that are full; drop_oldest: they lose their oldest steps; "
        "summary: the policy summarises them (docs/conversations.md)",
        one_of("drop_oldest", "summary"),
        mixes=True,
    ),
    declare(
        "sampling.max_summary_tokens",
        "largest number of tokens in a summary of env.context=summary or a strategy of "
        "env.plan=strategy; 0: sampling.max_response_tokens",
        NOT_NEGATIVE,
        mixes=True,
    ),
)


def check(config: ConfigDict, trains: bool) -> None:
    """Checks that the length of summaries is read."""
    del trains
    if not writes_summaries(config):
        reader = f"env.context={config.env.context} with env.plan={config.env.plan}"
        require_default(config, "sampling.max_summary_tokens", reader)


def check_member(config: ConfigDict, run: ConfigDict) -> None:
    """Checks an environment whose conversations are summarised."""
    del run
    env = config.env
    if env.context != "summary":
        return
    sampling = config.sampling
    reason = "the prompts are those of the harness"
    require(not registry.spec(env.name).harness, config, "env.context", reason, "leave it out")
    is_conversation = isinstance(registry.find_style(env.name, env.prompt), Conversation)
    reason = f"env.prompt={env.prompt} has prompts of single steps, which never become full"
    fix = "use env.prompt=chat, or leave it out"
    require(is_conversation, config, "env.context", reason, fix)
    check_summary_length(config)
    needed = sampling.max_response_tokens
    needed += sampling.max_summary_tokens or sampling.max_response_tokens
    reason = (
        f"env.context=summary needs room for a summary and a response, {needed} tokens, beside "
        "what is observed"
    )
    fix = "use more, or env.context=drop_oldest"
    has_room = sampling.max_prompt_tokens > needed
    require(has_room, config, "sampling.max_prompt_tokens", reason, fix)
    require_steps(config, "env.context", "a summary", "use drop_oldest")


def check_summary_length(config: ConfigDict) -> None:
    """Checks that the run has room for a summary.

    Raises:
      InputError: It has none.
    """
    limit = config.sampling.max_response_tokens
    reason = "the run has no room for more tokens than those of a response"
    fix = f"at most sampling.max_response_tokens={limit}"
    is_short = config.sampling.max_summary_tokens <= limit
    require(is_short, config, "sampling.max_summary_tokens", reason, fix)


KEY_SET = KeySet(KEYS, check=check, check_member=check_member)
