"""The policy as a model of verifiers: its messages are given one by one.

Imported on first use; it needs the package verifiers.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import verifiers as vf
from verifiers.clients import Client
from verifiers.types import AssistantMessage, ClientConfig, Response, ResponseMessage, Tool


@dataclass(frozen=True)
class MessageRequest:
    """The messages that a rollout shows to its model.

    Attributes:
      messages: Messages so far.
      tools: Tools that the model may call.
      message: Future of the model's message.
    """

    messages: vf.Messages
    tools: list[Tool]
    message: "asyncio.Future[AssistantMessage]"


class PolicyClient(Client[None, vf.Messages, Response, Tool]):
    """A model that waits until somebody else gives its message.

    Attributes:
      requests: Requests without a message, the oldest first.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.requests: asyncio.Queue[MessageRequest] = asyncio.Queue()

    def setup_client(self, config: ClientConfig) -> None:
        """There is no client behind this one."""

    async def to_native_tool(self, tool: Tool) -> Tool:
        return tool

    async def to_native_prompt(self, messages: vf.Messages) -> tuple[vf.Messages, dict]:
        return messages, {}

    async def get_native_response(
        self,
        prompt: vf.Messages,
        model: str,
        sampling_args: vf.SamplingArgs,
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Waits for the message."""
        request = MessageRequest(prompt, tools or [], asyncio.get_running_loop().create_future())
        await self.requests.put(request)
        message = await request.message
        return Response(
            id="",
            created=0,
            model=model,
            message=ResponseMessage(
                content=message.content,
                tool_calls=message.tool_calls,
                finish_reason="tool_calls" if message.tool_calls else "stop",
                is_truncated=False,
            ),
        )

    async def raise_from_native_response(self, response: Response) -> None:
        """The policy reports its own errors."""

    async def from_native_response(self, response: Response) -> Response:
        return response

    async def close(self) -> None:
        """Does nothing: the client has no connection."""


async def start_rollout(
    env: vf.Environment, row: dict[str, Any]
) -> "tuple[PolicyClient, asyncio.Task[vf.RolloutOutput]]":
    """Starts an episode of a row of the dataset."""
    client = PolicyClient()
    rollout = asyncio.create_task(env.run_rollout(row, client, "policy", {}))
    return client, rollout


async def wait_for_request(
    client: PolicyClient, rollout: "asyncio.Task[vf.RolloutOutput]"
) -> MessageRequest | vf.RolloutOutput:
    """Waits for the next request or the end; the end is the output of the rollout.

    What the rollout has raised is raised here.
    """
    request = asyncio.create_task(client.requests.get())
    try:
        await asyncio.wait({request, rollout}, return_when=asyncio.FIRST_COMPLETED)
        return request.result() if request.done() else rollout.result()
    finally:
        request.cancel()


async def answer_request(
    client: PolicyClient,
    rollout: "asyncio.Task[vf.RolloutOutput]",
    request: MessageRequest,
    message: AssistantMessage,
) -> MessageRequest | vf.RolloutOutput:
    """Gives the message of a request; returns as `wait_for_request`."""
    request.message.set_result(message)
    return await wait_for_request(client, rollout)


async def stop_rollout(rollout: "asyncio.Task[vf.RolloutOutput]") -> None:
    """Cancels a rollout and waits for its cleanup."""
    rollout.cancel()
    await asyncio.gather(rollout, return_exceptions=True)
