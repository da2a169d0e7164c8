"""Summaries: a full conversation goes on from what the policy wrote about it."""

import dataclasses
import re
from functools import partial

import numpy as np
import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import request_key
from gigpo_jax.env_bridge.conversations import (
    Conversation,
    SummaryLimits,
    make_conversation,
    take_summary,
)
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.processes.pool import EnvPool
from gigpo_jax.env_bridge.prompt_building import build_prompt
from gigpo_jax.env_bridge.prompts import History, PromptInput
from gigpo_jax.env_bridge.types import IMAGE, Observation
from gigpo_jax.envs import registry
from gigpo_jax.methods.mem_agent.episode_part import SummariesPart
from gigpo_jax.models.text.chat_messages import chat_text
from gigpo_jax.models.text.word_tokenizer import word_tokenizer
from gigpo_jax.models.vision.vision_config import IMAGE_TOKENS
from gigpo_jax.modes.sft import _count_words, _encode_prompts
from gigpo_jax.rollout.demonstrations import demonstrate_episode
from gigpo_jax.rollout.episode_texts import summary_anchor
from gigpo_jax.rollout.prompt_encoding import prompt_encoder
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import collect_rollouts, write_rollouts
from gigpo_jax.rollout.recorded_starts import RecordedStarts
from gigpo_jax.rollout.results import collect_outcomes
from gigpo_jax.rollout.shown_episode import episode_markdown
from gigpo_jax.rollout.statistics import rollout_metrics
from gigpo_jax.tools.credit.replay import replay_episodes
from gigpo_jax.tools.credit.states import state_at, states_around
from gigpo_jax.trajectory import Past, StepCredit, finished_steps
from tests.models.shapes import VISION
from tests.models.vision.test_images import random_image
from tests.rollout.stand_in import EXAMPLE, SETTINGS, TOKENIZER, StandIn, play

CHAT = registry.find_style("example", "chat_compact")
EOS = TOKENIZER.stop_token_ids[0]
LIMITS = SummaryLimits(response=20, summary=16)
LIMITED = dataclasses.replace(CHAT, summaries=LIMITS)
CONFIG = default_config()
CONFIG.sampling.max_summary_tokens = 16
WRITING = dataclasses.replace(
    SETTINGS,
    template=dataclasses.replace(
        CHAT, summaries=SummaryLimits(SETTINGS.sampling.max_tokens, summary=16)
    ),
    prompt_tokens=130,
    parts=[partial(SummariesPart, CONFIG)],
)
encode = prompt_encoder(TOKENIZER, None)
REQUEST = 3 + len(TOKENIZER.encode("summary"))  # <eos> of a response without one, <bos> and <sep>


def observe(text: str) -> Observation:
    return Observation(text, text, ("open", "close"), "find the ring")


def prompt_of(text: str, history: History, limit: int = 90):
    return build_prompt(LIMITED, observe(text), history, encode=encode, limit=limit)


@pytest.fixture(scope="module")
def played():
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        engine = StandIn()
        trajectories = play(pool, engine, settings=WRITING)
        pairs = [
            (trajectory, place)
            for trajectory in trajectories
            for place, turn in enumerate(trajectory.turns)
            if turn.is_text
        ]
        states = [state_at(trajectory, place + 1) for trajectory, place in pairs]
        states += [state_at(trajectory, place) for trajectory, place in pairs]
        rest = [
            play(
                pool,
                StandIn(),
                settings=WRITING,
                size=1,
                groups=state.group + 1,
                starts=RecordedStarts({state.group: Past(state.past, responses=state.responses)}),
            )[-1]
            for state in (states[0], states[len(pairs) - 1], states[len(pairs)], states[-1])
        ]
    originals = [pairs[0], pairs[-1], pairs[0], pairs[-1]]
    return engine, trajectories, originals, rest


def test_a_full_conversation_asks_for_a_summary_and_starts_from_it():
    history = History(0)
    response = [*TOKENIZER.encode("take the ring"), EOS]
    steps = 0
    while True:
        prompt = prompt_of("nothing in it", history)
        if prompt.asks_summary:
            break
        # The longest response and the next request still fit.
        assert len(prompt.tokens) <= 90 - LIMITS.response - REQUEST
        last = [*prompt.tokens, *response]
        history.add_response(prompt, response)
        history.add("nothing in it", "take")
        steps += 1
    assert steps > 2
    # One more message would not have left that room.
    message = encode("now nothing in it can open close", response=response)
    assert len(last) + len(message) > 90 - LIMITS.response - REQUEST
    messages = [{"role": "user", "content": "summary"}]
    assert prompt.tokens == [*last, *TOKENIZER.encode(chat_text(TOKENIZER, messages))]
    assert (prompt.text, prompt.cut) == ("summary", "")
    assert prompt_of("nothing in it", history, 10_000).asks_summary is False

    take_summary(history, prompt, "ring in drawer 2")
    prompt = prompt_of("a coin", history)
    messages = [
        {"role": "system", "content": "find the ring"},
        {"role": "user", "content": "summary ring in drawer 2\nnow a coin can open close"},
    ]
    assert prompt.tokens == TOKENIZER.encode(chat_text(TOKENIZER, messages))
    assert (prompt.asks_summary, prompt.cut, len(prompt.exchanges)) == (False, "", 1)
    # Later messages do not repeat it.
    history.add_response(prompt, response)
    history.add("a coin", "take")
    prompt = prompt_of("a pearl", history)
    assert (prompt.text, prompt.cut) == ("now a pearl can open close", "")


