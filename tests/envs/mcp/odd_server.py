"""An MCP server by hand, without the SDK, that does what no server should: `odd_server.py WAY [FILE]`."""

import json
import sys
import time
from typing import Any

WAY = sys.argv[1]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "say", "description": "Says it.", "inputSchema": SCHEMA}
calls = 0


def list_tools(params: dict[str, Any]) -> dict[str, Any]:
    if WAY == "no_tools":
        return {"tools": []}
    if WAY == "lists_for_ever":
        return {"tools": [TOOL], "nextCursor": "again"}
    if WAY == "odd_schema":
        schema = {"type": "object", "properties": {"text": {"type": ["\x1b[2J"]}, "n": {"type": 5}}}
        return {"tools": [{**TOOL, "description": "x\n" * 500_000, "inputSchema": schema}]}
    if WAY == "random_tool":
        return {"tools": [{**TOOL, "description": f"Says {time.time_ns()}."}]}
    if WAY == "lies":
        output = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return {"tools": [{**TOOL, "outputSchema": output}]}
    return {"tools": [TOOL]}


def call_tool(params: dict[str, Any]) -> dict[str, Any]:
    global calls
    calls += 1
    text = str(params.get("arguments", {}).get("text", ""))
    if WAY == "hangs":
        time.sleep(1000)
    if WAY == "dies":
        sys.exit("because\x1b[2J")
    if WAY == "huge":
        text = "y" * 5_000_000
    if WAY == "escapes":
        text = "\x1b[2J\x00 red \x1b[31m"
    if WAY == "picture":
        return {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}
    if WAY == "lies":
        return {"content": [], "structuredContent": {"n": "many"}}
    return {"content": [{"type": "text", "text": f"{text} {calls}"}]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    params = request.get("params") or {}
    if request["method"] == "initialize":
        return {
            "result": {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
        }
    if request["method"] == "tools/list":
        return {"result": list_tools(params)}
    if request["method"] == "tools/call":
        return {"result": call_tool(params)}
    return {"error": {"code": -32601, "message": "no such method"}}


if WAY == "hangs_at_start":
    time.sleep(1000)
if WAY == "ends_at_start":
    sys.stderr.write("y" * 3_000_000 + "\n")
    sys.exit("no\x1b[2J")
if WAY == "starts_once":
    open(sys.argv[2], "x").close()
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message)}
        print(json.dumps(reply), flush=True)
        if WAY == "dies_after_start" and message["method"] == "tools/list":
            sys.exit(3)
