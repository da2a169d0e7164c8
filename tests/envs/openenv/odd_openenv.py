"""An OpenEnv server by hand, without the package, that does what no server should.

`odd_openenv.py WAY` prints its URL.
"""

import asyncio
import json
import os
import socket
import sys
from typing import Any

from aiohttp import WSMsgType, web

WAY = sys.argv[1]
TEXT = {"type": "string"}
SCHEMAS: dict[str, Any] = {
    "no_fields": {"properties": [1]},
    "loop": {"properties": {"move": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "enum": {"properties": {"move": {"enum": ["left", "right"]}, "metadata": {}}},
}
resets = 0


async def show_schema(request: web.Request) -> web.Response:
    if WAY == "hangs_at_schema":
        await asyncio.sleep(1000)
    if WAY == "no_json":
        return web.Response(text="<html>")
    if WAY == "huge_schema":
        return web.Response(body=b" " * (1 << 25))
    action = SCHEMAS.get(WAY, {"properties": {"move": TEXT}, "required": ["move"]})
    return web.json_response({"action": action, "observation": {"properties": {"text": TEXT}}})


def answer(kind: str, data: dict[str, Any]) -> str:
    global resets
    resets += kind == "reset"
    observation: dict[str, Any] = {"text": f"{kind} {data.get('move', data.get('seed'))}"}
    reward: Any = 1.0
    if kind == "step":
        if WAY == "dies":
            os._exit(3)
        if WAY == "huge":
            observation["text"] = "y" * 5_000_000
        if WAY == "too_large":
            observation["text"] = "y" * 20_000_000
        if WAY == "escapes":
            observation["text"] = "\x1b[2J\x00 red"
        if WAY == "lies":
            observation = {"words": "no text"}
        if WAY == "odd_reward":
            reward = "many"
        if WAY == "words":
            return "hello"
        if WAY == "raises":
            return json.dumps({"type": "error", "data": {"message": "a\n\x1b[2J", "code": "X"}})
        if WAY == "refuses":
            data = {"message": "m", "code": "VALIDATION_ERROR", "errors": [{"msg": "too\nlong"}]}
            return json.dumps({"type": "error", "data": data})
    done = kind == "step" and data.get("move") == "end"
    return json.dumps(
        {
            "type": "observation",
            "data": {"observation": observation, "reward": reward, "done": done},
        }
    )


async def play(request: web.Request) -> web.WebSocketResponse:
    connection = web.WebSocketResponse(max_msg_size=0)
    await connection.prepare(request)
    if WAY == "full":
        data = {"message": "capacity", "code": "CAPACITY_REACHED"}
        await connection.send_str(json.dumps({"type": "error", "data": data}))
        await connection.close()
    async for message in connection:
        if message.type != WSMsgType.TEXT:
            break
        content = json.loads(message.data)
        if content["type"] == "close":
            break
        if WAY == "hangs" and content["type"] == "step":
            await asyncio.sleep(1000)
        await connection.send_str(answer(content["type"], content["data"]))
        # It drops the connection after each episode.
        if WAY == "drops" and content["data"].get("move") == "end":
            break
    return connection


async def main() -> None:
    app = web.Application()
    app.router.add_get("/health", lambda request: web.json_response({"status": "healthy"}))
    app.router.add_get("/schema", show_schema)
    app.router.add_get("/ws", play)
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await asyncio.sleep(3600)


asyncio.run(main())
