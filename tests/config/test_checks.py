"""Configs that cannot work are refused with the key, its value and the fix."""

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("train.group_size", 1, "standard deviation"),
        ("train.minibatch", 6401, "at most 6400 steps"),
        ("train.refill_groups", -1, "0 or greater"),
        ("train.finish_fraction", 0.1, "leaves 1 of the 8 episodes"),
        ("train.forks", 7, "at most 6, train.group_size less 2"),
        ("train.fork_choice", "uniform", "not read by train.forks=0"),
        ("train.fork_choice", "carl", "one of uncertainty, uniform, entropy"),
        ("env.overlong_buffer", 513, "at most sampling.max_response_tokens=512"),
        ("env.first_max_steps", 51, "at most env.max_steps=50"),
        ("env.max_steps_iterations", 10, "env.first_max_steps=0; give both"),
        ("env.regret_reward", 0.5, "add --config.env.regret=True"),
        ("env.regret_reward", -0.5, "0 or greater"),
        ("batch.row_length", 2559, "at least 2560"),
        ("train.groups", 0, "greater than 0"),
        ("seed", 10**20, "from 0 to 2147483647"),
        ("optim.lr", float("inf"), "finite"),
        ("env.step_timeout_s", float("inf"), "finite"),
        ("rl.gamma", float("nan"), "finite"),
        ("optim.b2", 1.0, "below 1"),
        ("optim.name", "lion", "one of adamw, muon"),
        ("sampling.top_p", 0.0, "greater than 0"),
        ("sampling.stop", ("",), "a text that is not empty"),
        ("sampling.max_prompt_tokens", 1, "at least 4"),
        ("rl.dual_clip", 1.0, "greater than 1"),
        ("model.param_dtype", "bfloat16", "model.lora.rank"),
        ("env.prompt", "long", "no such style of alfworld; choose one of chat, compact, full"),
        ("optim.lr", -1e-6, "greater than 0"),
        ("rl.gamma", 1.5, "from 0 to 1"),
        ("rl.normalize", "std", "mean_std, mean"),
        ("engine.name", "vlm", "one of"),
        ("engine.prefill_buckets", (512, 4096), "sampling.max_prompt_tokens=2048"),
        ("engine.prefill_buckets", (512, 1024), "longer prompts would be lost"),
        ("engine.prefill_buckets", (0, 2048), "each greater than 0"),
        ("engine.prefill_chunk", 4096, "at most sampling.max_prompt_tokens=2048"),
        ("sampling.top_k", 0, "-1"),
        ("sampling.top_k", 20, r"sampling.top_k=-1 in training"),
        ("sampling.top_p", 0.9, r"sampling.top_p=1 and"),
        ("mesh.fsdp", -1, "only one axis"),
        ("engine.urls", "http://a:1", "engine.name=jax_server or vllm"),
        ("train.max_staleness", -1, "0 or greater"),
        ("engine.devices", -1, "0 or greater"),
        ("rl.importance_cap", 0.0, "greater than 0"),
        ("rl.importance_correction", "truncated", "rl.old_logprobs=recompute"),
        ("rl.importance_correction", "masked_mean", "rl.old_logprobs=recompute"),
        ("rl.ratio", "geometric", "one of token, sequence, product, hoelder, hoelder_tokens"),
        ("rl.hoelder_first", 0.5, "not read by rl.ratio=token"),
        ("rl.importance_cap", 1.5, "not read by rl.importance_correction=none"),
        ("rl.similarity", 0.8, "not read by rl.anchor_match=exact"),
        ("rl.hoelder_last", -2.5, "from -2 to 2"),
        ("eval.examples", 2, "the prompts of config.agent=plain show no examples"),
        ("model.shape.num_kv_heads", 3, "divide"),
        ("env.step_timeout_s", 0.0, "greater than 0"),
        ("model.lora.rank", -1, "0 or greater"),
        ("model.lora.rank", 4, "model.path"),
        ("model.lora.alpha", 0.0, "greater than 0"),
        ("model.lora.targets", ("q_proj", "query"), "one or more of q_proj, k_proj"),
        ("model.lora.targets", ("q_proj", "q_proj"), "each once"),
        ("model.lora.targets", (), "one or more"),
        ("model.lora.path", "a/folder", "model.lora.rank"),
        ("critic.kind", "head", "gigpo has no critic"),
        ("critic.lr", 1e-3, "gigpo has no critic"),
    ],
)
def test_a_bad_value_names_key_value_and_fix(key: str, value: object, fix: str):
    config = default_config()
    parent: ConfigDict = config
    *path, last = key.split(".")
    for part in path:
        parent = parent[part]
    parent[last] = value
    with pytest.raises(InputError) as error:
        resolve(config)
    message = str(error.value)
    assert message.startswith(f"config.{'mesh.data' if key == 'mesh.fsdp' else key}=")
    assert fix in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "values",
    [
        {"train.minibatch": 6400},
        {"train.forks": 6},
        {"train.finish_fraction": 0.25},
        {"env.overlong_buffer": 512},
        {"env.first_max_steps": 50, "env.max_steps_iterations": 1},
        {"batch.row_length": 2560},
        {"engine.prefill_chunk": 2048},
        {"seed": 2**31 - 1},
        {"sampling.max_prompt_tokens": 4},
    ],
)
def test_a_limit_itself_is_allowed(values: dict[str, object]):
    config = default_config().unlock()
    config.update_from_flattened_dict(values)
    resolve(config)


