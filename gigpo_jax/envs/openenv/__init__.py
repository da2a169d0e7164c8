"""OpenEnv servers as environments, and our worlds as an OpenEnv server."""
