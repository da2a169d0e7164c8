"""Saved rollouts: what is written is read back, in a small file, and damage is found."""

import gzip
import json
import pathlib
from dataclasses import replace

import numpy as np
import pytest

from gigpo_jax.core.errors import InputError, StorageError
from gigpo_jax.core.png import encode_png
from gigpo_jax.env_bridge.types import IMAGE, Task
from gigpo_jax.models.vision.images import expand_image_tokens, prepare_images, token_grid
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import Rollouts, collect_rollouts, write_rollouts
from gigpo_jax.trajectory import EARLIER, Past, StepCredit, Trajectory, Turn
from tests.models.shapes import VISION
from tests.models.vision.test_images import random_image
from tests.small_disk import SmallDisk

NASTY = '"\\ \n\r\u2028\x00\x1b[31m </script> \ud800 \u6211'


def turn(reward: float, text: str = "") -> Turn:
    return Turn(
        prompt_tokens=np.arange(4, dtype=np.int32),
        response_tokens=np.array([7, 9, 7], np.int32),
        logprobs=np.array([-0.25, -1.5, -0.123456], np.float32),
        prompt="prompt " + NASTY + text,
        response="response " + NASTY,
        action=NASTY,
        valid=True,
        admissible=None,
        observation=NASTY,
        anchor="anchor",
        reward=reward,
        penalty=0.5,
        finish_reason="stop",
        version=3,
    )


def example(text: str = "") -> Rollouts:
    """An episode of two steps, one that was aborted, and one whose group was replaced."""
    task = Task("train/1", "look", "train", "data", "the " + NASTY, "shop")
    trajectories = [
        Trajectory(
            task,
            0,
            0,
            [turn(1.0)],
            aborted=True,
            reason="engine: " + NASTY,
            notes={"reflection": "Next: " + NASTY},
        ),
        Trajectory(
            task, 0, 1, [turn(1.0, text), turn(10.0, text)], won=True, score=1.0, words="look up"
        ),
        Trajectory(task, 1, 0, [turn(0.0)], truncated=True, replaced=True),
    ]
    credit = StepCredit(
        episode=np.array([0.5, 0.5], np.float32),
        step=np.array([-1.0, 0.1], np.float32),
        total=np.array([-0.5, 0.6], np.float32),
        anchor_group=np.array([1, 1]),
    )
    entropy = [np.array([0.1, 0.2, 0.3], np.float32), np.array([1.0, 2.0, 0.98768], np.float32)]
    settings = {"gamma": 0.5, "iteration": 4, "temperature": 1.0}
    return collect_rollouts(
        trajectories, credit, entropy, decode=lambda ids: f"<{ids[0]}>" + NASTY, **settings
    )


def test_a_step_holds_what_training_computed_of_it() -> None:
    aborted, done, replaced = example().episodes
    assert (done.task, done.type, done.split, done.data, done.won) == (
        "train/1",
        "look",
        "train",
        "data",
        True,
    )
    assert (done.words, done.answer) == ("look up", "the " + NASTY)
    first, last = done.steps
    assert (first.reward, first.penalty, first.returns, last.returns) == (
        1.0,
        0.5,
        1.0 + 0.5 * 10.0,
        10.0,
    )
    assert (first.episode_advantage, first.step_advantage, first.advantage) == (0.5, -1.0, -0.5)
    assert (last.advantage, last.anchor_group, last.anchor_group_size) == (0.6, 1, 2)
    assert (first.tokens, first.logprobs) == ((7, 9, 7), (-0.25, -1.5, -0.1235))
    assert (first.entropy, last.entropy) == ((0.1, 0.2, 0.3), (1.0, 2.0, 0.9877))
    assert (first.prompt_length, first.anchor, first.version) == (4, "anchor", 3)
    assert (aborted.aborted, aborted.steps[0].advantage, aborted.steps[0].tokens) == (
        True,
        None,
        (7, 9, 7),
    )
    assert (replaced.replaced, replaced.steps[0].advantage, replaced.steps[0].returns) == (
        True,
        None,
        None,
    )
    assert (aborted.replaced, done.replaced) == (False, False)


