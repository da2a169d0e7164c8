"""The keys of the config: keys of every run, and sets of keys.

What few runs use declares and checks its keys in a module of its own, which is imported when one of
them is set; environments and algorithms declare options and settings.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from gigpo_jax.config.core_keys import CORE
from gigpo_jax.config.key_types import Key, KeySet
from gigpo_jax.core.method_table import METHOD_DEFAULTS, METHOD_KEYS
from gigpo_jax.core.references import ReferenceTable
from gigpo_jax.core.settings import ANY, Rule
from gigpo_jax.models.linear_names import TARGETS

KEY_SETS: ReferenceTable[KeySet] = ReferenceTable(
    {
        "servers": "gigpo_jax.engines.remote.keys:KEY_SET",
        "vLLM servers": "gigpo_jax.engines.vllm.keys:KEY_SET",
        "adapter": "gigpo_jax.learner.adapter_keys:KEY_SET",
        "critic": "gigpo_jax.learner.critic_keys:KEY_SET",
        "losses": "gigpo_jax.learner.loss_keys:KEY_SET",
        "optimizers": "gigpo_jax.learner.optimizer_keys:KEY_SET",
        "rollouts ahead": "gigpo_jax.rollout.ahead_keys:KEY_SET",
        "rewards": "gigpo_jax.rollout.reward_keys:KEY_SET",
        "limits that grow": "gigpo_jax.rollout.step_limit_keys:KEY_SET",
        "groups": "gigpo_jax.rollout.group_keys:KEY_SET",
        "starts of episodes": "gigpo_jax.rollout.start_keys:KEY_SET",
        "plans": "gigpo_jax.rollout.plan_keys:KEY_SET",
        "conversations": "gigpo_jax.rollout.conversation_keys:KEY_SET",
        "agents": "gigpo_jax.rollout.agent_keys:KEY_SET",
        "endpoint": "gigpo_jax.engines.endpoint.keys:KEY_SET",
        "several devices": "gigpo_jax.config.mesh_keys:KEY_SET",
        "slow environments": "gigpo_jax.rollout.timeout_keys:KEY_SET",
        "truncated sampling": "gigpo_jax.rollout.sampling_keys:KEY_SET",
        "models": "gigpo_jax.config.model_keys:KEY_SET",
        "random weights": "gigpo_jax.modes.shape_keys:KEY_SET",
        "random vision towers": "gigpo_jax.modes.tower_keys:KEY_SET",
        "gigpo sft": "gigpo_jax.modes.sft_keys:KEY_SET",
    }
    | METHOD_KEYS
)

# Defaults of each set. Its module has the rest of the declarations and is imported when a key is
# looked up or checked, so a run does not load the sets that it leaves alone.
KEY_SET_DEFAULTS: dict[str, dict[str, Any]] = {
    "servers": {
        "engine.urls": "",
        "engine.weights_dir": "",
        "engine.connect_timeout_s": 60.0,
        "engine.request_timeout_s": 600.0,
    },
    "vLLM servers": {
        "engine.vllm.servers": 1,
        "engine.vllm.python": ".venv-vllm/bin/python",
        "engine.vllm.args": "",
    },
    "adapter": {
        "model.lora.rank": 0,
        "model.lora.alpha": 32.0,
        "model.lora.targets": tuple(TARGETS),
        "model.lora.vision": False,
        "model.lora.path": "",
    },
    "critic": {
        "critic.kind": "none",
        "critic.path": "",
        "critic.lr": 1e-5,
        "critic.clip": 0.5,
        "critic.warmup_iterations": 0,
    },
    "optimizers": {
        "optim.name": "adamw",
        "optim.warmup_fraction": 0.0,
        "optim.b2": 0.999,
        "optim.weight_decay": 0.01,
        "optim.grad_clip": 1.0,
    },
    "losses": {
        "rl.dual_clip": 3.0,
        "rl.loss_mean": "tokens",
        "rl.hoelder_first": 1.0,
        "rl.hoelder_last": -1.0,
        "rl.kl_in": "loss",
        "rl.importance_cap": 2.0,
        "rl.anchor_match": "exact",
        "rl.similarity": 0.9,
    },
    "rollouts ahead": {"train.max_staleness": 0, "train.inflight": False, "engine.devices": 0},
    "rewards": {"env.regret": False, "env.regret_reward": 0.0, "env.overlong_buffer": 0},
    "limits that grow": {"env.first_max_steps": 0, "env.max_steps_iterations": 0},
    "groups": {
        "train.refill_groups": 0,
        "train.finish_fraction": 1.0,
        "train.curriculum": "none",
    },
    "starts of episodes": {
        "train.forks": 0,
        "train.fork_choice": "uncertainty",
        "train.earlier_starts": 0.0,
    },
    "plans": {"env.plan": "none"},
    "conversations": {"engine.keep_responses": False},
    "agents": {"agent": "plain", "eval.trials": 1, "eval.examples": 1},
    "endpoint": {"serve.host": "127.0.0.1", "serve.port": 0, "serve.clamp": False},
    "several devices": {"mesh.data": -1, "mesh.fsdp": 1, "mesh.tensor": 1},
    "slow environments": {"env.start_timeout_s": 120.0, "env.step_timeout_s": 60.0},
    "truncated sampling": {"sampling.top_p": 1.0, "sampling.top_k": -1},
    "models": {
        "model.revision": "",
        "model.enable_thinking": True,
        "model.replay_routes": False,
        "engine.tensor": 0,
        "optim.moment_dtype": "float32",
        "train.minibatch_by": "step",
        "batch.share_prefixes": False,
    },
    "random weights": {
        "model.shape.hidden_size": 128,
        "model.shape.intermediate_size": 384,
        "model.shape.num_layers": 4,
        "model.shape.num_heads": 4,
        "model.shape.num_kv_heads": 2,
        "model.shape.rope_theta": 1e6,
        "model.shape.initializer_range": 0.02,
    },
    "random vision towers": {
        "model.shape.vision.depth": 0,
        "model.shape.vision.hidden_size": 64,
    },
    "gigpo sft": {
        "sft.episodes": 4000,
        "sft.epochs": 1,
        "sft.minibatch": 256,
        "sft.learn_prompts": False,
    },
    **METHOD_DEFAULTS,
}
# Keys that are unset (None) until `resolve`, which may have another default for them.
_SET_AUTO = (
    "rl.dual_clip",
    "rl.loss_mean",
    "rl.hoelder_first",
    "rl.hoelder_last",
    "rl.importance_cap",
    "rl.anchor_match",
    "rl.similarity",
    "critic.kind",
    "eval.trials",
    "engine.keep_responses",
)
AUTO = (*(name for name, key in CORE.items() if key.auto), *_SET_AUTO)
DEFAULTS: dict[str, Any] = {name: key.default for name, key in CORE.items()}
_SET_OF: dict[str, str] = {}
for _set, _defaults in KEY_SET_DEFAULTS.items():
    DEFAULTS |= _defaults
    _SET_OF |= dict.fromkeys(_defaults, _set)


def declare(name: str, help: str, rule: Rule = ANY, **flags: bool) -> tuple[str, Key]:
    """A key of a set, with its default from `KEY_SET_DEFAULTS`; `flags` are fields of `Key`."""
    return name, Key(DEFAULTS[name], help, rule, **flags)


def named_keys(*declarations: tuple[str, Key]) -> dict[str, Key]:
    """The keys of a set by name."""
    return dict(declarations)


class _KeyTable(Mapping[str, Key]):
    """The keys of core and sets; only a look-up of a set's key imports its module."""

    def __getitem__(self, name: str) -> Key:
        return CORE[name] if name in CORE else KEY_SETS[_SET_OF[name]].keys[name]

    def __contains__(self, name: object) -> bool:
        # The method of `Mapping` would import the set.
        return name in DEFAULTS

    def __iter__(self) -> Iterator[str]:
        return iter(DEFAULTS)

    def __len__(self) -> int:
        return len(DEFAULTS)


