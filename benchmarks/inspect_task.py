"""For ``benchmarks.harnesses``, in the environment of inspect-ai: chats of a file, scored by exact match."""

import json
import os
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import json_dataset
from inspect_ai.model import get_model
from inspect_ai.scorer import exact
from inspect_ai.solver import generate


def main() -> None:
    model = get_model("openai-api/glm5/glm5", base_url=os.environ["URL"], api_key="none")
    task = Task(dataset=json_dataset(os.environ["QUESTIONS"]), solver=generate(), scorer=exact())
    [log] = eval(task, model=model, temperature=0, max_tokens=96, display="none", log_dir="logs")
    if log.status != "success":
        raise SystemExit(f"inspect-ai ended with {log.status}: {log.error}")
    samples = sorted(log.samples, key=lambda sample: sample.id)
    right = [sample.scores["exact"].value == "C" for sample in samples]
    result = {
        "accuracy": sum(right) / len(right),
        "answers": [sample.output.completion.strip() for sample in samples],
    }
    Path(os.environ["ANSWERS"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
