"""Objects by reference: "module:NAME" names what a process imports."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from gigpo_jax.core import packaged
from gigpo_jax.core.errors import InputError

_T = TypeVar("_T")


class ReferenceTable(Mapping[str, _T]):
    """Objects by name, each imported when it is looked up.

    Listing the names imports nothing, so a run loads only what its config names.
    """

    def __init__(self, references: Mapping[str, str]) -> None:
        """Takes "module:NAME" of each name."""
        self._references = references

    def __getitem__(self, name: str) -> _T:
        """Imports the object."""
        # Not `load_reference`: an error in a module of ours is a bug and keeps its traceback.
        module, _, attribute = self._references[name].partition(":")
        return cast(_T, getattr(importlib.import_module(module), attribute))

    def __repr__(self) -> str:
        return ", ".join(self._references)

    def reference(self, name: str) -> str:
        """The "module:NAME" of a name."""
        return self._references[name]

    def __contains__(self, name: object) -> bool:
        # The method of `Mapping` would import the object.
        return name in self._references

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)


def load_reference(reference: str, *, key: str) -> Any:
    """Imports the object that "module:NAME" names.

    Raises:
      InputError: There is no such object; with the config key.
    """
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    # ValueError: the name of the module is empty. Other errors are bugs of the user's module and
    # keep their traceback.
    except (ImportError, AttributeError, ValueError) as err:
        fix = ""
        if isinstance(err, ModuleNotFoundError) and err.name == "examples":
            has_examples = (packaged.ROOT / "examples").is_dir()
            fix = f"run the command in {packaged.ROOT if has_examples else 'a clone'}"
        raise InputError(f"cannot load {reference} ({err})", key=key, fix=fix) from err


def find_entry(name: str, table: Mapping[str, _T], kind: type[_T], *, key: str) -> _T:
    """Finds an entry of a table, or the object "module:NAME" of the entries' type.

    Raises:
      InputError: Unknown name, with the valid ones; or an object of another type.
    """
    if name in table:
        return table[name]
    if ":" not in name:
        from gigpo_jax.core.spelling import nearest_names

        near = nearest_names(name, table)
        hint = f"did you mean {near[0]!r}? " if near else ""
        fix = f"{hint}known are {', '.join(table)}, or module:NAME"
        raise InputError("unknown", key=key, value=repr(name), fix=fix)
    entry = load_reference(name, key=key)
    # A wrong object would fail in the middle of set-up, far from its key.
    if not isinstance(entry, kind):
        reason = f"that is of type {type(entry).__name__}, not {kind.__module__}.{kind.__name__}"
        raise InputError(reason, key=key, value=repr(name))
    return entry
