"""An agent as they are found outside: a loop around ``bash`` with the ``openai`` package.

``play`` is the agent, ``main`` the wrapper that the rollout worker starts: it hands over the task, and
judges. Its argument is the folder to work in.
"""

import json
import subprocess
import sys

import openai

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "run a command",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
}


def play(messages: list[dict], folder: str) -> list[str]:
    """Talk until the model calls no more; returns the commands that it gave."""
    client, commands = openai.OpenAI(), []
    while True:
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return commands
        for call in message.tool_calls:
            commands.append(json.loads(call.function.arguments)["cmd"])
            done = subprocess.run(["bash", "-c", commands[-1]], cwd=folder, capture_output=True, text=True)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout})


def main() -> None:
    task = json.load(sys.stdin)
    try:
        commands = play(list(task["messages"]), sys.argv[1])
        reason = f"{len(commands)} commands"
    except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
        commands, reason = [], error.code
    print("an agent may print what it likes")
    print(json.dumps({"reward": float(bool(commands)), "reason": reason}))


if __name__ == "__main__":
    main()
