"""`env.generate`: unusable values are refused in one line and leave no files."""

from pathlib import Path
from typing import Any

import pytest

from gigpo_jax.config import default_config
from gigpo_jax.core.errors import InputError
from gigpo_jax.envs import registry
from gigpo_jax.rollout.environment import env_options


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        (
            "alfworld",
            {"splits": {"train": -3}},
            "splits.train=-3: must be a whole number of at least 1",
        ),
        ("alfworld", {"splits": {"train": 2.5}}, "splits.train=2.5"),
        ("alfworld", {"splits": "train"}, "splits='train': must be of type dict"),
        ("alfworld", {"splits": {"train": 1}, "seed": "x"}, "seed='x'"),
        ("webshop", {"products": -1}, "products=-1: must be a whole number of at least 1"),
        ("webshop", {"products": "x"}, "products='x'"),
        ("webshop", {"products": 2.5}, "products=2.5"),
        ("webshop", {"products": 2, "seed": None}, "seed=None: must be of type int"),
        ("search", {"people": -1}, "people=-1: must be a whole number from 16 to 2400"),
        ("search", {"people": "x"}, "people='x'"),
        ("search", {"people": 16, "seed": 1.5}, "seed=1.5"),
        ("example", {"games": -1}, "env.generate=['games']: example has nothing to generate"),
    ],
)
def test_values_that_cannot_be_used(
    name: str, values: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIGPO_JAX_CACHE", str(tmp_path))
    config = default_config()
    config.env.name = name
    config.env.prompt = "compact"
    config.env.generate = values
    with pytest.raises(InputError) as error:
        env_options(config)
    assert says in str(error.value)
    assert str(error.value).startswith(("config.env.generate.", "config.env.generate="))
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.rglob("*") if path != tmp_path / name]


def test_the_progress_of_every_generator_counts_what_it_makes(tmp_path: Path) -> None:
    for name, values, minimum in (
        ("alfworld", {"splits": {"train": 2}, "size": "small"}, 2),
        ("webshop", {"products": 3}, 3),
        ("search", {"people": 16}, 16),
    ):
        done: list[int] = []
        data = registry.generate_data(name, tmp_path / name, progress=done.append, **values)
        assert Path(data).is_dir()
        assert sum(done) >= minimum