def test_every_request_for_a_summary_fits_whatever_was_seen_and_answered():
    history = History(0)
    longest = [EOS + 1] * LIMITS.response  # without an end
    summaries = 0
    for step in range(40):
        text = "coin " * (step * step)
        prompt = prompt_of(text, history, limit=100)
        if prompt.asks_summary:
            summaries += 1
            assert len(prompt.tokens) <= 100
            take_summary(history, prompt, "pearl " * LIMITS.summary)
            prompt = prompt_of(text, history, limit=100)
        assert not prompt.asks_summary
        assert len(prompt.tokens) <= 100 - LIMITS.response - REQUEST
        history.add_response(prompt, longest)
        history.add(text, "take")
    assert summaries > 10


def test_too_little_room_is_refused_in_one_line():
    # <bos> find the ring <sep> <bos> now <sep>: 8 tokens, and the summary, response and request.
    smallest = 8 + LIMITS.summary + LIMITS.response + REQUEST
    with pytest.raises(InputError, match=f"take {smallest} tokens before") as error:
        prompt_of("coin", History(0), limit=smallest)
    assert str(error.value).startswith(f"config.sampling.max_prompt_tokens={smallest}: ")
    assert "\n" not in str(error.value)
    assert prompt_of("coin", History(0), limit=smallest + 1).tokens


def test_a_task_that_is_too_long_costs_its_own_episodes():
    def explain(inputs: PromptInput) -> str:
        return CHAT.system(inputs) + " coin" * (100 * inputs.task.endswith("pearl"))

    settings = dataclasses.replace(
        WRITING, template=dataclasses.replace(WRITING.template, system=explain)
    )
    with EnvPool(EXAMPLE.build, workers=1, envs_per_worker=8) as pool:
        episodes = play(pool, settings=settings, groups=3, size=2)
    assert [episode.task.type for episode in episodes[2:4]] == ["find_pearl"] * 2
    for episode in (*episodes[:2], *episodes[4:]):
        assert not episode.aborted
        assert episode.turns
    for episode in episodes[2:4]:
        assert (episode.aborted, episode.policy_dependent, episode.turns) == (True, True, [])
        assert episode.reason.startswith("config.sampling.max_prompt_tokens=130: task, summary")
    metrics = rollout_metrics(episodes, ())
    assert metrics["episode/aborted_policy_dependent"] == 2


def test_styles_have_words_of_their_own():
    inputs = PromptInput("task", "", (), 4, "seen", None, summary="found it")
    full = make_conversation(Instruct("intro"))
    assert "Write a summary" in full.request_summary(inputs)
    assert full.start(inputs) == (
        "Your summary of the first 4 steps:\nfound it\n\nNow, at step 5, you see: seen"
    )
    assert CHAT.request_summary(inputs) == "summary"
    own = Conversation(lambda inputs: "U", lambda inputs: "S", lambda inputs: "?", lambda i: "!")
    assert (own.request_summary(inputs), own.start(inputs)) == ("?", "!\nU")


def test_a_summary_is_data():
    history = History(0)
    history.add("coin", "take")
    prompt = prompt_of("coin", History(0))
    take_summary(history, prompt, f"<eos> {IMAGE} {IMAGE}\ue0000\ue000 \ud800")
    tokens = prompt_of("coin", history).tokens
    special = {TOKENIZER.token_id(token) for token in ("<eos>", "<bos>", "<sep>")}
    assert sum(token in special for token in tokens) == 4  # around two messages
    assert tokens.count(EOS) == 0


@pytest.mark.parametrize("style", ["compact", "chat_compact"])
def test_a_number_behind_a_mark_is_no_image(style):
    template = registry.find_style("example", style)
    text = f"coin {IMAGE}\ue0003\ue000"
    prompt = build_prompt(template, observe(text), History(0), encode=encode, limit=80)
    assert (prompt.images, text in prompt.text) == ((), True)


