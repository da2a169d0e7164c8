"""GiGPO on a server of the Model Context Protocol, on a laptop: 12 iterations of 16 x 8 episodes.

    pip install -e ".[mcp]"
    gigpo train --config=configs/mcp_files_tiny.py --workdir=runs/mcp_files

Run it in a clone: the server is examples/mcp/files.py, with the official SDK. A question asks who
owns the file of a project that has a word; the tools list and read files. The policy of 0.2 M
parameters writes calls in few words (examples/mcp/entry.py). It imitated an expert that reads any
file in 60% of its steps (mcp_files_tiny_sft.py). docs/mcp.md has the results.
"""

from ml_collections import ConfigDict

from configs.tiny import tiny_config, train_config


def files_config() -> ConfigDict:
    """The base of this experiment and its warm start, unlocked."""
    config = tiny_config()
    config.env.name = "examples.mcp.entry:FILES_ENTRY"
    config.env.generate = ConfigDict()
    config.env.options = ConfigDict(
        {
            "tasks": "examples/mcp/files.jsonl",
            "scorer": "examples.mcp.entry:score_owner",
            # The server has no state, and a start takes a second.
            "restart": False,
        }
    )
    config.env.max_steps = 5
    config.env.history = 0
    config.sampling.max_prompt_tokens = 32
    config.sampling.max_response_tokens = 12
    config.model.shape.update(
        hidden_size=64, intermediate_size=192, num_layers=3, num_heads=2, num_kv_heads=2
    )
    config.model.unroll = 3
    config.engine.slots = 16
    config.engine.decode_steps = 12
    config.engine.prefill_buckets = (32,)
    return config


def get_config() -> ConfigDict:
    """The config."""
    config = train_config(files_config())
    config.model.path = "models/mcp_files_tiny"
    config.train.iterations = 12
    config.optim.lr = 6e-4
    config.eval.panel = "examples/mcp/files_panel.json"
    return config.lock()
