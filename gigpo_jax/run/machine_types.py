"""The types of the machines that worked on a run: what decides the last bits of its numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigpo_jax.run.workdir_names import MACHINE


def name_type(machine: Mapping[str, Any]) -> str:
    """Names the type of a machine of `describe_machine`: what decides the last bits of results."""
    # Every field may be missing: records of other versions of the package are read as well.
    packages = machine.get("packages", {})
    words = [
        machine.get("cpu", "an unknown CPU"),
        " ".join(machine.get("instructions", ())),
        " ".join(machine.get("caches", ())),
        f"{machine['threads']} threads" if "threads" in machine else "",
        machine.get("devices", ""),
        # Only these two compile programs; an update of another package makes no other type.
        *(f"{name} {packages[name]}" for name in ("jax", "jaxlib") if name in packages),
    ]
    return ", ".join(filter(None, words))


def read_types(folder: Path) -> tuple[str, ...]:
    """Reads the machine types of the run in `folder`; none if the folder has no record."""
    try:
        starts = json.loads((folder / MACHINE).read_text(encoding="utf-8"))["starts"]
        return tuple(dict.fromkeys(name_type(start) for start in starts))
    # The record is information only. A damaged one must not stop the tool that shows the run.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
