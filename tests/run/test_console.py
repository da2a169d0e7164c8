"""What every command checks first."""

import resource

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.run.console import check_open_files


def test_too_few_open_files_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_open_files()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (24, 24))
    with pytest.raises(InputError, match=r"limit of open files is 24, .* ulimit -n 128"):
        check_open_files()
