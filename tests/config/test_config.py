"""Every mistake in a config is one message with the key, the value and the fix."""

import itertools

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.config.core_keys import CORE
from gigpo_jax.config.keys import KEYS, PARTS, flatten
from gigpo_jax.config.removed_keys import MOVED, REMOVED, with_defaults
from gigpo_jax.config.resolve import unknown_keys
from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.rl.algorithms import ALGORITHMS


def test_defaults_are_valid_and_locked():
    config = default_config()
    resolve(config)
    with pytest.raises(AttributeError, match="group_size"):
        config.train.groupsize = 3


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
    ("values", "key", "fix"),
    [
        ({"urls": "localhost:8000", "weights_dir": "w"}, "engine.urls", "http://host:port"),
        ({"urls": "http://key@a:8000", "weights_dir": "w"}, "engine.urls", "http://host:port"),
        ({"urls": "http://a:1, http://a:1", "weights_dir": "w"}, "engine.urls", "twice"),
        ({"urls": "http://a:1"}, "engine.weights_dir", "GIGPO_WEIGHTS_DIR"),
    ],
)
def test_servers_that_cannot_work_are_refused(values: dict, key: str, fix: str):
    config = default_config()
    config.engine.name = "vllm"
    config.engine.update(values)
    with pytest.raises(InputError) as error:
        resolve(config)
    assert str(error.value).startswith(f"config.{key}=")
    assert fix in str(error.value)


def test_servers_of_this_machine_need_no_folder_of_weights():
    config = default_config()
    config.engine.name = "vllm"
    config.engine.urls = "http://127.0.0.1:8000, http://localhost:8001, http://[::1]"
    resolve(config)
    config.engine.urls += ",http://10.0.0.1:8000"
    with pytest.raises(InputError, match=r"weights_dir.*other machines"):
        resolve(config)


def test_a_run_starts_no_engine_servers_and_its_settings_are_those_of_the_engine():
    config = default_config()
    config.engine.name = "jax_server"
    with pytest.raises(InputError, match=r"config.engine.urls='': .*; start gigpo engine"):
        resolve(config)
    config.engine.urls = "http://a:1"  # and no folder: weights go over HTTP
    config.env.prompt = "chat"
    resolved = resolve(config)
    assert (resolved.engine.prefill_chunk, resolved.engine.keep_responses) == (32, True)
    assert resolved.rl.old_logprobs == "engine"
    config.train.max_staleness = 2
    with pytest.raises(InputError, match=r"at most 1 with engine.name=jax_server"):
        resolve(config)


def test_rollouts_that_run_ahead_are_scored_again_and_corrected() -> None:
    config = default_config()
    config.train.max_staleness = 1
    rl = resolve(config).rl
    assert (rl.old_logprobs, rl.importance_correction) == ("recompute", "truncated")


def test_weights_in_flight_need_servers_and_rollouts_during_updates():
    config = default_config()
    config.train.inflight = True
    with pytest.raises(
        InputError, match=r"train\.inflight=True: .*; use engine\.name=jax_server or"
    ):
        resolve(config)
    resolve(config, trains=False)
    config.engine.name = "vllm"
    with pytest.raises(
        InputError, match=r"no request runs .*; use train\.max_staleness of at least"
    ):
        resolve(config)
    config.train.max_staleness = 3
    resolved = resolve(config)
    assert (resolved.rl.old_logprobs, resolved.rl.importance_correction) == (
        "recompute",
        "truncated",
    )


def test_saved_configs_have_keys_under_their_names_of_that_time():
    saved = {"engine": {"vllm": {"urls": "http://a:1", "servers": 2}}}
    values = with_defaults(saved, {"engine.urls", "engine.vllm.servers", "engine.slots"})
    assert values == {"engine.urls": "http://a:1", "engine.vllm.servers": 2, "engine.slots": 128}


def test_keys_that_are_gone_are_dropped_if_nothing_changes_without_them():
    saved = {"rl": {"settings": {"prior": "return", "lam": 0.5}}}
    assert with_defaults(saved, ()) == {"rl.settings.lam": 0.5}
    saved["rl"]["settings"]["prior"] = "observation"
    assert with_defaults(saved, ())["rl.settings.prior"] == "observation"


def test_prompts_that_have_a_new_name_are_found():
    saved = {"env": {"prompt": "gigpo_jax.envs.incoming.babyai:show_view"}}
    assert with_defaults(saved, ()) == {"env.prompt": "view"}


def test_a_key_that_one_algorithm_or_environment_lost_is_another_ones():
    saved = {"rl": {"algorithm": "gagpo", "settings": {"lam": 0.8}}}
    assert with_defaults(saved, ()) == {"rl.algorithm": "gagpo"}
    saved["rl"] = {"algorithm": "salt", "settings": {"base": "gagpo", "lam": 0.8}}
    assert with_defaults(saved, ()) == {"rl.algorithm": "salt", "rl.settings.base": "gagpo"}
    saved["rl"] = {"algorithm": "ppo", "settings": {"lam": 0.8}}
    assert with_defaults(saved, ()) == {"rl.algorithm": "ppo", "rl.settings.lam": 0.8}
    options = {"depth": 30}
    saved = {"env": {"mix": {"sokoban": {"options": options}, "far": {"options": options}}}}
    assert with_defaults(saved, ()) == {"env.mix.far.options.depth": 30}
    config = default_config().unlock()
    config.rl.algorithm, config.rl.settings.lam = "gagpo", 0.5
    with pytest.raises(InputError, match=r"settings\.lam: no such key any more: always 0\.8"):
        resolve(config)