KEYS = _KeyTable()


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted keys; tuples become lists, as in JSON."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict | ConfigDict):
            values |= flatten(value, f"{prefix}{key}.")
        else:
            # So a config in memory is equal to one that was read from config.json.
            values[prefix + key] = list(value) if isinstance(value, tuple) else value
    return values


def meets_condition(config: ConfigDict, condition: str) -> bool:
    """Whether a config has "KEY=VALUE", or for "KEY" another value than the default."""
    name, _, value = condition.partition("=")
    current = value_of(config, name)
    return bool(current == value) if value else bool(current != DEFAULTS[name])


def value_of(config: ConfigDict, name: str) -> Any:
    """The value of a dotted key."""
    section, last = find_section(config, name)
    return section[last]


def is_default(config: ConfigDict, name: str) -> bool:
    """Whether a dotted key has its default, of the same type."""
    value = value_of(config, name)
    return type(value) is type(DEFAULTS[name]) and bool(value == DEFAULTS[name])


def find_section(config: ConfigDict, name: str, *, make: bool = False) -> tuple[ConfigDict, str]:
    """Finds the section of a dotted key.

    Args:
      config: Config with the key.
      name: Dotted key.
      make: True to add missing sections.

    Returns:
      The section, and the last component of the key.
    """
    *sections, last = name.split(".")
    for section in sections:
        if make and section not in config:
            config[section] = ConfigDict()
        config = config[section]
    return config, last
