"""Two foreign harnesses against our server, and the same questions in this process: they must agree.

    python -m venv /somewhere && /somewhere/bin/pip install 'lm-eval[api]==0.4.13' transformers 'inspect-ai==0.3.285' openai
    python -m benchmarks.harnesses --recipe tiny --stage sft --python /somewhere/bin/python
    python -m benchmarks.harnesses --recipe tiny --stage quantize --python /somewhere/bin/python

lm-evaluation-harness (``local-completions``) chooses among four answers by log-probability; inspect-ai lets the
model answer chats. Both get held-out tasks of the recipe. A quantised checkpoint computes in integers on both
sides. Writes ``benchmarks/results/<recipe>_<stage>_harnesses.json``, of a folder ``<its name>_harnesses.json``.
"""  # noqa: E501

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from model.chat.parser import parse
from model.chat.renderer import render
from model.chat.tokenizer import Tokenizer
from model.hub import load_folder
from model.inference.generate import generate, score
from model.quantization.layers import is_quantized
from pipeline import artifacts
from pipeline.errors import UserError, run_command

RESULTS = Path("benchmarks/results")
INSPECT_TASK = Path(__file__).with_name("inspect_task.py")
CHOICES = 4
NEW_TOKENS = 96
LM_EVAL_TASK = """\
task: glm5_choice
dataset_path: json
dataset_kwargs: {{data_files: {data}}}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@dataclass(frozen=True)
class Question:
    prompt: str
    choices: list[str]
    gold: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--stage", default="sft")
    parser.add_argument("--checkpoint", type=Path, help="a folder in the place of the stage's artifact")
    parser.add_argument("--python", required=True, help="of the environment that holds the two harnesses")
    parser.add_argument("--items", type=int, default=60)
    options = parser.parse_args()
    checkpoint = options.checkpoint or artifacts.artifact_dir(options.recipe, options.stage)
    name = options.checkpoint.name if options.checkpoint else f"{options.recipe}/{options.stage}"
    run_command(lambda: compare(options.recipe, name, checkpoint.absolute(), options.python, options.items))


def compare(recipe: str, name: str, checkpoint: Path, python: str, items: int) -> int:
    questions = read_questions(artifacts.artifact_dir(recipe, "eval_sets") / "tasks.jsonl")
    tokenizer = Tokenizer.load(checkpoint)
    questions = [question for question in questions if divides(tokenizer, question)][:items]
    with TemporaryDirectory() as scratch, served(checkpoint) as url:
        theirs = {
            "lm_eval": run_lm_eval(python, url, checkpoint, questions, Path(scratch)),
            "inspect_ai": run_inspect(python, url, questions, Path(scratch)),
        }
    ours = in_process(checkpoint, questions)
    apart = max(
        abs(a - b)
        for mine, other in zip(ours["loglikelihoods"], theirs["lm_eval"]["loglikelihoods"], strict=True)
        for a, b in zip(mine, other, strict=True)
    )
    result = {
        "checkpoint": name,
        "computes_in_integers": ours["integers"],
        "items": len(questions),
        "choice_accuracy": {"lm_eval": theirs["lm_eval"]["accuracy"], "in_process": ours["choice_accuracy"]},
        "largest_loglikelihood_difference": apart,
        "answer_accuracy": {
            "inspect_ai": theirs["inspect_ai"]["accuracy"], "in_process": ours["answer_accuracy"],
        },
        "answers_that_differ": sum(
            a != b for a, b in zip(ours["answers"], theirs["inspect_ai"]["answers"], strict=True)
        ),
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name.replace('/', '_')}_harnesses.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


def divides(tokenizer: Tokenizer, question: Question) -> bool:
    """No token holds the end of the question and the beginning of an answer: harnesses differ in cutting."""
    start = tokenizer.encode(question.prompt)
    return all(tokenizer.encode(question.prompt + c) == start + tokenizer.encode(c) for c in question.choices)


def read_questions(path: Path) -> list[Question]:
    """Held-out tasks of one turn without tools, each with the answers of three others of its family."""
    if not path.exists():
        raise UserError(f"{path} is not there: run stage eval_sets first")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [r for r in rows if not r["tools"] and not r["truth"].get("follow_ups") and r["mode"] != "off"]
    rng = random.Random(0)
    rng.shuffle(rows)
    questions = []
    for row in rows:
        right = row["truth"].get("answers", [None])[0]
        others = {
            o["truth"]["answers"][0] for o in rows if o["family"] == row["family"] and "answers" in o["truth"]
        }
        wrong = sorted(others - {right})
        if right is None or len(wrong) < CHOICES - 1:
            continue
        choices = [right, *rng.sample(wrong, CHOICES - 1)]
        rng.shuffle(choices)
        questions.append(Question(row["messages"][0]["content"], choices, choices.index(right)))
    return questions


@contextmanager
def served(checkpoint: Path) -> Iterator[str]:
    """Our server on a free port, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "model.inference.server", f"glm5={checkpoint}", "--port", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        if not lines[1].startswith("chat page: "):
            raise UserError("the server did not start; what it printed stands above")
        yield lines[1].split()[2].rstrip("/")
    finally:
        process.terminate()
        process.wait()


