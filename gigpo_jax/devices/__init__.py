"""Devices: the mesh, the exchange between hosts, the memory estimate."""
