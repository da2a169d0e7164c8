"""The types of machines in the record of a run."""

import json
from pathlib import Path

import pytest

from gigpo_jax.run.machine_types import read_types
from gigpo_jax.run.workdir_names import MACHINE


@pytest.mark.parametrize("content", ["", "[]", '{"starts": 3}', '{"starts": [1]}', "{}"])
def test_a_damaged_record_is_no_record(content: str, tmp_path: Path) -> None:
    assert read_types(tmp_path) == ()
    (tmp_path / MACHINE).write_text(content)
    assert read_types(tmp_path) == ()


def test_types_are_read_in_order_and_once(tmp_path: Path) -> None:
    starts = [{"done": done, "cpu": cpu} for done, cpu in enumerate(("A", "B", "A"))]
    (tmp_path / MACHINE).write_text(json.dumps({"starts": starts}))
    assert read_types(tmp_path) == ("A", "B")
