"""Disks that are soon full: real file systems in memory."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest


class SmallDisk(Protocol):
    def __call__(self, kib: int, inodes: int = ...) -> Path:
        """A folder of its own that holds so many KiB and so many files and folders."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mounts file systems of a size; skips the test where that is not allowed."""
    mounted: list[Path] = []

    def mount(kib: int, inodes: int = 1000) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={kib}k,nr_inodes={inodes}",
            "gigpo_jax_test",
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
