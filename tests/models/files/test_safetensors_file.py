"""The reader of headers agrees with the reference implementation on whole files and refuses broken
ones in one line.
"""

import io
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.files.safetensors_file import Entry, parse_header, read_header
from gigpo_jax.models.files.safetensors_output import write_file

TENSORS = {
    "wide": np.arange(6, dtype=np.float32).reshape(2, 3),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(7, np.int64),
    "half": np.ones((5,), np.float16),
}
WHOLE = safetensors.numpy.save(TENSORS, {"note": "metadata is no tensor"})


def file_of(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def described(
    start: object = 0, end: object = 8, shape: object = (2,), dtype: object = "F32"
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_entries_lead_to_the_tensors(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(WHOLE)
    entries = read_header(tmp_path / "a.safetensors")
    assert entries == parse_header(io.BytesIO(WHOLE), "a")
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "wide": ("F32", (2, 3)), "empty": ("F32", (0, 4)), "scalar": ("I64", ()), "half": ("F16", (5,))
    }  # fmt: skip
    assert all(
        WHOLE[entry.start : entry.end] == TENSORS[name].tobytes() for name, entry in entries.items()
    )


def test_a_written_file_is_read_by_the_reference_implementation(tmp_path: pathlib.Path) -> None:
    tensors = {"b": np.arange(3, dtype=np.float32), "a": np.full((2, 2), 0.5, np.float32)}
    calls: list[tuple] = []
    names = [(name, tensor.shape) for name, tensor in tensors.items()]
    write_file(
        tmp_path / "w",
        names,
        "F32",
        (x.data for x in tensors.values()),
        lambda *tensor: calls.append(tensor[:3]),
    )
    contents = safetensors.numpy.load_file(tmp_path / "w")
    assert all(np.array_equal(contents[name], tensor) for name, tensor in tensors.items())
    assert calls == [("b", "F32", (3,)), ("a", "F32", (2, 2))]
    start = (tmp_path / "w").stat().st_size - 28
    assert read_header(tmp_path / "w") == {
        "b": Entry("F32", (3,), start, start + 12),
        "a": Entry("F32", (2, 2), start + 12, start + 28),
    }
    with pytest.raises(ValueError, match="12 bytes for the shape"):
        write_file(tmp_path / "w", [("a", (4,))], "F32", iter([np.zeros(3, np.float32)]))


BROKEN = {
    "empty": b"",
    "no header": b"\0" * 7,
    "cut": WHOLE[:-1],
    "longer": WHOLE + b"\0",
    "header length": (1 << 62).to_bytes(8, "little") + WHOLE[8:],
    "header cut": WHOLE[:40],
    "not JSON": file_of(b"{" * 16, b""),
    "deep JSON": file_of(b"[" * 200_000, b""),
    "a list": file_of([1, 2], b""),
    "entry is text": file_of({"a": "b"}, b""),
    "unknown dtype": file_of({"a": described(dtype="F3")}, bytes(8)),
    "dtype is a list": file_of({"a": described(dtype=[])}, bytes(8)),
    "negative shape": file_of({"a": described(shape=[-2])}, bytes(8)),
    "fraction in shape": file_of({"a": described(shape=[2.0])}, bytes(8)),
    "true in shape": file_of({"a": described(0, 4, [True])}, bytes(4)),
    "offset too large": file_of({"a": described(end=9)}, bytes(9)),
    "negative offset": file_of({"a": described(-4, 4)}, bytes(8)),
    "gap": file_of({"a": described(), "b": described(12, 20)}, bytes(20)),
    "overlap": file_of({"a": described(), "b": described(4, 12)}, bytes(12)),
    "three offsets": file_of({"a": described() | {"data_offsets": [0, 8, 9]}}, bytes(8)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_in_one_line(case: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").write_bytes(BROKEN[case])
    for read in (
        lambda: read_header(tmp_path / "f"),
        lambda: parse_header(io.BytesIO(BROKEN[case]), "f"),
    ):
        with pytest.raises(InputError, match="f: broken or cut short") as caught:
            read()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
    with pytest.raises(InputError, match=r"absent: cannot be read \(No such file"):
        read_header(tmp_path / "absent")


def test_flipped_bits_in_a_header_are_refused_or_harmless() -> None:
    """Whatever the reference implementation refuses is refused here; what is accepted has the same
    shapes there.
    """
    rng = random.Random(0)
    header = 8 + int.from_bytes(WHOLE[:8], "little")
    accepted = 0
    for _ in range(2000):
        data = bytearray(WHOLE)
        data[rng.randrange(header)] ^= 1 << rng.randrange(8)
        try:
            contents = parse_header(io.BytesIO(bytes(data)), "f")
        except InputError:
            continue
        accepted += 1
        theirs = dict(safetensors.deserialize(bytes(data)))
        assert {name: list(entry.shape) for name, entry in contents.items()} == {
            n: x["shape"] for n, x in theirs.items()
        }
    assert 0 < accepted < 1000


def test_it_needs_the_standard_library_alone() -> None:
    code = "import sys, gigpo_jax.models.files.safetensors_file as _; print({'numpy', 'jax', 'torch'} & set(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert out.stdout.strip() == "set()"
