"""The end of demonstrated responses."""

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.modes import sft
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.demonstrations import DemonstratedTurn, Demonstration
from tests.models.shapes import SMALL


@pytest.mark.parametrize(("stop", "ends"), [(("</action>",), False), ((), True)])
def test_the_end_of_sequence_token_is_learnt_where_no_stop_string_ends_a_response(
    stop: tuple[str, ...], ends: bool
) -> None:
    config = default_config()
    config.sampling.stop = stop
    tokenizer = word_tokenizer(["look", "around"])
    turn = DemonstratedTurn("a room", "<action>look around</action>", ())
    policy = Policy(SMALL["mha_tied"], None, tokenizer)
    [[sample]] = sft.encode_demonstrations([Demonstration((turn,), True)], policy, config)
    tokens = sample.response_tokens.tolist()
    assert (tokens[-1] == tokenizer.token_id("<eos>")) == ends
    assert tokenizer.decode(tokens).startswith("<action>look around</action>")
