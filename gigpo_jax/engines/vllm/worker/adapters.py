"""Adapters of a vLLM server whose tensors change while requests sample with them.

vLLM ties a request to the name, the number and the folder of its adapter. Its own `load_inplace`
does not do: requests that begin after it would read the adapter again at every step, and earlier
ones from their old folder.
"""

from typing import Any


class AdapterSwitch:
    """The newest folders of a worker's adapters."""

    def __init__(self, manager: Any) -> None:
        """Changes the function by which vLLM's `WorkerLoRAManager` loads an adapter."""
        self._manager = manager
        self._numbers: dict[str, int] = {}
        self._folders: dict[str, str] = {}
        self._load = manager._load_adapter
        manager._load_adapter = self._load_newest

    def replace(self, adapter: str, folder: str) -> None:
        """Loads an adapter anew, under its name and number.

        Args:
          adapter: Name of an adapter that was loaded since the start of this switch.
          folder: Folder of the new tensors.
        """
        from vllm.lora.request import LoRARequest

        self._folders[adapter] = folder
        # vLLM loads the new tensors before it removes the old ones.
        request = LoRARequest(adapter, self._numbers[adapter], folder, load_inplace=True)
        self._manager.add_adapter(request)

    def _load_newest(self, request: Any) -> Any:
        self._numbers[request.lora_name] = request.lora_int_id
        # vLLM may drop an adapter for another one; a request of before reads it from its folder.
        request.lora_path = self._folders.get(request.lora_name, request.lora_path)
        return self._load(request)
