"""Conversations: one chat an episode, in which responses stay as they were sampled."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.conversations import Conversation, make_conversation
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History, PromptInput
from gigpo_jax.env_bridge.types import Observation
from gigpo_jax.envs import registry
from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.continuation import encode_continuation
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.modes.sft import _encode_prompts
from gigpo_jax.rollout.demonstrations import demonstrate_episode
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.trajectory import Past
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, begin_with, play

CHAT = registry.find_style("example", "chat_compact")
EOS = TOKENIZER.stop_token_ids[0]
encode = prompt_encoder(TOKENIZER, None)


def observe(text: str) -> Observation:
    return Observation(text, text, ("open", "close"), "find the ring")


def continue_chat(responses: list[list[int]], texts: list[str], limit: int = 10_000):
    """The prompts of a conversation with these observations and responses."""
    history = History(0)
    prompts = []
    for text, response in itertools.zip_longest(texts, responses):
        prompt = build_prompt(CHAT, observe(text), history, encode=encode, limit=limit)
        prompts.append(prompt)
        if response is not None:
            history.add_response(prompt, response)
            history.add(text, "open")
    return prompts


def test_a_prompt_is_what_the_template_writes_around_the_sampled_tokens():
    sampled = TOKENIZER.encode("open the drawer")
    first, second = continue_chat([[*sampled, EOS]], ["nothing in it", "a ring in it"])
    messages = [
        {"role": "system", "content": "find the ring"},
        {"role": "user", "content": "now nothing in it can open close"},
        {"role": "assistant", "content": "open the drawer"},
        {"role": "user", "content": "now a ring in it can open close"},
    ]
    assert first.tokens == TOKENIZER.encode(chat_text(TOKENIZER, messages[:2]))
    assert second.tokens == TOKENIZER.encode(chat_text(TOKENIZER, messages))
    # A response that its limit cut, or a stop string, has no end: the turn is closed after it.
    _, cut = continue_chat([sampled], ["nothing in it", "a ring in it"])
    assert cut.tokens == second.tokens


def test_sampled_tokens_are_not_encoded_again():
    # The text "drawer" has one token. This response spells it in characters.
    spelled = [TOKENIZER.token_id("d"), TOKENIZER.token_id("##r"), TOKENIZER.token_id("##a")]
    first, second = continue_chat([[*spelled, EOS]], ["nothing", "ring"])
    start = len(first.tokens)
    assert second.tokens[:start] == first.tokens
    assert second.tokens[start : start + 4] == [*spelled, EOS]


def test_the_oldest_pairs_are_dropped_down_to_half_of_the_limit():
    texts = [f"{word} in it" for word in ("coin", "pearl", "ring", "drawer", "nothing", "door")]
    responses = [[*TOKENIZER.encode(f"take {text.split()[0]}"), EOS] for text in texts]
    whole = continue_chat(responses, [*texts, "close"])
    limit = len(whole[-2].tokens)
    # One message more than fits.
    *earlier, prompt = continue_chat(responses, [*texts, "close"], limit)
    assert [p.tokens for p in earlier] == [p.tokens for p in whole[:-1]]
    assert not any(p.cut for p in earlier)
    assert prompt.cut == "history"
    assert len(prompt.tokens) <= limit // 2
    # The newest pairs that fit into half, exactly as they were, behind the system message.
    kept = prompt.exchanges
    assert 1 < len(kept) < len(texts)
    rest = [token for pair in kept[1:] for token in (*pair.tokens, *pair.response)]
    assert whole[-1].tokens[-len(rest) :] == rest
    system = TOKENIZER.encode("find the ring")
    assert prompt.tokens[1 : 1 + len(system)] == system
    longer = (whole[-1].exchanges[-len(kept) - 1], *kept)
    assert sum(len(p.tokens) + len(p.response) for p in longer) > limit // 2


def test_an_observation_too_long_for_any_conversation_is_cut():
    first, second = continue_chat([[EOS]], ["ring", "coin " * 5000], limit=40)
    assert first.cut == ""
    assert second.cut == "observation"
    assert len(second.tokens) <= 40
    assert len(second.exchanges) == 1


def test_every_prompt_of_a_rollout_continues_the_one_before():
    settings = dataclasses.replace(SETTINGS, template=CHAT, prompt_tokens=2000)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        engine = StandIn()
        trajectories = play(pool, engine, settings=settings)
    requests = {tokens for tokens, _ in engine.requests}
    pairs = 0
    for trajectory in trajectories:
        for turn, later in itertools.pairwise(trajectory.turns):
            assert later.continues(turn)
            # Only the new message is recorded as text.
            assert later.prompt.startswith("now ")
            pairs += 1
        for turn in trajectory.turns:
            assert tuple(turn.prompt_tokens.tolist()) in requests
    assert pairs > 20
    # The engine hears of the end of each episode.
    assert sorted(engine.ended_sessions) == sorted(
        {params.session for _, params in engine.requests}
    )


def test_continuations_from_the_middle_see_the_responses_of_the_past():
    settings = dataclasses.replace(SETTINGS, template=CHAT, prompt_tokens=2000)
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        whole = play(pool, StandIn(), settings=settings, size=1)
        pasts = []
        for episode in whole:
            turns = episode.turns[: len(episode.turns) // 2]
            responses = tuple(tuple(turn.response_tokens.tolist()) for turn in turns)
            pasts.append(Past(tuple(turn.action for turn in turns), responses=responses))
        rest = play(pool, StandIn(), settings=settings, size=1, starts=begin_with(*pasts))
    for trajectory, continuation in zip(whole, rest, strict=True):
        turn = trajectory.turns[len(trajectory.turns) // 2]
        np.testing.assert_array_equal(continuation.turns[0].prompt_tokens, turn.prompt_tokens)


@pytest.mark.parametrize("limit", [2000, 110])
def test_demonstrations_have_the_prompts_of_rollouts(limit):
    env = registry.make("example", drawers=3)
    task = env.tasks("train")[5]
    settings = dataclasses.replace(SETTINGS, template=CHAT, prompt_tokens=limit)
    expert = registry.make_expert("example", 0)

    def encode_response(text: str) -> list[int]:
        return [*TOKENIZER.encode(text), EOS]

    demonstration = demonstrate_episode(
        env, expert, task, settings, encode=encode, encode_response=encode_response
    )
    targets = [np.array(encode_response(turn.response)) for turn in demonstration.turns]
    prompts = list(_encode_prompts(demonstration, targets, encode))
    assert len(prompts) > 2
    history = History(0)
    observation = env.reset(task)
    cuts = set()
    for turn, target, tokens in zip(demonstration.turns, targets, prompts, strict=True):
        prompt = settings.prompt(observation, history, encode)
        assert tokens == prompt.tokens
        cuts.add(prompt.cut)
        action = settings.parse(turn.response).action
        history.add_response(prompt, target.tolist())
        history.add(observation.text, action)
        observation = env.step(action).observation
    assert ("history" in cuts) == (limit < 2000)


@pytest.mark.parametrize("name", sorted(registry.ENVIRONMENTS))
def test_every_environment_has_conversations(name):
    template = registry.find_style(name, "chat")
    assert isinstance(template, Conversation)
    inputs = PromptInput("the task", "", (), 2, "what is seen", ("go",))
    message = template.user(inputs)
    assert "what is seen" in message
    # What all steps share stands in the system message alone.
    assert len(message) < len(template.system(inputs))


def test_a_template_without_parts_is_the_message_of_each_step():
    conversation = make_conversation(lambda inputs: f"{inputs.task} {len(inputs.history)}")
    inputs = PromptInput("task", "", (), 0, "", None)
    assert conversation.system(inputs) == ""
    assert conversation.user(inputs) == "task 0"


def test_a_template_that_drops_responses_is_refused_in_one_line():
    tokenizer = word_tokenizer(["a"])
    tokenizer._template = SimpleNamespace(render=lambda *_, **__: "no response here")
    with pytest.raises(InputError, match="leaves earlier responses out"):
        encode_continuation(tokenizer, "a", [1])
