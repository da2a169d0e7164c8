"""Writes the files of a new environment or algorithm: `gigpo new env|algorithm NAME`."""
