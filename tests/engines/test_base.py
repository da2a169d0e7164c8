"""Sampling settings refuse what makes no sense; request keys are part of a run's identity and never
change.
"""

import itertools

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.engines.base import SamplingParams, request_key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("max_tokens", 0),
        ("stop_strings", "</action>"),
        ("stop_strings", ("",)),
    ],
)
def test_a_setting_out_of_range_is_named(field, value):
    with pytest.raises(InputError, match=f"^{field}="):
        SamplingParams(**{field: value})


def test_request_keys_are_fixed():
    # b2sum -l 64 of the five numbers as little-endian 64-bit integers is a6d13bd1735b8a15: two
    # little-endian words.
    assert request_key(1, 2, 3, 4, 5) == (0xD13BD1A6, 0x158A5B73)


def test_request_keys_differ_in_every_part():
    keys = {request_key(*parts) for parts in itertools.product((-1, 0, 1), repeat=5)}
    assert len(keys) == 3**5
