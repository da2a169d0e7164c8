"""Marks the tests of this folder, and skips them where no network can be made."""

import os
import pathlib
import shutil

import pytest


def find_obstacle() -> str:
    """Returns why this machine cannot make networks; "" if it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed (iproute2, util-linux)" if missing else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    obstacle = find_obstacle()
    for item in items:
        if here in item.path.parents:
            item.add_marker("network")
            if obstacle:
                item.add_marker(pytest.mark.skip(reason=obstacle))
