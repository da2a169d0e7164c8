"""Every mistake in a config is one message with the key, the value and the fix."""

import pytest
from ml_collections import ConfigDict

from gigpo_jax.config import default_config, importance_correction, old_logprobs, unknown_keys, validate
from gigpo_jax.errors import InputError


def test_defaults_are_valid_and_locked():
    config = default_config()
    validate(config)
    with pytest.raises(AttributeError, match="group_size"):
        config.train.groupsize = 3


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("train.group_size", 1, "standard deviation"),
        ("train.minibatch", 6401, "= 6400 steps"),
        ("batch.row_length", 2559, "at least 2560"),
        ("train.groups", 0, "greater than 0"),
        ("optim.lr", -1e-6, "greater than 0"),
        ("rl.gamma", 1.5, "between 0 and 1"),
        ("rl.normalize", "std", "mean_std, mean"),
        ("engine.name", "vlm", "one of"),
        ("engine.prefill_buckets", (4096,), "sampling.max_prompt_tokens=2048"),
        ("sampling.top_k", 0, "-1"),
        ("sampling.top_k", 20, "rl.old_logprobs=recompute"),
        ("sampling.top_p", 0.9, "rl.old_logprobs=recompute"),
        ("mesh.fsdp", -1, "only one axis"),
        ("engine.vllm.urls", "http://a:1", "engine.name=vllm"),
        ("train.max_staleness", 1, "engine.name=vllm"),
        ("train.max_staleness", 2, "one of 0, 1"),
        ("rl.importance_cap", 0.0, "greater than 0"),
        ("rl.importance_correction", "truncated", "rl.old_logprobs=recompute"),
        ("model.shape.num_kv_heads", 3, "divide"),
        ("env.step_timeout_s", 0.0, "greater than 0"),
        ("model.lora.rank", -1, "negative"),
        ("model.lora.rank", 4, "model.path"),
        ("model.lora.alpha", 0.0, "greater than 0"),
        ("model.lora.targets", ("q_proj", "query"), "one or more of q_proj, k_proj"),
        ("model.lora.targets", ("q_proj", "q_proj"), "each once"),
        ("model.lora.targets", (), "one or more"),
        ("model.lora.path", "a/folder", "model.lora.rank"),
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
        validate(config)
    message = str(error.value)
    assert message.startswith(f"config.{'mesh.data' if key == 'mesh.fsdp' else key}=")
    assert fix in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("values", "key", "fix"),
    [
        ({"urls": "localhost:8000", "weights_dir": "w"}, "engine.vllm.urls", "http://host:port"),
        ({"urls": "http://key@a:8000", "weights_dir": "w"}, "engine.vllm.urls", "http://host:port"),
        ({"urls": "http://a:1, http://a:1", "weights_dir": "w"}, "engine.vllm.urls", "twice"),
        ({"urls": "http://a:1"}, "engine.vllm.weights_dir", "GIGPO_WEIGHTS_DIR"),
        ({"urls": "http://a:1", "weights_host": "localhost"}, "engine.vllm.weights_host", "this machine's address"),
        ({"urls": "http://a:1", "weights_host": "b"}, "engine.vllm.weights_port", "--weights-url"),
        ({"launch": False}, "engine.vllm.launch", "engine.vllm.urls"),
    ],
)
def test_servers_that_cannot_work_are_refused(values: dict, key: str, fix: str):
    config = default_config()
    config.engine.name = "vllm"
    config.engine.vllm.update(values)
    with pytest.raises(InputError) as error:
        validate(config)
    assert str(error.value).startswith(f"config.{key}=")
    assert fix in str(error.value)


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
def test_old_logprobs_and_their_correction_follow_the_engine(engine: str, given: dict, resolved: tuple[str, str]):
    config = default_config()
    config.engine.name = engine
    config.rl.update(given)
    validate(config)
    assert (old_logprobs(config), importance_correction(config)) == resolved


def test_group_of_one_is_fine_without_standard_deviation():
    config = default_config()
    config.train.group_size, config.rl.normalize = 1, "mean"
    validate(config)


def test_a_misspelt_key_is_answered_with_the_nearest():
    config = default_config()
    (error,) = unknown_keys(config, ["train.groups", "trian.group_sise"])
    assert "config.trian.group_sise" in str(error)
    assert "train.group_size" in str(error)
