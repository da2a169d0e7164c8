"""Loading a policy, what is refused before anything is allocated; random policies."""

from pathlib import Path

import jax
import numpy as np
import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.core.errors import InputError
from gigpo_jax.devices.memory import GIB, memory_estimate
from gigpo_jax.devices.mesh import make_mesh
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from gigpo_jax.models.text.tokenizer import load_tokenizer
from gigpo_jax.modes.model_folder import fresh_policy
from gigpo_jax.policy import is_small, load_policy
from tests.models.shapes import SMALL

TINY = Path(__file__).parents[1] / "models" / "alfworld_tiny"


def test_a_critic_is_no_policy(tmp_path: Path) -> None:
    shape, params = load_hf(TINY, value_head=True)
    save_hf(tmp_path / "critic", shape, params, tokenizer=load_tokenizer(str(TINY)))
    config = resolve(default_config(), trains=False).unlock()
    config.model.path = str(tmp_path / "critic")
    with pytest.raises(
        InputError, match=r"^config\.model\.path=.*: a critic, .*; name a language model$"
    ):
        load_policy(config, make_mesh())


@pytest.mark.parametrize("spare", [0, 1])
def test_a_prompt_limit_must_leave_room_beside_the_chat_template(spare: int) -> None:
    template = len(load_tokenizer(str(TINY)).encode_chat(""))
    config = resolve(default_config(), trains=False).unlock()
    config.model.path, config.sampling.max_prompt_tokens = str(TINY), template + spare
    if spare:
        load_policy(config, make_mesh())
        return
    with pytest.raises(
        InputError,
        match=f"max_prompt_tokens={template}: the chat template of .* alone takes {template} tokens",
    ):
        load_policy(config, make_mesh())


def test_random_matrices_have_the_standard_deviation_of_the_config() -> None:
    config = resolve(default_config()).unlock()
    config.model.shape.update(num_layers=1, initializer_range=0.1)
    config.model.shape.vision.depth = 1
    for path, leaf in jax.tree.leaves_with_path(fresh_policy(config, make_mesh(), ["a b"]).params):
        if path[-1].key in ("bias", "scale"):
            np.testing.assert_array_equal(leaf, float(path[-1].key == "scale"))
        else:
            assert float(leaf.std()) == pytest.approx(0.1, rel=0.1), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", SMALL)
def test_a_run_without_an_estimate_fits_a_gibibyte_by_the_estimate(name: str) -> None:
    """For a dense shape the bound grows with slots, rows and policies ahead until it says no."""
    shape = SMALL[name]
    answers = set()
    for size in (1, 10, 100, 1000, 10_000, 100_000):
        for key, value in (
            ("batch.rows", size),
            ("engine.slots", size),
            ("train.max_staleness", size),
        ):
            config = resolve(default_config()).unlock()
            config.model.remat = "none"
            config.model.compute_dtype = config.engine.dtype = "float32"
            config.engine.slots = 4
            config.batch.fit_rows = False
            config.batch.row_length = 3072
            section, _, last = key.partition(".")
            config[section][last] = value
            small = is_small(config, shape)
            answers.add((key, small))
            if small:
                assert sum(memory_estimate(config, shape, 1, platform="cpu").values()) < GIB
    plain = not (shape.experts or shape.vision or shape.layer_types)
    assert len(answers) == (6 if plain else 3)