def test_anchors_are_those_of_the_environment():
    config = default_config().unlock()
    config.env.anchor = "feedback+sticky"
    assert resolve(config).env.anchor == "feedback+sticky"
    config.env.anchor = "page"
    with pytest.raises(InputError, match=r"config\.env\.anchor='page': must be feedback, feedback"):
        resolve(config)
    config.env.mix = ConfigDict({"house": {"name": "alfworld"}, "shop": {"name": "webshop"}})
    with pytest.raises(InputError, match=r"config\.env\.mix\.house\.anchor='page': must be feed"):
        resolve(config)
    config.env.mix.house.anchor = "belief"
    assert resolve(config).env.mix.house.anchor == "belief"
    other = default_config().unlock()
    other.env.name, other.env.anchor = "examples.corridor.env:CORRIDOR", "state"
    with pytest.raises(InputError, match=r"env\.anchor='state': must be left out: there is no ch"):
        resolve(other)


def test_devices_for_the_engine_alone_need_rollouts_during_updates():
    config = default_config()
    config.engine.devices = 4
    with pytest.raises(
        InputError,
        match=r"^config\.engine\.devices=4: .* train\.max_staleness of at least 1, or 0$",
    ):
        resolve(config)
    config.train.max_staleness = 1
    resolve(config)


@pytest.mark.parametrize(
    ("values", "key", "fix"),
    [
        ({"algorithm": "gspo", "ratio": "token"}, "rl.ratio", "always has 'sequence'"),
        ({"algorithm": "dapo", "kl_in": "reward"}, "rl.kl_in", "not read with rl.kl_coef=0"),
        (
            {"algorithm": "response_weight", "ratio": "product"},
            "rl.ratio",
            "response_weight cannot weigh them",
        ),
        ({"algorithm": "gmpo", "hoelder_last": -1.0}, "rl.hoelder_last", "always has 0.0"),
        (
            {
                "old_logprobs": "recompute",
                "importance_correction": "masked_sequence",
                "importance_cap": 1.0,
            },
            "rl.importance_cap",
            "greater than 1",
        ),
    ],
)
def test_settings_of_the_loss_that_cannot_work_together_are_refused(
    values: dict, key: str, fix: str
):
    config = default_config()
    config.rl.update(values)
    with pytest.raises(InputError) as error:
        resolve(config)
    assert str(error.value).startswith(f"config.{key}=")
    assert fix in str(error.value)