def test_what_is_written_is_read_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rollouts" / "iteration_000012.jsonl.gz"
    write_rollouts(path, example())
    assert read_rollouts(path) == example()
    assert example().pieces == {7: "<7>" + NASTY, 9: "<9>" + NASTY}
    content = gzip.decompress(path.read_bytes())
    assert content.isascii()
    assert b"\x1b" not in content, "a terminal that shows the file must not act on it"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_version_of_each_token_is_read_back(tmp_path: pathlib.Path) -> None:
    mixed = replace(turn(0.0), versions=np.array([3, 3, 4], np.int32))
    one = np.zeros(2, np.float32)
    credit = StepCredit(one, one, one, np.arange(2))
    episode = Trajectory(Task("a", "", ""), 0, 0, [mixed, turn(0.0)])
    settings = {"gamma": 1.0, "iteration": 0, "temperature": 1.0}
    path = tmp_path / "x.jsonl.gz"
    write_rollouts(path, collect_rollouts([episode], credit, None, decode=str, **settings))
    first, second = read_rollouts(path).episodes[0].steps
    assert (first.version, first.versions) == (3, (3, 3, 4))
    assert (second.version, second.versions) == (3, None)


def test_the_source_of_a_past_is_read_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    past = Past(("go",), source=EARLIER)
    credit = StepCredit(*np.zeros((3, 1), np.float32), np.arange(1))
    episode = Trajectory(Task("a", "", ""), 0, 0, [turn(0.0)], past=past)
    settings = {"gamma": 1.0, "iteration": 0, "temperature": 1.0}
    write_rollouts(path, collect_rollouts([episode], credit, None, decode=str, **settings))
    (saved,) = read_rollouts(path).episodes
    assert (saved.past, saved.source) == (("go",), "earlier_starts")
    header, line = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    del line["source"]
    old = f"{json.dumps(header | {'version': 6})}\n{json.dumps(line)}\n"
    path.write_bytes(gzip.compress(old.encode()))
    assert read_rollouts(path).episodes == (replace(saved, source="forks"),)


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        (1, ("answer", "environment")),
        (2, ("environment",)),
        (3, ()),
        (4, ()),
        (5, ()),
        (6, ()),
        (7, ()),
    ],
)
def test_a_file_of_an_older_version_is_read(
    version: int, missing: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "old.jsonl.gz"
    new = example()
    write_rollouts(path, new)
    header, *episodes = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    values = [[episode.pop(name) for name in missing] for episode in episodes]
    for episode in episodes:
        assert (episode.pop("past"), episode.pop("source")) == ([], "")
        episode["reflection"] = episode.pop("notes").get("reflection", "")
    assert (header["version"], values) == (
        8,
        [[{"answer": "the " + NASTY, "environment": "shop"}[n] for n in missing]] * 3,
    )
    assert header.pop("pictures") == []
    for step in (step for episode in episodes for step in episode["steps"]):
        del step["pictures"]
        assert step.pop("is_summary") is False
        assert step.pop("versions") is None
    lines = [json.dumps(line) + "\n" for line in (header | {"version": version}, *episodes)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    expected = tuple(replace(episode, **dict.fromkeys(missing, "")) for episode in new.episodes)
    assert read_rollouts(path).episodes == expected


def with_pictures() -> tuple[Rollouts, list[np.ndarray]]:
    """An episode of three steps: one image, two, and a new one in a conversation."""
    images = [random_image(56, 84), random_image(84, 56)]
    turns = []
    for prompt_pictures, new_pictures in ((images[:1], 1), (images, 2), (images, 1)):
        text = expand_image_tokens(
            VISION,
            [1, *[VISION.image_token] * len(prompt_pictures)],
            [token_grid(VISION, image) for image in prompt_pictures],
        )
        copies = [
            image.copy() for image in prompt_pictures
        ]  # as from the processes of environments
        shown = prepare_images(VISION, text, copies)
        turns.append(replace(turn(0.0), prompt=IMAGE * new_pictures, images=shown))
    three = np.zeros(3, np.float32)
    credit = StepCredit(three, three, three, np.arange(3))
    episode = Trajectory(Task("a", "", ""), 0, 0, turns)
    settings = {"gamma": 1.0, "iteration": 0, "temperature": 1.0}
    return collect_rollouts([episode], credit, None, decode=str, **settings), images


def test_pictures_are_png_files_that_are_stored_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    rollouts, images = with_pictures()
    first, second = map(encode_png, images)
    assert [step.pictures for step in rollouts.episodes[0].steps] == [
        (first,),
        (first, second),
        (second,),
    ]
    write_rollouts(path, rollouts)
    assert read_rollouts(path) == rollouts
    header = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])
    assert len(header["pictures"]) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"pictures":["', b'"pictures":["\\u0130!'),  # no base64
        (b'"pictures":["', b'"pictures":["PHN2Zz4=","'),  # no PNG file
        (b'"pictures":[0,1]', b'"pictures":[0,2]'),
        (b'"pictures":[0,1]', b'"pictures":["0"]'),
        (b'"pictures":[0,1]', b'"pictures":7'),
    ],
)
def test_damaged_pictures_are_one_line(tmp_path: pathlib.Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "x.jsonl.gz"
    write_rollouts(path, with_pictures()[0])
    content = gzip.decompress(path.read_bytes())
    assert content.count(old) == 1
    path.write_bytes(gzip.compress(content.replace(old, new)))
    with pytest.raises(InputError, match=r"x\.jsonl\.gz: not a file of saved rollouts"):
        read_rollouts(path)


def test_the_same_rollouts_give_the_same_bytes_and_shared_texts_are_stored_once(
    tmp_path: pathlib.Path,
) -> None:
    long = "".join(chr(0x4E00 + i) for i in np.random.default_rng(0).integers(0, 20000, 20_000))
    first_file = tmp_path / "a"
    second_file = tmp_path / "a2"
    write_rollouts(first_file, example(long))
    write_rollouts(second_file, example(long))
    assert first_file.read_bytes() == second_file.read_bytes()
    header = json.loads(gzip.decompress(first_file.read_bytes()).splitlines()[0])
    assert sum(long in text for text in header["texts"]) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: len(content) // 2], "not a file of saved rollouts"),
        (lambda content: b"text", "not a file of saved rollouts"),
        (lambda content: gzip.compress(b"[]\n"), "not a file of saved rollouts"),
        (
            lambda content: gzip.compress(b'{"format": "other", "version": 1}\n'),
            "format and version",
        ),
        (
            lambda content: gzip.compress(b"".join(gzip.decompress(content).splitlines(True)[:-1])),
            "2 of 3 episodes",
        ),
        (
            lambda content: gzip.compress(gzip.decompress(content).replace(b'"valid"', b'"vaild"')),
            "vaild",
        ),
        (
            lambda content: content[:20] + b"\xff" * 8 + content[28:],
            "not a file of saved rollouts .error: Error -3",
        ),
        (
            lambda content: gzip.compress(gzip.decompress(content).replace(b'"episodes":3,', b"")),
            "KeyError",
        ),
        (
            lambda content: gzip.compress(
                gzip.decompress(content).replace(b'"pieces":', b'"pieces":[],"p":')
            ),
            "'items'",
        ),
        (lambda content: gzip.compress(b"[" * 100_000), "RecursionError"),
        (
            lambda content: gzip.compress(gzip.decompress(content).replace(b'"7":', b'"8":')),
            "a token has no text",
        ),
    ],
)
def test_damaged_and_foreign_files_are_one_line(
    tmp_path: pathlib.Path, damage, message: str
) -> None:
    path = tmp_path / "x.jsonl.gz"
    write_rollouts(path, example())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        read_rollouts(path)
    with pytest.raises(InputError, match="missing"):
        read_rollouts(tmp_path / "missing")


def test_a_full_disk_is_one_line_and_leaves_no_part_of_a_file(small_disk: SmallDisk) -> None:
    disk = small_disk(4)
    path = disk / "x.jsonl.gz"
    with pytest.raises(
        StorageError, match=r"x\.jsonl\.gz: cannot be written \(No space left on device\)"
    ):
        write_rollouts(path, example("".join(map(chr, range(0x4E00, 0x8E00)))))
    assert not list(disk.iterdir())


def test_credit_of_other_steps_is_refused() -> None:
    task = Task("a", "", "")
    none = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="credit of 2 steps for 1"):
        collect_rollouts(
            [Trajectory(task, 0, 0, [turn(0.0)])],
            StepCredit(none, none, none, np.zeros(2, np.int64)),
            None,
            gamma=1.0,
            iteration=0,
            temperature=1.0,
            decode=str,
        )