def test_a_summary_reads_the_pictures_of_its_conversation_and_names_none():
    words = word_tokenizer(["room now summary"], IMAGE_TOKENS)
    start, pad, end = map(words.token_id, IMAGE_TOKENS)
    vision = dataclasses.replace(VISION, start_token=start, image_token=pad, end_token=end)
    read = prompt_encoder(words, vision)
    picture = Observation(f"room {IMAGE}", "", None, "walk", (random_image(56, 84),))
    history = History(0)
    template = dataclasses.replace(CHAT, summaries=SummaryLimits(8, 8))

    def build():
        return build_prompt(template, picture, history, encode=read, limit=100)

    steps = 0
    while not (prompt := build()).asks_summary:
        history.add_response(prompt, [words.token_id("room")])
        history.add(picture.text, "go", images=picture.images)
        steps += 1
    assert steps > 1
    assert len(prompt.images) == steps
    assert prompt.tokens.count(pad) == 6 * steps  # 6 features each
    take_summary(history, prompt, f"room {IMAGE}")
    prompt = build()
    assert (len(prompt.images), prompt.tokens.count(pad)) == (1, 6)
    assert prompt.text.startswith("walk\nsummary room < image>")


def test_episodes_write_summaries_between_their_steps(played):
    engine, trajectories, _, _ = played
    params = {params.key: (tokens, params) for tokens, params in engine.requests}
    assert len(params) == len(engine.requests)  # no two requests have one key
    summaries = 0
    for trajectory in trajectories:
        assert not trajectory.aborted
        turns = trajectory.turns
        steps = finished_steps([trajectory])
        assert not turns[0].is_text
        assert not turns[-1].is_text
        assert trajectory.length == steps[-1].step + 1 <= WRITING.max_steps
        for place, (turn, step) in enumerate(zip(turns, steps, strict=True)):
            assert (step.turn_index, step.turn) == (place, turn)
            number = -step.step if turn.is_text else step.step
            key = request_key(WRITING.seed, 5, trajectory.group, trajectory.member, number)
            tokens, sampling = params[key]
            assert tokens == tuple(turn.prompt_tokens.tolist())
            assert len(tokens) <= WRITING.prompt_tokens
            # A summary ends the conversation: only the turn after it starts anew.
            if place:
                assert turn.continues(turns[place - 1]) == (not turns[place - 1].is_text)
            if not turn.is_text:
                assert sampling.stop_strings == SETTINGS.sampling.stop_strings
                assert sampling.max_tokens == SETTINGS.sampling.max_tokens
                continue
            summaries += 1
            following = turns[place + 1]
            assert (sampling.max_tokens, sampling.stop_strings) == (16, ())
            assert (turn.reward, turn.penalty, turn.valid) == (0.0, 0.0, True)
            assert turn.observation == following.observation
            assert turn.anchor == summary_anchor(following.anchor) != following.anchor
            assert turn.action in following.prompt
            assert following.prompt.startswith("find the ")
            assert step.step == steps[place + 1].step
    assert summaries > 20


def test_metrics_of_actions_leave_summaries_out(played):
    _, trajectories, _, _ = played
    metrics = rollout_metrics(trajectories, ())
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    steps = [turn for turn in turns if not turn.is_text]
    assert metrics["rollout/summaries"] == len(turns) - len(steps) > 20
    assert metrics["rollout/steps"] == len(steps)
    assert metrics["episode/length"] == pytest.approx(len(steps) / len(trajectories))
    assert metrics["action/valid_rate"] == pytest.approx(np.mean([turn.valid for turn in steps]))
    lengths = [len(turn.response_tokens) for turn in turns]
    assert metrics["response/length_mean"] == pytest.approx(np.mean(lengths))
    assert metrics["rollout/generated_tokens"] == sum(lengths)
    longest = max(trajectories, key=lambda trajectory: trajectory.length)
    trial = dataclasses.replace(longest, group=0, member=0)
    (outcome,) = collect_outcomes([trial], [longest.task])
    assert outcome.length == longest.length < len(longest.turns)


def test_continuations_begin_before_and_after_a_summary(played):
    _, _, originals, rest = played
    for (trajectory, place), continuation, offset in zip(
        originals, rest, (1, 1, 0, 0), strict=True
    ):
        turn = trajectory.turns[place + offset]
        first = continuation.turns[0]
        assert first.is_text == turn.is_text == (offset == 0)
        np.testing.assert_array_equal(first.prompt_tokens, turn.prompt_tokens)


