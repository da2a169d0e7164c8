"""Configs of runs whose engine is servers."""

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError


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
