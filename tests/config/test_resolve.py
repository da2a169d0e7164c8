"""Resolved configs: every key has its value, and unknown keys are told."""

import itertools

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.core_keys import CORE
from gigpo_jax.config.keys import AUTO, KEY_SETS, KEYS, flatten
from gigpo_jax.config.removed_keys import MOVED, REMOVED
from gigpo_jax.config.resolve import unknown_keys
from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import ALGORITHMS


def test_defaults_are_valid_and_locked():
    config = default_config()
    resolve(config)
    with pytest.raises(AttributeError, match="group_size"):
        config.train.groupsize = 3


def test_rollouts_that_run_ahead_are_scored_again_and_corrected() -> None:
    config = default_config()
    config.train.max_staleness = 1
    rl = resolve(config).rl
    assert (rl.old_logprobs, rl.importance_correction) == ("recompute", "truncated")


@pytest.mark.parametrize(
    ("engine", "given", "resolved"),
    [
        ("jax", {}, ("engine", "none")),
        ("jax", {"old_logprobs": "recompute"}, ("recompute", "none")),
        ("vllm", {}, ("recompute", "truncated")),
        ("vllm", {"old_logprobs": "engine"}, ("engine", "none")),
        ("vllm", {"importance_correction": "none"}, ("recompute", "none")),
    ],
)
def test_old_logprobs_and_their_correction_follow_the_engine(
    engine: str, given: dict, resolved: tuple[str, str]
):
    config = default_config()
    config.engine.name = engine
    config.rl.update(given)
    rl = resolve(config).rl
    assert (rl.old_logprobs, rl.importance_correction) == resolved


def test_the_cap_of_geometric_means_is_close_to_1():
    config = default_config()
    config.rl.old_logprobs, config.rl.importance_correction = "recompute", "masked_mean"
    assert resolve(config).rl.importance_cap == 1.001
    config.rl.importance_cap = 1.05
    assert resolve(resolve(config)).rl.importance_cap == 1.05


PROGRAM = {"env.name": "examples.harness.agent:PLAYER", "env.step_timeout_s": 600.0}


@pytest.mark.parametrize(
    ("changes", "chunk", "keeps"),
    [
        ({}, 32, False),
        ({"engine.prefill_chunk": 64}, 64, False),
        ({"env.prompt": "chat"}, 32, True),
        ({"env.prompt": "chat_tagged", "engine.prefill_chunk": 64}, 64, True),
        ({"env.prompt": "chat", "engine.keep_responses": False}, 32, False),
        ({"env.prompt": "chat", "engine.prefill_chunk": 0}, 0, False),
        ({"env.prompt": "chat", "engine.prefill_buckets": (2048,)}, 0, False),
        ({"env.prompt": "chat", "engine.prefill_rows": (1, 16)}, 0, False),
        ({"env.prompt": "chat", "engine.name": "vllm"}, 0, False),
        ({"env.mix": {"alfworld": {}, "webshop": {"prompt": "chat", "max_steps": 15}}}, 32, True),
        (PROGRAM, 32, True),
        (PROGRAM | {"engine.prefill_chunk": 8}, 8, True),
    ],
)
def test_conversations_continue_in_their_slots(changes: dict, chunk: int, keeps: bool):
    config = default_config().unlock()
    config.update_from_flattened_dict(changes)
    config = resolve(config.lock())
    assert (config.engine.prefill_chunk, config.engine.keep_responses) == (chunk, keeps)
    # A resolved config is resolved again by commands that read it from a run.
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, 128),
        ({"train.groups": 64}, 128),
        ({"train.groups": 4, "train.group_size": 5}, 32),
        ({"train.groups": 1, "train.group_size": 6}, 16),
        # Two rollouts are played at a time.
        (
            {
                "train.groups": 4,
                "train.group_size": 5,
                "train.max_staleness": 1,
                "train.inflight": True,
                "engine.name": "jax_server",
                "engine.urls": "http://a:1",
            },
            64,
        ),
        ({"train.groups": 1, "train.group_size": 6, "engine.slots": 5}, 5),
    ],
)
def test_an_iteration_of_few_episodes_has_few_slots(changes: dict, slots: int):
    config = default_config().unlock()
    config.update_from_flattened_dict(changes)
    assert resolve(config.lock()).engine.slots == slots


def test_a_misspelt_key_is_answered_with_the_nearest():
    (error,) = unknown_keys(default_config(), ["train.groups", "trian.group_sise"])
    assert "config.trian.group_sise" in str(error)
    assert "train.group_size" in str(error)


