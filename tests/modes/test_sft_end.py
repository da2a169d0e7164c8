"""The end of demonstrated responses, and what is held out of few episodes."""

import re
from pathlib import Path

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.learner import fitted_rows
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.modes import sft
from gigpo_jax.policy import Policy
from gigpo_jax.rollout.demonstrations import DemonstratedTurn, Demonstration
from gigpo_jax.run.progress import Bar
from tests.models.shapes import SMALL
from tests.runs import run


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


def test_only_responses_within_their_limit_are_learnt_and_prompts_keep_their_end() -> None:
    config = default_config()
    config.sampling.stop = ()
    config.sampling.max_response_tokens, config.sampling.max_summary_tokens = 4, 3
    config.sampling.max_prompt_tokens = 5
    tokenizer = word_tokenizer(["a b c d e f"])
    policy = Policy(SMALL["mha_tied"], None, tokenizer)
    # A token each and one for the end.
    turns = [DemonstratedTurn("a b c d e f", text, ()) for text in ("a b c", "a b c d", "f")]
    turns += [DemonstratedTurn("e", text, (), is_text=True) for text in ("b c", "b c d")]
    [samples] = sft.encode_demonstrations([Demonstration(tuple(turns), True)], policy, config)
    end = tokenizer.stop_token_ids[0]
    responses = [sample.response_tokens.tolist() for sample in samples]
    assert responses == [[*tokenizer.encode(text), end] for text in ("a b c", "f", "b c")]
    prompt = tokenizer.encode_chat("a b c d e f")
    assert [sample.prompt_tokens.tolist() for sample in samples[:2]] == [prompt[-5:]] * 2


@pytest.mark.slow
def test_few_episodes_leave_nothing_to_hold_out(tmp_path: Path) -> None:
    flags = ("--config.sft.episodes=4", "--config.sft.epochs=1")
    done = run(tmp_path / "sft", "sft", f"--out={tmp_path / 'model'}", *flags)
    assert "epoch 1: nothing is held out; from 10 episodes on a tenth of them is" in done.stdout
    assert "held_out_loss" not in (tmp_path / "sft/metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_slow_update_says_how_long_the_rest_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a large model on a CPU: each microbatch is a device call.
    monkeypatch.setattr(fitted_rows, "SLOW_FLOP", 0)
    notes: list[str] = []
    monkeypatch.setattr(Bar, "note", lambda self, text: notes.append(text))
    flags = ("--config.sft.episodes=4", "--config.sft.epochs=2", "--config.sft.minibatch=64")
    assert run(tmp_path / "sft", "sft", f"--out={tmp_path / 'model'}", *flags).returncode == 0
    lines = [note for note in notes if note.endswith(" left")]
    for line in lines:
        assert re.fullmatch(r"[\d,]+ of [\d,]+ tokens, \d+ tokens/s, about \d+ \w+ left", line)
    # The last microbatch of the last of two updates.
    assert lines[-1].endswith("about 0 s left")
    assert not lines[0].endswith("about 0 s left")