def test_group_of_one_is_fine_without_standard_deviation():
    config = default_config()
    config.train.group_size, config.rl.normalize = 1, "mean"
    resolve(config)
    config.rl.algorithm = "oprl"
    with pytest.raises(InputError, match=r"train\.group_size=1: oprl compares won with lost"):
        resolve(config)
    config.rl.algorithm = "gigpo"
    config.train.refill_groups = 1
    with pytest.raises(
        InputError,
        match=r"config\.train\.refill_groups=1: .* no second episode to differ from; use 0",
    ):
        resolve(config)


def test_forks_need_whole_groups_and_an_algorithm_that_tells_them():
    config = default_config().unlock()
    config.train.forks = 6
    config.train.fork_choice = "entropy"
    config.rl.settings = ConfigDict()
    resolve(config)
    config.train.finish_fraction = 0.75
    with pytest.raises(InputError, match=r"finish_fraction=0\.75: forks begin when .*; use 1"):
        resolve(config)
    config.train.finish_fraction = 1.0
    config.rl.algorithm = "hgpo"
    with pytest.raises(InputError, match=r"train\.forks=6: rl\.algorithm=hgpo does not tell"):
        resolve(config)
    chat = default_config().unlock()
    chat.train.forks = 2
    chat.env.prompt = "chat_compact"
    with pytest.raises(InputError, match=r"train\.forks=2: a conversation has no responses"):
        resolve(chat)
    harness = default_config().unlock()
    harness.train.forks = 2
    harness.env.name = "examples.harness.agent:PLAYER"
    with pytest.raises(InputError, match=r"train\.forks=2: .* cannot replay actions; use 0"):
        resolve(harness)


@pytest.mark.parametrize(("name", "choice"), [("vineppo", "uniform"), ("carl", "entropy")])
def test_credit_from_forks_needs_forks_of_its_own(name, choice):
    config = default_config().unlock()
    config.rl.algorithm = name
    with pytest.raises(
        InputError, match=rf"train\.forks=0: rl\.algorithm={name} learns .*; such as"
    ):
        resolve(config)
    config.train.forks = 7
    with pytest.raises(InputError, match=rf"fork_choice='uncertainty': .* use {choice}$"):
        resolve(config)
    config.train.fork_choice = choice
    assert resolve(config).rl.step_weight == 1.0
    config.train.forks = 8
    with pytest.raises(InputError, match=r"train\.forks=8: .* at most 7, train\.group_size less 1"):
        resolve(config)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"env.prompt": "full"}, r"config\.env\.context='summary': env\.prompt=full has .*=chat"),
        (
            {"sampling.max_summary_tokens": 600},
            r"config\.sampling\.max_summary_tokens=600: .* at most .*max_response_tokens=512",
        ),
        (
            {"sampling.max_prompt_tokens": 1024},
            r"config\.sampling\.max_prompt_tokens=1024: .* 1024 tokens, beside .*drop_oldest",
        ),
        (
            {"env.prompt": "chat_tagged", "rl.algorithm": "rlvmr"},
            r"config\.env\.context='summary': rlvmr compares .*use drop_oldest",
        ),
        (
            {"env.name": "search", "rl.algorithm": "igpo"},
            r"config\.env\.context='summary': igpo measures .*use drop_oldest",
        ),
        (
            {"env.context": "drop_oldest", "sampling.max_summary_tokens": 64},
            r"config\.sampling\.max_summary_tokens=64: not read by env\.context=drop_oldest",
        ),
        ({"env.context": "window"}, r"config\.env\.context='window': .*of drop_oldest, summary"),
    ],
)
def test_summaries_need_conversations_with_room_for_them(values, complaint):
    config = default_config().unlock()
    config.env.prompt = "chat"
    config.env.context = "summary"
    config.sampling.max_summary_tokens = 256
    resolve(config)
    config.sampling.max_summary_tokens = 0
    resolve(config)
    for name, value in values.items():
        section, _, key = name.partition(".")
        config[section][key] = value
    with pytest.raises(InputError, match=complaint) as error:
        resolve(config)
    assert "\n" not in str(error.value)


