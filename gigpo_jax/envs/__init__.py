"""Environments, one folder each; `registry.make(NAME, **options)` builds one.

Without the registry: `envs.alfworld.Game`, `envs.webshop.open_catalogue` and `Session`; generators
and servers: `gigpo envs`.
"""
