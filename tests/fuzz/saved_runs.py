"""What runs leave: rollouts, checkpoints and files of a workdir."""

import gzip
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

from gigpo_jax.config.saved import read_saved_config
from gigpo_jax.rollout.read_record import read_rollouts
from gigpo_jax.rollout.record import (
    Rollouts,
    SavedEpisode,
    SavedStep,
    write_rollouts,
)
from gigpo_jax.run.checksums import digest
from gigpo_jax.run.restore import restore_newest
from gigpo_jax.run.saved_runs import read_records
from tests.fuzz.inputs import dump, parse_object, write_files


def read_saved_rollouts(data: bytes) -> None:
    """A file of rollouts from its lines, or from its own bytes."""
    try:
        lines = json.loads(data)
        data = gzip.compress("\n".join(map(json.dumps, lines)).encode(), 1)
    except (ValueError, TypeError, RecursionError):
        pass
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "iteration_0.jsonl.gz")
        path.write_bytes(data)
        read_rollouts(path)


def seed_rollouts() -> list[bytes]:
    step = SavedStep(
        "p", "r", "a", True, None, "o", "s", 1.0, 0.0, "stop", 0, 3, (4, 5), (-1.0, -2.0)
    )
    episode = SavedEpisode("1", "t", "train", "", 0, 0, True, 1.0, False, "", (step,))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "iteration_0.jsonl.gz")
        write_rollouts(path, Rollouts(0, 1.0, (episode,), {4: "a", 5: "b"}))
        data = path.read_bytes()
    return [*dump([json.loads(line) for line in gzip.decompress(data).splitlines()]), data]


def read_run(data: bytes) -> None:
    """Record of a checkpoint, and files of a workdir."""
    content = parse_object(data)
    if "record" in content:
        record = content["record"]
        if isinstance(record, dict) and content.get("signed"):
            record |= {
                "checksum": digest(
                    {key: value for key, value in record.items() if key != "checksum"}
                )
            }
        manager = SimpleNamespace(restore=lambda iteration, args: {"record": record})
        restore_newest(manager, Path("checkpoints"), [3], {})
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(data, name)
        if (folder / "config.json").exists():
            read_saved_config(folder / "config.json")
        read_records(folder)


def seed_runs() -> list[bytes]:
    record = {"number": 3, "record": {"iteration": 3}, "checksums": {"params": "00"}}
    config = {"env": {"name": "example", "options": {"a": 1}}, "rl": {"algorithm": "gigpo"}}
    files = {"config.json": config, "metrics.jsonl": '{"iteration": 0}\n{"iteration": 1}\n'}
    return dump(
        {"record": record, "signed": True, **files}, {"record": record, "signed": 1} | files
    )
