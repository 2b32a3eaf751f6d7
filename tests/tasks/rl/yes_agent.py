"""The smallest agent that is a program of its own: it asks the policy once and rewards a yes.

It notes in the file of its argument when it begins, with its process id, and what it was told.
"""

import json
import os
import sys
import urllib.request


def note(text: str) -> None:
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\n")


task = json.load(sys.stdin)
address = os.environ["OPENAI_BASE_URL"]
note(f"began {os.getpid()} {address}")
body = json.dumps({"model": "policy", "messages": task["messages"]}).encode()
request = urllib.request.Request(f"{address}/chat/completions", body, {"content-type": "application/json"})
with urllib.request.urlopen(request) as response:
    said = json.load(response)["choices"][0]["message"]["content"]
note(f"ended {os.getpid()} {said}")
print(json.dumps({"reward": float(said.strip() == "yes"), "reason": f"said {said.strip()}"}))