def test_options_that_became_keys_are_those_of_our_environments():
    options = {"max_steps": 30, "regret": True, "anchor": "state"}
    values = {"env.regret": True, "env.anchor": "state"}
    for name in ("frozenlake", "gymnasium:Taxi-v4"):
        saved = {"env": {"name": name, "options": options}}
        assert with_defaults(saved, ()) == {"env.name": name} | values
        with pytest.raises(InputError, match=r"env\.options\.anchor: .*; use config\.env\.anchor$"):
            load_config(
                "quickstart", [f"--config.env.name={name}", "--config.env.options.anchor=x"]
            )
    saved["env"]["name"] = "other.package:ENVIRONMENT"
    kept = {f"env.options.{option}": value for option, value in options.items()}
    assert with_defaults(saved, ()) == {"env.name": "other.package:ENVIRONMENT"} | kept


def test_options_of_a_mix_became_keys_too():
    options = {"anchor": "state", "size": 5}
    members = {"lake": {"name": "frozenlake"}, "taxi": {"name": "gymnasium:Taxi-v4"}}
    members |= {"sokoban": {}, "own": {"name": "other.package:ENVIRONMENT"}}
    saved = {"env": {"mix": {label: one | {"options": options} for label, one in members.items()}}}
    values = with_defaults(saved, ())
    assert {name: value for name, value in values.items() if "anchor" in name} == {
        "env.mix.lake.anchor": "state",
        "env.mix.taxi.anchor": "state",
        "env.mix.sokoban.anchor": "state",
        "env.mix.own.options.anchor": "state",
    }
    assert values["env.mix.lake.options.size"] == 5


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


def test_a_removed_key_with_another_value_still_differs():
    saved = {
        "optim": {"b1": 0.8, "grad_clip": 0.5},
        "critic": {"grad_clip": 0.5},
        "serve": {"session_timeout_s": 5.0},  # it never changed results
        "env": {"mix": {"a": {"overlong_penalty": 1.0}, "b": {"overlong_penalty": 2.0}}},
    }
    assert with_defaults(saved, ()) == {
        "optim.b1": 0.8,
        "optim.grad_clip": 0.5,
        "env.mix.b.overlong_penalty": 2.0,
    }
    saved["critic"]["grad_clip"] = 1.0
    assert with_defaults(saved, ())["critic.grad_clip"] == 1.0


def test_a_removed_key_says_what_became_of_it():
    with pytest.raises(InputError, match=r"optim\.b1: no such key any more: always 0\.9; leave it"):
        load_config("quickstart", ["--config.optim.b1=0.9"])


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (
            "train",
            {"max_staleness": 2},
            "config.train.max_staleness=2: .*; at most 1 with engine.name=vllm",
        ),
        ("engine", {"devices": 1}, "config.engine.devices=1: .*; at most 0 with engine.name=vllm"),
    ],
)
def test_servers_hold_the_weights_of_one_update_on_devices_of_their_own(
    section: str, values: dict, message: str
):
    config = default_config()
    config.train.max_staleness = 1
    config[section].update(values)
    resolve(config)
    config.engine.name = "vllm"
    with pytest.raises(InputError, match=message):
        resolve(config)


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


def test_the_cap_of_geometric_means_is_close_to_1():
    config = default_config()
    config.rl.old_logprobs, config.rl.importance_correction = "recompute", "masked_mean"
    assert resolve(config).rl.importance_cap == 1.001
    config.rl.importance_cap = 1.05
    assert resolve(resolve(config)).rl.importance_cap == 1.05


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


def test_responses_are_kept_only_with_chunks():
    config = default_config()
    config.engine.prefill_chunk, config.engine.keep_responses = 0, True
    with pytest.raises(InputError, match=r"add --config.engine.prefill_chunk=32, or leave"):
        resolve(config)


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, 128),
        ({"train.groups": 64}, 128),
        ({"train.groups": 4, "train.group_size": 5}, 32),
        ({"train.groups": 1, "train.group_size": 6}, 16),
        ({"train.groups": 1, "train.group_size": 6, "engine.slots": 5}, 5),
    ],
)
def test_an_iteration_of_few_episodes_has_few_slots(changes: dict, slots: int):
    config = default_config().unlock()
    config.update_from_flattened_dict(changes)
    assert resolve(config.lock()).engine.slots == slots


def test_several_sizes_of_chunk_calls_are_refused():
    config = default_config()
    config.engine.prefill_chunk, config.engine.prefill_rows = 64, (8, 16)
    with pytest.raises(
        InputError,
        match=r"^config\.engine\.prefill_rows=\(8, 16\): chunks .*_chunk=64\).*; name one$",
    ):
        resolve(config)


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


def test_resolving_is_complete_and_idempotent():
    once = resolve(default_config())
    assert set(flatten(once)) == set(KEYS)
    assert not {None, "auto"} & set(map(str, flatten(once).values()))
    assert resolve(once) == once


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


def test_the_core_has_few_keys_and_none_that_was_removed():
    """What every run has stays short: a part that few runs use declares its own keys."""
    assert 50 < len(CORE) <= 110
    parts = [part.keys.keys() for part in PARTS.values()]
    names = [*CORE, *itertools.chain.from_iterable(parts)]
    assert len(names) == len(set(names)) == len(KEYS) <= 146
    fields = ("options", "generate_options", "expert_options")
    entries = registry.ENVIRONMENTS.values()
    options = sum(len(getattr(entry, field)) for entry in entries for field in fields)
    settings = sum(len(algorithm.settings) for algorithm in ALGORITHMS.values())
    assert len(KEYS) + options + settings <= 230  # 327 before
    assert set(names) == {*KEYS}
    assert not KEYS.keys() & {*REMOVED, *MOVED}
    assert {*MOVED.values()} <= KEYS.keys()