def test_a_harness_has_no_summaries():
    config = default_config().unlock()
    config.env.name = "examples.harness.agent:PLAYER"
    config.env.step_timeout_s = 900.0
    config.env.prompt = "chat"
    config.env.context = "summary"
    with pytest.raises(InputError, match=r"env\.context='summary': the prompts are those of the h"):
        resolve(config)


def test_buckets_beside_chunks_are_refused():
    config = default_config()
    config.engine.prefill_chunk, config.engine.prefill_buckets = 64, (2048,)
    with pytest.raises(
        InputError,
        match=r"^config\.engine\.prefill_buckets=\(2048,\): not read with .*_chunk=64; leave",
    ):
        resolve(config)


def test_responses_are_kept_only_with_chunks():
    config = default_config()
    config.engine.prefill_chunk, config.engine.keep_responses = 0, True
    with pytest.raises(InputError, match=r"add --config.engine.prefill_chunk=32, or leave"):
        resolve(config)


def test_several_sizes_of_chunk_calls_are_refused():
    config = default_config()
    config.engine.prefill_chunk, config.engine.prefill_rows = 64, (8, 16)
    with pytest.raises(
        InputError,
        match=r"^config\.engine\.prefill_rows=\(8, 16\): chunks .*_chunk=64\).*; name one$",
    ):
        resolve(config)


@pytest.mark.parametrize("base", [None, "graph_values"])
def test_values_without_a_fixed_point_are_refused(base: str | None):
    config = default_config()
    config.rl.algorithm = "repeat_discount" if base else "graph_values"
    config.rl.settings = ConfigDict({"truncation": "ignore"} | ({"base": base} if base else {}))
    config.rl.gamma = 1.0
    with pytest.raises(
        InputError,
        match=r"^config\.rl\.settings\.truncation='ignore': .*; use gamma below 1, or "
        "shrinkage above 0$",
    ):
        resolve(config)
    config.rl.settings.shrinkage = 0.25
    assert resolve(config).rl.gamma == 1.0
    config.rl.settings.shrinkage = 0.0
    config.rl.gamma = 0.99
    assert resolve(config).rl.settings.truncation == "ignore"


def test_bfloat16_parameters_are_fine_without_training_and_under_an_adapter():
    config = default_config()
    config.model.param_dtype = "bfloat16"
    resolve(config, trains=False)
    config.model.path, config.model.lora.rank = "a/model", 8
    resolve(config)


def test_an_adapter_is_not_trained_with_muon():
    config = default_config()
    config.model.path, config.model.lora.rank = "a/model", 8
    config.optim.name = "muon"
    with pytest.raises(InputError, match=r"optim\.name='muon': an adapter has no matrices"):
        resolve(config)


@pytest.mark.parametrize("old_logprobs", ["engine", "recompute"])
def test_training_samples_from_the_distribution_that_the_learner_knows(old_logprobs: str) -> None:
    """With a cut, each ratio of engine and learner would carry the mass that the cut removed."""
    config = default_config().unlock()
    config.rl.old_logprobs = old_logprobs
    config.sampling.top_p = 0.9
    with pytest.raises(
        InputError, match=r"^config\.sampling\.top_p=0\.9: the learner does not know"
    ):
        resolve(config)
    assert resolve(config, trains=False).sampling.top_p == 0.9


def test_a_part_is_checked_where_its_keys_have_their_defaults():
    config = default_config().unlock()
    config.eval.trials = 2
    with pytest.raises(InputError, match=r"config\.eval\.trials=2: only gigpo eval has trials"):
        resolve(config)
    config.eval.trials = None
    config.model.param_dtype = "bfloat16"
    with pytest.raises(InputError, match=r"config\.model\.param_dtype='bfloat16': small updates"):
        resolve(config)
    config.model.param_dtype = "float32"
    config.rl.algorithm = "ppo"
    config.critic.kind = "none"
    with pytest.raises(InputError, match=r"config\.critic\.kind='none': ppo needs a critic"):
        resolve(config)