def test_an_algorithm_has_defaults_and_what_the_user_gives_wins():
    config = default_config()
    config.rl.algorithm = "dapo"
    assert (
        resolve(config).rl.to_dict().items()
        >= {"clip_high": 0.28, "kl_coef": 0.0, "step_weight": 0.0}.items()
    )
    config.rl.clip_high, config.rl.kl_coef = 0.2, 0.02
    rl = resolve(config).rl
    assert (rl.clip_low, rl.clip_high, rl.kl_coef) == (0.2, 0.2, 0.02)
    config.rl.algorithm = "gspo"
    rl = resolve(config).rl
    assert (rl.clip_low, rl.clip_high, rl.old_logprobs) == (3e-4, 0.2, "recompute")
    assert flatten(resolve(default_config()))["rl.clip_high"] == 0.2
    assert config.rl.clip_low is None  # the user's config stays as it is
    config.rl.algorithm = "hgpo"
    assert resolve(config).rl.settings.alpha == 1.0
    config.rl.settings = ConfigDict({"alpha": 0.0})
    assert resolve(config).rl.settings.alpha == 0.0


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [
        ("grpo", "step_weight", 1.0),
        ("dr_grpo", "normalize", "mean_std"),
        ("reinforce_pp", "step_weight", 0.5),
        ("igpo", "normalize", "mean"),
        ("a2tgpo", "normalize", "mean"),
        ("text_critic", "normalize", "mean"),
        ("text_critic", "preset", "paper"),
    ],
)
def test_what_an_algorithm_cannot_honour_is_refused(algorithm: str, key: str, value: object):
    config = default_config()
    config.rl.algorithm, config.rl[key] = algorithm, value
    with pytest.raises(
        InputError,
        match=rf"^config\.rl\.{key}={value!r}: {algorithm} always has .*; leave the key out",
    ):
        resolve(config)


def test_resolving_is_complete_and_idempotent():
    once = resolve(default_config())
    assert set(flatten(once)) == set(KEYS)
    assert not {None, "auto"} & set(map(str, flatten(once).values()))
    assert resolve(once) == once


def test_options_of_the_environment_are_known_keys():
    config = default_config().unlock()
    config.env.options = ConfigDict({"engin": "native"})
    with pytest.raises(
        InputError,
        match=r"config\.env\.options\.engin: no such key .* alfworld; nearest: env\.options\.engine",
    ):
        resolve(config)
    other = default_config().unlock()
    other.env.name, other.env.options = "examples.harness.agent:PLAYER", ConfigDict({"size": 7})
    with pytest.raises(
        InputError, match=r"env\.options\.size: no such key .*; gigpo keys lists them"
    ):
        resolve(other)
    config.env.options = ConfigDict({"engine": "native", "data": ""})
    assert resolve(config).env.options.to_dict() == {"engine": "native"}
    config.env.options.data, config.env.generate = "games", ConfigDict({"splits": {"train": 3}})
    with pytest.raises(
        InputError, match=r"config\.env\.options\.data='games': not used, because env.generate"
    ):
        resolve(config)


def test_an_algorithm_that_needs_a_critic_has_one():
    config = default_config().unlock()
    config.train.group_size, config.rl.algorithm = (
        1,
        "step_ppo",
    )  # nothing is compared within groups
    got = resolve(config)
    assert (got.critic.kind, got.critic.lr, got.rl.gamma, got.rl.ratio) == (
        "model",
        1e-5,
        0.99,
        "sequence",
    )
    assert resolve(got) == got
    config.rl.settings.lam, config.rl.gamma, config.critic.kind = 0.9, 0.5, "head"
    got = resolve(config)
    assert (got.rl.settings.lam, got.rl.gamma, got.critic.kind) == (0.9, 0.5, "head")
    for key, value, message in (
        ("critic.path", "a/model", "critic.path='a/model': not used, because critic.kind=head"),
        (
            "critic.warmup_iterations",
            150,
            "critic.warmup_iterations=150: the policy would never learn",
        ),
        ("rl.preset", "paper", "rl.preset='paper': step_ppo always has 'verl_agent'"),
        ("critic.kind", "none", "critic.kind='none': step_ppo needs a critic; use model or head"),
    ):
        section, name = key.split(".")
        before, config[section][name] = config[section][name], value
        with pytest.raises(InputError, match=f"^config.{message}"):
            resolve(config)
        config[section][name] = before


def test_the_core_has_few_keys_and_none_that_was_removed():
    """What every run has stays short: what few runs use declares its own keys."""
    assert 50 < len(CORE) <= 110
    key_sets = [key_set.keys.keys() for key_set in KEY_SETS.values()]
    names = [*CORE, *itertools.chain.from_iterable(key_sets)]
    assert len(names) == len(set(names)) == len(KEYS) <= 146
    assert {name for name in names if KEYS[name].auto} == {*AUTO}
    fields = ("options", "generate_options", "expert_options")
    entries = registry.ENVIRONMENTS.values()
    options = sum(len(getattr(entry, field)) for entry in entries for field in fields)
    settings = sum(len(algorithm.settings) for algorithm in ALGORITHMS.values())
    assert len(KEYS) + options + settings <= 230  # 327 before
    assert set(names) == {*KEYS}
    assert not KEYS.keys() & {*REMOVED, *MOVED}
    assert {*MOVED.values()} <= KEYS.keys()
