"""Ends a run whose losses are not finite."""

from gigpo_jax.rl.train_step import Metrics

LIMIT = 3  # skipped updates in a row


class NotFinite(RuntimeError):
    """Three updates in a row had a loss or a gradient that is not finite."""


class FiniteCheck:
    """Ends a run after three skipped updates in a row.

    It reads the metrics of an update only after the next update was dispatched. So the device is
    busy with the newest update while the host waits for the metrics.
    """

    def __init__(self, name: str = "policy", rate_key: str = "optim.lr") -> None:
        """Takes the prefix of the updates' metrics, and the key of their learning rate."""
        self._name = name
        self._rate_key = rate_key
        self._newest: Metrics | None = None
        self._skipped_in_row = 0

    def add(self, metrics: Metrics) -> None:
        """Reads the previous update's metrics and takes the newest ones, if they are of an update.

        Raises NotFinite, as `finish` does.
        """
        if f"{self._name}/skipped" not in metrics:
            return
        self.finish()
        self._newest = metrics

    def finish(self) -> None:
        """Reads the metrics of the newest update; raises NotFinite after the third skipped one."""
        metrics = self._newest
        # Taken out: each update counts once, also if `finish` is called again at the end
        # of an iteration.
        self._newest = None
        if metrics is None:
            return
        if float(metrics[f"{self._name}/skipped"]):
            self._skipped_in_row += 1
        else:
            self._skipped_in_row = 0
        if self._skipped_in_row == LIMIT:
            raise NotFinite(
                f"the {self._name}'s loss or its gradient was not finite three times in a row; "
                f"lower config.{self._rate_key}"
            )
