"""Options that several test folders share."""

import pytest

from tests.runs import flags
from tests.small_disk import small_disk

__all__ = ["flags", "small_disk"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="seed of the long differential tests")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--seed")