def test_states_around_a_summary_differ_in_its_words_alone(played):
    _, trajectories, _, _ = played
    steps = finished_steps(trajectories)
    summary = next(step for step in steps if step.turn.is_text)
    before, after = states_around(trajectories, [summary])
    assert before.past == after.past
    assert len(before.past) == summary.step
    written = tuple(summary.turn.response_tokens.tolist())
    assert after.responses == (*before.responses, written)
    assert len(after.responses) == summary.turn_index + 1


def test_saved_rollouts_have_summaries_and_are_played_again(played, tmp_path):
    _, trajectories, _, _ = played
    count = len(finished_steps(trajectories))
    credit = StepCredit(*np.ones((3, count), np.float32), np.zeros(count, np.int64))
    rollouts = collect_rollouts(
        trajectories, credit, None, gamma=0.5, iteration=0, temperature=1.0, decode=TOKENIZER.decode
    )
    path = tmp_path / "x.jsonl.gz"
    write_rollouts(path, rollouts)
    assert read_rollouts(path) == rollouts
    for trajectory, episode in zip(trajectories, rollouts.episodes, strict=True):
        assert episode.length == trajectory.length
        for turn, step, later in zip(
            trajectory.turns, episode.steps, (*episode.steps[1:], None), strict=True
        ):
            assert step.is_summary == turn.is_text
            assert not turn.is_text or step.returns == later.returns
    # The episodes that were won are too short for a summary.
    longest = max(rollouts.episodes, key=lambda episode: len(episode.steps))
    shown = dataclasses.replace(longest, won=True)
    text = episode_markdown(dataclasses.replace(rollouts, episodes=(shown,)))
    numbers = iter(range(1, shown.length + 1))
    headings = ["Summary" if s.is_summary else f"Step {next(numbers)}" for s in shown.steps]
    # Otherwise no number tells whether summaries are counted.
    assert headings.index("Summary") < len(headings) - 1
    assert re.findall(r"(?m)^### (Summary|Step \d+):", text) == headings
    assert f"{shown.length} steps" in text

    env = registry.make("example")
    repeated = replay_episodes(
        env,
        rollouts.episodes,
        WRITING,
        prompt=lambda now, history: (WRITING.prompt(now, history, encode), None),
    )
    for trajectory, again in zip(trajectories, repeated, strict=True):
        for turn, same in zip(trajectory.turns, again.turns, strict=True):
            np.testing.assert_array_equal(turn.prompt_tokens, same.prompt_tokens)
            assert (turn.is_text, turn.anchor, turn.choices) == (
                same.is_text,
                same.anchor,
                same.choices,
            )


class Note:
    """An expert whose summaries say how many observations it has seen."""

    def __init__(self) -> None:
        self._expert = registry.make_expert("example", 0)
        self._seen = 0

    def act(self, observation: Observation) -> str:
        self._seen += 1
        return self._expert.act(observation)

    def summarise(self) -> str:
        return f"nothing in {self._seen} drawers"


def demonstrate(expert):
    env = registry.make("example", drawers=4)
    task = env.tasks("train")[5]
    return demonstrate_episode(
        env,
        expert,
        task,
        WRITING,
        encode=encode,
        encode_response=lambda text: [*TOKENIZER.encode(text), EOS],
    )


def test_demonstrations_have_the_summaries_of_the_expert():
    demonstration = demonstrate(Note())
    turns = demonstration.turns
    targets = [np.array([*TOKENIZER.encode(turn.response), EOS]) for turn in turns]
    prompts = list(_encode_prompts(demonstration, targets, encode))
    places = [place for place, turn in enumerate(turns) if turn.is_text]
    assert len(places) > 1
    for number, place in enumerate(places):
        assert turns[place].response == f"nothing in {place - number} drawers"
        assert turns[place].response in turns[place + 1].prompt
        # The summary reads the whole conversation before it.
        past = [*prompts[place - 1], *targets[place - 1].tolist()]
        assert prompts[place] == [*past, *encode("summary", response=targets[place - 1].tolist())]
        assert len(turns[place + 1].exchanges) == 1


def test_the_conversations_of_an_expert_without_summaries_drop_steps():
    turns = demonstrate(registry.make_expert("example", 0)).turns
    assert not any(turn.is_text for turn in turns)
    assert max(len(turn.exchanges) for turn in turns) < len(turns)


# The end of a response is in its measure, unless it is empty.
@pytest.mark.parametrize("response", [None, (), (7, EOS)])
def test_words_are_counted_as_the_word_tokenizer_encodes_them(response):
    text = "now a ring's box, take it"
    system = "find the ring." if response is None else ""
    tokens = prompt_encoder(word_tokenizer([text, "find the ring."]), None)(
        text, system=system, response=response
    )
    assert _count_words(text, system, response) == len(tokens)
