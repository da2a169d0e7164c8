"""Checksums of weights: of the tensors alone, however they are stored."""

import pathlib

import pytest

from gigpo_jax.core.errors import InputError
from gigpo_jax.models.files.checksum import folder_checksum
from gigpo_jax.models.files.save_weights import save_hf
from gigpo_jax.models.files.weights import load_hf
from tests.models.shapes import SMALL, random_params

SHAPE = SMALL["gqa2_untied"]


def test_the_checksum_of_a_model_folder_depends_on_its_tensors_alone(
    tmp_path: pathlib.Path,
) -> None:
    save_hf(tmp_path / "one", SHAPE, random_params(SHAPE))
    checksum = folder_checksum(tmp_path / "one")
    shape, params = load_hf(tmp_path / "one")
    save_hf(tmp_path / "parts", shape, params, max_shard_bytes=20_000)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert folder_checksum(tmp_path / "parts") == checksum
    params["layers"]["up"]["kernel"] = params["layers"]["up"]["kernel"].at[1, 2, 3].add(1e-6)
    save_hf(tmp_path / "other", shape, params)
    assert folder_checksum(tmp_path / "other") != checksum
    assert folder_checksum(tmp_path / "absent") == ""
    (tmp_path / "other/model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="broken or cut short"):
        folder_checksum(tmp_path / "other")
