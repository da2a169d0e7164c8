"""Names of the files of a run."""

CONFIG = "config.json"
LOCK = ".lock"
METRICS = "metrics.jsonl"
BASE = "base.json"  # checksum of the weights that the adapter of a run belongs to
FIX_TORN_FILE = "restore the file from a copy or choose another --workdir"