def run_lm_eval(python: str, url: str, checkpoint: Path, questions: list[Question], scratch: Path) -> dict:
    data = scratch / "questions.jsonl"
    data.write_text(
        "".join(
            json.dumps({"query": q.prompt, "choices": q.choices, "gold": q.gold}) + "\n" for q in questions
        )
    )
    (scratch / "glm5_choice.yaml").write_text(LM_EVAL_TASK.format(data=data))
    settings = (
        f"model=glm5,base_url={url}/v1/completions,tokenizer={checkpoint},num_concurrent=4,max_length=512"
    )
    command = [
        python, "-m", "lm_eval", "--model", "local-completions", "--model_args",
        f"{settings},tokenizer_backend=huggingface", "--include_path", str(scratch), "--tasks", "glm5_choice",
        "--output_path", str(scratch / "lm_eval"), "--log_samples",
    ]  # fmt: skip
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"})
    [samples] = (scratch / "lm_eval").rglob("samples_glm5_choice_*.jsonl")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    return {
        "accuracy": sum(row["acc"] for row in rows) / len(rows),
        "loglikelihoods": [[float(answer[0]) for answer in row["filtered_resps"]] for row in rows],
    }


def run_inspect(python: str, url: str, questions: list[Question], scratch: Path) -> dict:
    data, answers = scratch / "chats.jsonl", scratch / "answers.json"
    data.write_text(
        "".join(json.dumps({"input": q.prompt, "target": q.choices[q.gold]}) + "\n" for q in questions)
    )
    variables = {"QUESTIONS": str(data), "ANSWERS": str(answers), "URL": f"{url}/v1"}
    subprocess.run([python, str(INSPECT_TASK)], check=True, cwd=scratch, env={**os.environ, **variables})
    return json.loads(answers.read_text())


def in_process(checkpoint: Path, questions: list[Question]) -> dict:
    """The same figures without a server."""
    model, tokenizer = load_folder(checkpoint).eval(), Tokenizer.load(checkpoint)
    attention = "sparse" if model.has_indexer else "dense"
    rows, starts = [], []
    for q in questions:
        for choice in q.choices:
            # As the harness does it: the answer's tokens are those behind as many as the question has.
            rows.append(tokenizer.encode(q.prompt + choice))
            starts.append(len(tokenizer.encode(q.prompt)))
    nats = [
        float(logprobs[start - 1 :].sum())
        for logprobs, start in zip(score(model, rows, attention=attention), starts, strict=True)
    ]
    likelihoods = [nats[n : n + CHOICES] for n in range(0, len(nats), CHOICES)]
    prompts = [
        render(tokenizer, [{"role": "user", "content": q.prompt}], generation_prompt=True).ids
        for q in questions
    ]
    samples = generate(
        model, prompts, max_new_tokens=NEW_TOKENS, stop_ids=tokenizer.stop_ids, attention=attention
    )
    answers = [parse(tokenizer, sample.ids).message["content"].strip() for sample in samples]
    chosen = [max(range(CHOICES), key=row.__getitem__) for row in likelihoods]
    return {
        "integers": is_quantized(model),
        "loglikelihoods": likelihoods,
        "choice_accuracy": sum(c == q.gold for c, q in zip(chosen, questions, strict=True)) / len(questions),
        "answers": answers,
        "answer_accuracy": sum(a == q.choices[q.gold] for a, q in zip(answers, questions, strict=True))
        / len(questions),
    }


if __name__ == "__main__":
    main()
