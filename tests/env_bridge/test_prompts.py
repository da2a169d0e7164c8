"""Prompts: what they show, and that they always fit."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigpo_jax.core.errors import InputError
from gigpo_jax.env_bridge.image_marks import number_images
from gigpo_jax.env_bridge.instructions import Instruct
from gigpo_jax.env_bridge.prompt_building import build_prompt, fit_prompt
from gigpo_jax.env_bridge.prompts import Compact, Event, History, Prompt, PromptInput
from gigpo_jax.env_bridge.types import IMAGE, Observation
from gigpo_jax.envs import registry
from gigpo_jax.envs.alfworld.full_prompt import FULL
from gigpo_jax.envs.alfworld.prompt import COMPACT, shorten
from gigpo_jax.models.text.word_tokenizer import word_tokenizer

FIRST = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
    "you see a desk 1, and a shelf 1.\n\nYour task is to: put a mug in shelf."
)
DESK = "You arrive at desk 1. On the desk 1, you see a mug 2, and a mug 1."
HELD = "You pick up the mug 1 from the desk 1."
TASK = "put a mug in shelf"


def history_of(window: int, *events: tuple[str, str]) -> History:
    history = History(window)
    for event in events:
        history.add(*event)
    return history


def observe(text: str, *admissible: str) -> Observation:
    return Observation(text, text, admissible or None, TASK)


def words(text: str) -> list[str]:
    return ["<bos>", *text.split(), "<sep>"]


def build(
    template: Instruct | Compact, observation: Observation, history: History, limit: int = 1000
) -> Prompt:
    return build_prompt(template, observation, history, encode=words, limit=limit)


def test_the_window_keeps_the_last_events_and_the_first_observation() -> None:
    history = history_of(2, ("o1", "a1"), ("o2", "a2"), ("o3", "a3"))
    assert history.events() == (Event("o2", "a2"), Event("o3", "a3"))
    assert (history.first, history.steps) == ("o1", 3)
    none = history_of(0, ("o1", "a1"))
    assert (none.events(), none.steps) == ((), 1)


def test_the_full_prompt_has_every_part_in_order() -> None:
    history = history_of(2, (FIRST, "look"), ("o2", "go to shelf 1"), ("o3", "go to desk 1"))
    text = build(
        FULL, observe(DESK, "go to shelf 1", "help", "take mug 1 from desk 1"), history
    ).text
    fragments = [
        "simulated in text",
        "Your task: put a mug in shelf",
        "Steps taken so far: 3.",
        "[step 2] You saw: o2\n[step 2] You did: go to shelf 1",
        "[step 3] You saw: o3\n[step 3] You did: go to desk 1",
        "Now, at step 4, you see: " + DESK,
        "- go to shelf 1\n- take mug 1 from desk 1",
        "<think> and </think>",
        "<action> and </action>",
    ]
    positions = [text.index(fragment) for fragment in fragments]
    assert positions == sorted(positions)
    assert "help" not in text
    assert "o1" not in text


def test_the_compact_prompt_says_it_in_few_words() -> None:
    first = build(COMPACT, observe(FIRST), History(2))
    assert first.text == "put mug shelf now middle of room desk 1 shelf 1"
    history = history_of(1, (FIRST, "look"), (FIRST, "go to desk 1"))
    later = build(
        COMPACT, observe(DESK, "help", "go to shelf 1", "look", "take mug 1 from desk 1"), history
    )
    assert later.text == (
        "put mug shelf did go to desk 1 now arrive at desk 1 on desk 1 mug 2 mug 1 "
        "can go to shelf 1 take mug 1 from desk 1"
    )
    silent = build_prompt(
        COMPACT,
        observe(DESK, "look"),
        history,
        encode=words,
        limit=99,
        show_admissible=False,  # type: ignore[arg-type]
    )
    room = "first middle of room desk 1 shelf 1"
    assert (
        silent.text
        == f"put mug shelf {room} did go to desk 1 now arrive at desk 1 on desk 1 mug 2 mug 1"
    )


def test_shortening_keeps_apart_what_the_environment_tells_apart() -> None:
    assert (
        shorten("You open the drawer 1. The drawer 1 is open. In it, you see a cd 1.")
        == "open drawer 1 drawer 1 open cd 1"
    )
    assert shorten("The drawer 1 is closed.") == "drawer 1 closed"
    assert shorten("Nothing happens.") == "nothing happens"
    assert shorten("You are carrying: a mug 1.") == "carrying mug 1"


@pytest.mark.parametrize("template", [FULL, COMPACT, Instruct("{intro}"), Compact()])
def test_text_is_data(template: Instruct | Compact) -> None:
    nasty = "{0} {task} {{x}} %s %(a)s $home \\n `rm` {inputs!r}"
    observation = Observation(nasty, nasty, (nasty,), nasty)
    prompt = build(template, observation, history_of(2, (nasty, nasty), (nasty, nasty))).text
    assert prompt.count(nasty) >= (4 if isinstance(template, Compact) else 6)


def test_what_does_not_fit_goes_in_order() -> None:
    template = Compact()
    events = [(f"seen{i} " * 10, f"act{i}") for i in range(4)]
    observation = Observation("now1 " * 20, "", ("a b", "c d"), "task")
    history = history_of(4, *events)

    def cut(limit: int) -> Prompt:
        prompt = build(template, observation, history, limit)
        assert len(prompt.tokens) <= limit
        return prompt

    whole = build(template, observation, history, 10_000)
    size = len(whole.tokens)
    assert whole.cut == ""
    assert cut(size) == whole
    assert cut(size - 1).cut == "history"
    assert "act0" not in cut(size - 1).text
    assert "act1" in cut(size - 1).text
    bare = len(build(template, observation, History(4), 10_000).tokens)
    assert "act" not in cut(bare).text
    assert cut(bare).text.count("now1") == 20
    short = cut(bare - 1)
    assert short.cut == "observation"
    assert " ... " in short.text
    assert short.text.endswith("can a b c d")
    assert short.text.startswith("task now now1")
    assert cut(12).text.endswith("can a b c d")
    hard = cut(5)
    assert hard.cut == "tokens"
    assert hard.tokens == words(hard.text)[-5:]


def test_the_first_observation_goes_before_the_last_events() -> None:
    history = history_of(1, ("room " * 30, "a1"), ("o2", "a2"))
    whole = build(Compact(), observe("here"), history)
    assert "first room" in whole.text
    shorter = build(Compact(), observe("here"), history, len(whole.tokens) - 1)
    assert shorter.text == f"{TASK} did a2 now here"


_TEXT = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["\ud800", "<|im_end|>", "{", "\x00", "a" * 5000, " " * 5000, ""]),
)
_TOKENIZER = word_tokenizer(["task observation go to desk"])


@settings(max_examples=150, deadline=None)
@given(_TEXT, _TEXT, _TEXT, st.lists(_TEXT, max_size=4), st.integers(1, 300), st.integers(0, 3))
def test_any_text_fits_any_limit(
    task: str, text: str, action: str, admissible: list[str], limit: int, past: int
) -> None:
    observation = Observation(text, text, tuple(admissible), task)
    history = history_of(2, *[(text, action)] * past)
    for template in (FULL, COMPACT):
        prompt = build_prompt(
            template, observation, history, encode=_TOKENIZER.encode_chat, limit=limit
        )
        assert 0 < len(prompt.tokens) <= limit
        if prompt.cut != "tokens":
            assert prompt.tokens == _TOKENIZER.encode_chat(prompt.text)


def test_a_prompt_that_fits_is_tokenised_once_and_a_book_never_whole() -> None:
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return [0] * len(text.split())

    inputs = PromptInput(TASK, "", (), 0, DESK, ("look",))
    fit_prompt(FULL, inputs, encode=encode, limit=2048)
    assert len(lengths) == 1
    lengths.clear()
    started = time.thread_time()
    prompt = fit_prompt(
        FULL,
        dataclasses.replace(inputs, observation="word " * 2_000_000),
        encode=encode,
        limit=2048,
    )
    assert prompt.cut == "observation"
    assert 1900 < len(prompt.tokens) <= 2048
    assert max(lengths) <= 2048 * 32
    assert len(lengths) < 20
    assert time.thread_time() - started < 2


def test_a_prompt_has_the_images_of_what_it_shows_in_the_order_of_the_text() -> None:
    """Marks that stand for no image are plain text; what does not fit is the history."""
    images = [np.full((1, 1, 3), number, np.uint8) for number in range(5)]
    past = History(2)
    for number in (1, 2, 3):
        past.add(f"room {IMAGE}", f"{IMAGE}\ue0000\ue000", images=(images[number],))
    now = Observation(f"room {IMAGE}", "", None, "a task", (images[4],))
    example, example_images = number_images(f"an example {IMAGE}", images[:1], ())

    def template(inputs: PromptInput) -> str:
        events = [f"{event.observation} {event.action}" for event in inputs.history]
        return " ".join([example, inputs.observation, *events[::-1]])

    def encode(text: str, images: Sequence[np.ndarray]) -> list[str]:
        assert text.count(IMAGE) == len(images)
        return text.split()

    def built(limit: int) -> tuple[str, list[int], str]:
        prompt = build_prompt(
            template, now, past, encode=encode, limit=limit, template_images=example_images
        )
        return prompt.text, [int(image.max()) for image in prompt.images], prompt.cut

    event = f" room {IMAGE} < image>\ue0000\ue000"
    expected_text = f"an example {IMAGE} room {IMAGE}"
    assert built(13) == (expected_text + 2 * event, [0, 4, 3, 2], "")
    assert built(12) == (expected_text + event, [0, 4, 3], "history")
    assert built(2) == (expected_text, [0, 4], "history")


@pytest.mark.parametrize(("marks", "count"), [(2, 1), (0, 1), (1, 2)])
@pytest.mark.parametrize("past", [False, True])
def test_an_observation_with_more_or_fewer_marks_than_images_is_refused(
    marks: int, count: int, past: bool
) -> None:
    """Otherwise a mark would show the image of another observation, or of none."""
    images = (np.zeros((1, 1, 3), np.uint8),) * count
    history = History(1)
    now = wrong = Observation("room" + IMAGE * marks, "", None, "a task", images)
    if past:
        history.add(wrong.text, "look", images=images)
        now = Observation(IMAGE, "", None, "a task", images[:1])
    with pytest.raises(
        InputError,
        match=rf"^config\.env\.name: .* has {count} image\(s\) and {marks} <image> in its",
    ):
        build_prompt(FULL, now, history, encode=lambda text, images: text.split(), limit=999)


def test_every_registered_style_renders_without_history_and_admissible_actions() -> None:
    for entry in registry.ENVIRONMENTS.values():
        for template in entry.styles.values():
            assert "observed here" in template(
                PromptInput("a task", "", (), 1, "observed here", None)
            )
