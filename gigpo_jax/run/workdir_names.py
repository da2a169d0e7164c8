"""Names in a run's workdir."""

CONFIG = "config.json"
LOCK = ".lock"
METRICS = "metrics.jsonl"
MACHINE = "machine.json"
CHECKPOINTS = "checkpoints"
EVALUATIONS = "evaluations"
ROLLOUTS = "rollouts"
BASE = "base.json"  # checksum of the weights that the adapter of a run belongs to
FIX_TORN_FILE = "restore the file from a copy or choose another --workdir"
