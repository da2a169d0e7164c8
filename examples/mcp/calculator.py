"""An MCP server with the official SDK: a calculator with a memory of one number.

pip install -e ".[mcp]"
gigpo envs check "mcp:python examples/mcp/calculator.py" --option tasks=examples/mcp/tasks.jsonl
"""

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")
memory = [0]


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


@server.tool()
def store(number: int) -> str:
    """Keeps a number in the memory."""
    memory[0] = number
    return "stored"


@server.tool()
def recall() -> int:
    """Returns the number in the memory."""
    return memory[0]


if __name__ == "__main__":
    server.run()
