"""Loading a policy: what is refused before anything is allocated."""

from pathlib import Path

import pytest

from gigpo_jax.config import default_config, resolve
from gigpo_jax.errors import InputError
from gigpo_jax.models.tokenizer import load_tokenizer
from gigpo_jax.models.weights import load_hf, save_hf
from gigpo_jax.policy import load_policy
from gigpo_jax.run.partition import make_mesh

TINY = Path(__file__).parents[1] / "models" / "alfworld_tiny"


def test_a_critic_is_no_policy(tmp_path: Path) -> None:
    shape, params = load_hf(TINY, value_head=True)
    save_hf(tmp_path / "critic", shape, params, tokenizer=load_tokenizer(str(TINY)))
    config = resolve(default_config(), trains=False).unlock()
    config.model.path = str(tmp_path / "critic")
    with pytest.raises(InputError, match=r"^config\.model\.path=.*: a critic, .*; name a language model$"):
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
        InputError, match=f"max_prompt_tokens={template}: the chat template of .* alone takes {template} tokens"
    ):
        load_policy(config, make_mesh())
