"""The retriever's server: the same as `gigpo envs search serve`."""

import sys

from gigpo_jax.envs.command_line import main

if __name__ == "__main__":
    sys.exit(main(["search", "serve", *sys.argv[1:]]))
