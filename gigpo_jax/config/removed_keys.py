"""What became of keys that saved configs have, and the values of a saved config today."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gigpo_jax.config import mix
from gigpo_jax.config.keys import DEFAULTS, flatten
from gigpo_jax.envs.registry import INCOMING

# Names that saved configs have for keys of today.
MOVED = {
    f"engine.vllm.{name}": f"engine.{name}"
    for name in ("urls", "weights_dir", "connect_timeout_s", "request_timeout_s")
} | {f"env.options.{name}": f"env.{name}" for name in ("anchor", "regret")}
# Values that saved configs have for values of today.
RENAMED_PROMPTS = {"gigpo_jax.envs.incoming.babyai:show_view": "view"}


@dataclass(frozen=True)
class Removed:
    """A key that saved configs have, and the package has not.

    Attributes:
      fate: What became of it, for messages.
      value: Value that does what the package does today; None: each one does, as the key never
        changed results.
      same_as: Key that has to have the same value instead.
    """

    fate: str
    value: Any = None
    same_as: str = ""


# "OWNER:KEY" is a key of one algorithm or environment, which others may still have.
REMOVED = {
    "serl:rl.settings.refresh": Removed("always 10", 10),
    "serl:rl.settings.trajectory_format": Removed("always response", "response"),
    "bilevel:rl.settings.token_gamma": Removed("always 1", 1.0),
    "hcapo:rl.settings.smooth": Removed("always 0", 0.0),
    "hgpo:rl.settings.weight_offset": Removed("always 1", 1),
    "oprl:rl.settings.beta": Removed("always 0.05", 0.05),
    "gagpo:rl.settings.lam": Removed("always 0.8", 0.8),
    "text_critic:rl.settings.lam": Removed("always 0.7", 0.7),
    "a2tgpo:rl.settings.alpha": Removed("always 0.3", 0.3),
    "empg:rl.settings.zeta": Removed("always 0.05", 0.05),
    "serl:rl.settings.strength": Removed("always 0.5", 0.5),
    "opd:rl.settings.strength": Removed("always 1; rl.settings.outcome decides", 1.0),
    "repeat_discount:rl.settings.pair": Removed("always 0.95", 0.95),
    "sokoban:env.options.depth": Removed("always 30", 30),
    "shell:env.options.seed": Removed("always 0", 0),
    "rl.settings.prior": Removed("always return", "return"),
    "rl.settings.decay": Removed("always 0.99", 0.99),
    "rl.settings.temperature": Removed("always 5", 5.0),
    "rl.settings.weight_clip": Removed("always 0.2", 0.2),
    "rl.settings.guard": Removed("always 5", 5.0),
    "rl.settings.ratio_clip": Removed("always 0.2", 0.2),
    "rl.settings.base_group": Removed("always False", False),
    "rl.settings.k_next": Removed("always 1", 1.0),
    "rl.settings.clip_scale": Removed("always 0.3", 0.3),
    "rl.settings.omega": Removed("always 0.1", 0.1),
    "rl.settings.grounding": Removed("always 0.5", 0.5),
    "rl.settings.best": Removed("always 0.5", 0.5),
    "rl.settings.state": Removed("always 0.4", 0.4),
    "rl.settings.phase": Removed("always 0.3", 0.3),
    "rl.settings.prediction": Removed("always 0.2", 0.2),
    "rl.settings.format": Removed("always 0.1", 0.1),
    "rl.settings.segment_lam": Removed("always 0.95", 0.95),
    "rl.settings.change_penalty": Removed("always 0.3", 0.3),
    "compilation.cache_gib": Removed("always 1; JAX_ENABLE_COMPILATION_CACHE=false: none is kept"),
    "env.overlong_penalty": Removed("always 1, as in DAPO", 1.0),
    "env.options.max_steps": Removed("it is env.max_steps"),
    "env.require_admissible": Removed("always False: the environment judges an action", False),
    "env.generate.questions": Removed("always 0: all of them", 0),
    "env.max_aborted_fraction": Removed("always 0.5", 0.5),
    "env.resample_change": Removed("always 0.3", 0.3),
    "train.earlier_states": Removed("always 256", 256),
    "train.experience_capacity": Removed("always 100", 100),
    "critic.grad_clip": Removed("it is optim.grad_clip", same_as="optim.grad_clip"),
    "optim.b1": Removed("always 0.9", 0.9),
    "engine.push_timeout_s": Removed("it is engine.request_timeout_s"),
    "engine.vllm.push_timeout_s": Removed("it is engine.request_timeout_s"),
    "engine.vllm.cache_gib": Removed("it is vLLM's own variable VLLM_CPU_KVCACHE_SPACE"),
    "engine.vllm.gpu_memory_fraction": Removed(
        "give engine.vllm.args='--gpu-memory-utilization=0.85'"
    ),
    "engine.vllm.start_timeout_s": Removed("always 600"),
    "sft.checkpoint_every": Removed("always 200"),
    "model.shape.vision.intermediate_size": Removed("always twice model.shape.vision.hidden_size"),
    "model.shape.vision.num_heads": Removed("always one for each 16 of vision.hidden_size"),
    "engine.vllm.restarts": Removed("always 3"),
    "serve.max_sessions": Removed("always 1024"),
    "serve.session_timeout_s": Removed("always 600"),
    "serve.request_timeout_s": Removed("it is engine.request_timeout_s"),
}


def with_defaults(tree: Any, keys: Collection[str]) -> dict[str, Any]:
    """Flattens a saved config and fills in missing `keys`.

    The config may be too old to have them; they get their defaults. Keys that moved get the names
    of today, and keys that are gone are dropped if the package does the same without them.
    """
    defaults = {name: default for name, default in DEFAULTS.items() if name in keys}
    saved_values = flatten(tree)
    values = {}
    for name, value in saved_values.items():
        if name == "env.prompt":
            value = RENAMED_PROMPTS.get(value, value)
        # The shape is for models with random weights.
        is_read = not (saved_values.get("model.path") and name.startswith("model.shape."))
        if is_read and not _is_dropped(name, value, saved_values):
            values[find_moved(name, saved_values)] = value
    # The saved values win.
    return flatten(defaults) | values


def _is_dropped(name: str, value: Any, saved_values: Mapping[str, Any]) -> bool:
    """Whether the package does today what a saved value of a removed key asks for."""
    removed = find_removed(name, saved_values)
    if removed is None:
        return False
    if removed.same_as:
        return bool(value == saved_values.get(removed.same_as, DEFAULTS[removed.same_as]))
    return removed.value is None or bool(removed.value == value)


def find_moved(name: str, values: Mapping[str, Any]) -> str:
    """The name that a key has today, also of one of `env.mix.LABEL`.

    Args:
      name: Dotted key.
      values: Values of the config by dotted key, which name its environments.
    """
    key, environment = _find_owner(name, values)
    if _is_own(key, environment):
        return name
    moved = MOVED.get(key, key)
    return moved if key == name else name.removesuffix(key[4:]) + moved[4:]


def find_removed(name: str, values: Mapping[str, Any]) -> Removed | None:
    """What became of a key, also of one of `env.mix.LABEL`; None: it was not removed.

    Args:
      name: Dotted key.
      values: Values of the config by dotted key, which name its algorithms and environments.
    """
    key, environment = _find_owner(name, values)
    if _is_own(key, environment):
        return None
    owners = [values.get("rl.algorithm"), values.get("rl.settings.base"), environment]
    removed = (REMOVED.get(f"{owner}:{key}") for owner in owners)
    return next(filter(None, removed), REMOVED.get(key))


def _find_owner(name: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """A key of `env.mix.LABEL` as the key of a run with this environment, and its name."""
    words = name.split(".")
    if name.startswith(f"{mix.MIX}.") and len(words) > 3:
        environment = values.get(f"{mix.MIX}.{words[2]}.name", words[2])
        return ".".join(["env", *words[3:]]), environment
    return name, str(values.get("env.name"))


def _is_own(key: str, environment: str) -> bool:
    """Whether a key is an option of an environment of another package."""
    origin, colon, _ = environment.partition(":")
    return bool(colon) and origin not in INCOMING and key.startswith("env.options.")
