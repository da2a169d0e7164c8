"""Checks launch/ with the packages of those who run it, in .venv-tools: `schemas.py
LAUNCH_FOLDER`.
"""

import pathlib
import sys
from typing import Any

import sky
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What of a value its schema does not know."""
    if isinstance(given, dict):
        inner = [(f"{path}.{name}", value, kept.get(name)) for name, value in given.items()]
    elif isinstance(given, list):
        inner = [
            (f"{path}[{n}]", one, other)
            for n, (one, other) in enumerate(zip(given, kept, strict=True))
        ]
    else:
        return [] if given == kept else [path]
    return [
        name
        for where, one, other in inner
        for name in ([where] if other is None else lost(one, other, where))
    ]


def main(folder: pathlib.Path) -> None:
    """Raises if a file is not what its schema says."""
    print(sky.Task.from_yaml(str(folder / "skypilot.yaml")).resources)
    for name in ("gke_jobset.yaml", "gke_engines.yaml"):
        job = yaml.safe_load((folder / name).read_text())
        unknown = lost(
            job, JobsetV1alpha2JobSet.from_dict(job).to_dict()
        )  # of the CRD's OpenAPI schema
        if unknown:
            raise SystemExit(f"{name}: no such fields: {', '.join(unknown)}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
