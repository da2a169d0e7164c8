"""Skips tests of the sandbox where the machine has none, with the reason."""

import functools

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.envs.shell.sandbox.client import check_sandbox


@functools.cache
def find_reason() -> str:
    """Why there is no sandbox here; "" if there is one."""
    try:
        check_sandbox()
    except InputError as err:
        return str(err)
    return ""


def skip_without_sandbox() -> None:
    if find_reason():
        pytest.skip(find_reason())
