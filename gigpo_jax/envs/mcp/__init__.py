"""MCP servers as environments."""
