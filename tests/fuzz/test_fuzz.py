"""Parsers answer any input with their own errors: valid ones, past findings, and random changes."""

import logging
import random
import time
from collections.abc import Iterator

import pytest

from tests.fuzz.search import FINDINGS, make_inputs, try_input
from tests.fuzz.servers import read_answer, seed_answers
from tests.fuzz.targets import TARGETS

SECONDS = 20.0  # of CPU, for each parser


@pytest.fixture(autouse=True)
def silence_warnings() -> Iterator[None]:
    """Warnings repeat their input, and half a surrogate pair in a captured log ends pytest-xdist."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_valid_and_findings_are_answered(name):
    target = TARGETS[name]
    for data in target.seeds():
        target.read(data)
    for file in sorted((FINDINGS / name).glob("*")):
        assert try_input(target, file.read_bytes()) == "", file.name


def test_seeds_of_answers_are_decoded():
    """`read_answer` takes any exception, so an input that is not one would pass as valid."""
    counts = [len(read_answer(data)) for data in seed_answers()]
    # "start" takes a number, "tasks" a list, "reset" an observation, "step" a result.
    assert counts == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_random_changes_are_answered(name, seed):
    target = TARGETS[name]
    end = time.process_time() + SECONDS
    for data in make_inputs(target, random.Random(seed)):
        assert try_input(target, data) == "", ascii(data[:2000])
        if time.process_time() > end:
            break
