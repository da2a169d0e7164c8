"""Weights & Biases.

A resumed run continues under its id; records that the server lacks are sent again.
"""

import base64
import html
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gigpo_jax.core.files import replace_file
from gigpo_jax.core.optional import optional_imports
from gigpo_jax.run.loggers.loggers import Start

with optional_imports("wandb", key="config.log.to"):
    import wandb


class WeightsAndBiases:
    """A W&B run that heeds wandb's environment variables.

    WANDB_MODE and WANDB_PROJECT are two of them. Steps that the server has are not sent again: a
    repeated iteration has the same metrics. Offline there is no server, and each start makes a
    folder that holds all metrics of the run up to its end.
    """

    def __init__(self, start: Start) -> None:
        """Starts or continues the run; sends records that it lacks."""
        folder = start.folder / "wandb"
        folder.mkdir(exist_ok=True)
        id_file = folder / "id.txt"
        if not id_file.exists():
            with replace_file(id_file) as temporary:
                temporary.write_text(uuid.uuid4().hex[:8])
        self._run = wandb.init(
            dir=start.folder,
            # Kept in the workdir: with the same id wandb continues the run instead of starting a
            # second one.
            id=id_file.read_text(),
            resume="allow",
            name=start.name,
            project=os.environ.get("WANDB_PROJECT") or "gigpo_jax",
            config=dict(start.config),
            settings=wandb.Settings(
                console="off", quiet=True, login_timeout=60, finish_timeout=600
            ),
        )
        self._first_step = self._run.step
        for step, values in start.records:
            self.scalars(step, values)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the numbers of a step."""
        self._log(step, dict(values), commit=True)

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        """Sends a distribution."""
        self._log(step, {name: wandb.Histogram(values)}, commit=False)

    def text(self, step: int, name: str, markdown: str) -> None:
        """Sends a text, shown as it is."""
        page = wandb.Html(f"<pre>{html.escape(markdown)}</pre>", inject=False)
        self._log(step, {name: page}, commit=False)

    def pictures(self, step: int, name: str, files: Sequence[bytes]) -> None:
        """Sends PNG files as one page; wandb's images need Pillow."""
        sources = [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]
        images = [
            f'<img src="{source}" alt="picture {number}">'
            for number, source in enumerate(sources, 1)
        ]
        self._log(step, {name: wandb.Html("\n".join(images), inject=False)}, commit=False)

    def close(self) -> None:
        """Ends the run; records not sent in ten minutes stay in the folder, for `wandb sync`."""
        self._run.finish()

    def _log(self, step: int, values: dict[str, Any], *, commit: bool) -> None:
        # wandb ignores steps that go back, and warns of each.
        if step >= self._first_step:
            self._run.log(values, step=step, commit=commit)
