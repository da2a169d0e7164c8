"""What became of keys of saved configs."""

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.config.command_line import load_config
from gigpo_jax.config.removed_keys import with_defaults
from gigpo_jax.core.errors import InputError


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


def test_the_shape_of_random_weights_is_nothing_beside_a_path():
    shape = {"rope_theta": 1e4}
    saved = {"model": {"path": "models/alfworld_tiny", "shape": shape}}
    assert with_defaults(saved, ()) == {"model.path": "models/alfworld_tiny"}
    assert with_defaults({"model": {"shape": shape}}, ()) == {"model.shape.rope_theta": 1e4}
