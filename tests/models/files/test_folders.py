"""The folder of a model that is not there."""

import re
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from gigpo_jax.core.errors import InputError
from gigpo_jax.core.packaged import ROOT
from gigpo_jax.models.files import folders
from gigpo_jax.tools.preflight.shapes import model_shape

PATHS = {
    path: config
    for config in sorted((ROOT / "configs").glob("*.py"))
    for path in re.findall(r'config\.model\.path = "(models/\w+)"', config.read_text())
}


@pytest.mark.parametrize("path", PATHS)
def test_a_missing_model_of_a_packaged_config_names_the_config_that_makes_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a wheel: the configs are there, and no models.
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.setattr("gigpo_jax.core.packaged.ROOT", tmp_path)
    monkeypatch.setattr("gigpo_jax.models.files.hub.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        folders.model_folder(path, "")
    message = str(caught.value)
    assert message.startswith(f"config.model.path='{path}': no such folder; make it with ")
    (source,) = re.findall(r"\S+/configs/\w+\.py", message)
    assert path in Path(source).read_text().partition('"""\n\n')[0]
    with pytest.raises(InputError) as caught:
        model_shape(ConfigDict({"model": {"path": path}}))
    assert str(caught.value) == message


def test_a_path_like_no_name_of_the_hub_is_no_folder() -> None:
    with pytest.raises(InputError, match="Hugging Face model folder"):
        folders.model_folder("models/a/b", "")
