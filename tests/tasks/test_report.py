"""The report from artifacts that are written here by hand: what it must show, and what it must survive."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline import artifacts
from pipeline.graph import load_graph
from tasks.report import write_report
from tasks.reporting.gains import gains
from tasks.reporting.samples import lessons, turns
from tasks.reporting.scores import Scores
from tasks.training.stages import RL_STAGES
from tests.tasks.reporting import stage_of_rl

VOID = {"meta", "br", "link", "img", "line", "circle", "path", "input"}


def row(checkpoint, suite, name, value, low, high, n=40) -> dict:
    return {
        "checkpoint": checkpoint, "suite": suite, "name": name, "value": value, "low": low, "high": high,
        "n": n, "protocol": "0123456789abcdef" * 4,
    }  # fmt: skip


ROWS = [
    row("unigram", "bits_per_byte", "all", 2.921, 2.8, 3.0),
    row("3-gram", "bits_per_byte", "all", 1.703, 1.65, 1.76),
    row("pretrain", "bits_per_byte", "all", 1.571, 1.52, 1.62),
    row("sft", "bits_per_byte", "all", 1.8, None, None, 1),
    row("sft", "sparse_attention", "bpb/dense", 1.61, 1.5, 1.7),
    row("sft", "sparse_attention", "bpb/sparse", 1.62, 1.5, 1.7),
    row("sft", "sparse_attention", "gap/sparse", 0.0042, 0.001, 0.007),
    row("sft", "long_context", "dense/256", 0.5, 0.4, 0.6),
    row("sft", "long_context", "dense/all", 0.5, 0.4, 0.6),
    row("sft", "environments", "exact/off", 0.93, 0.87, 0.96),
    row("sft", "environments", "exact/off/table/max", 0.25, 0.1, 0.5),
    row("sft", "environments", "exact/all/table/max", 0.25, 0.1, 0.5),
    row("sft", "environments", "conduct/cut_off", 0.025, 0.0, 0.1),
    row("sft", "environments", "safety/wrongly_refused", 0.25, 0.1, 0.5, 4),
    row("sft", "sampled", "pass@4/all", 0.75, 0.6, 0.9),
    row("sft", "arena", "rating", 1012.4, 980.0, 1050.0),
]
CHANGES = [
    {"before": "3-gram", "after": "pretrain", "suite": "bits_per_byte", "name": "all", "change": -0.132,
     "low": -0.2, "high": -0.1, "n": 40},
    {"before": "pretrain", "after": "sft", "suite": "bits_per_byte", "name": "all", "change": 0.229,
     "low": 0.1, "high": 0.3, "n": 40},
]  # fmt: skip
SCRIPTED = [
    row(name, "environments", "exact/off", value, 0.0, 1.0, 21)
    for name, value in (("oracle", 1.0), ("nop", 0.0))
]
LEFT_OUT = {"humaneval": "no sandbox is here"}
ARENA = {"battles": 321, "tasks": 107, "ties": 44}
SEGMENTS = [
    ["[gMASK]<sop><|user|>max 3 <b>9</b><|assistant|><think>", False],
    ["9</think>9", True],
    ["<|user|>", True],
]  # fmt: skip
ASKED = {"role": "user", "content": "1+1="}
ANSWERED = {"role": "assistant", "content": "2", "reasoning_content": "one"}
MISTAKE = [{"role": "assistant", "content": "4", "train": False}, {"role": "user", "content": "no"}]
AGAIN = [{"role": "user", "content": "+1="}, {"role": "assistant", "content": "3"}]
CHATS = [
    {"environment": "dialogue", "family": "total", "mode": mode, "messages": messages}
    for mode, messages in (
        ("off", [ASKED, ANSWERED]),
        ("preserved", [ASKED, ANSWERED, *AGAIN]),
        ("interleaved", [ASKED, *MISTAKE, ANSWERED]),
        ("off", [ASKED, ANSWERED, *AGAIN]),
    )
]


CHANGE = {"perplexity_chat_change": 0.01, "perplexity_chat_interval": [0.005, 0.015],
          "perplexity_text_change": 0.02, "perplexity_text_interval": [0.01, 0.03]}  # fmt: skip
MODELS = [
    {
        "name": "float", "perplexity_chat": 3.0, "perplexity_text": 20.0, "accept_length": 1.5,
        "bytes": 9_000_000, "of_bfloat16": 2.0,
    },
    {
        "name": "w4a8", "perplexity_chat": 3.03, "perplexity_text": 20.4, "accept_length": 1.4,
        "bytes": 1_400_000, "of_bfloat16": 0.31, "topk_overlap": 0.98, "router_agreement": 0.97, "kl": 0.012,
        **CHANGE,
    },
]  # fmt: skip
CALIBRATION = {
    "scheme": {"method": "flex_awq_ssz", "rotation": True, "expert_bits": 4}, "tokens": 9000,
    "expert_tokens": {"blocks.1.ffn": [3, 70], "blocks.2.ffn": [40, 50]},
    "pooled": {"blocks.1.ffn": [0], "blocks.2.ffn": []}, "rounded_to_nearest": [],
    "kurtosis": {"before": {"ffn": 12.5}, "after": {"ffn": 3.125}},
}  # fmt: skip
PARENT = {"before": "sft", "after": "quantize", "suite": "bits_per_byte", "n": 40}
BESIDE = [
    {**PARENT, "name": "perplexity", "change": 0.012, "low": 0.01, "high": 0.014},
    {**PARENT, "name": "all", "change": 0.017, "low": 0.014, "high": 0.02},
]
SECTIONS = {
    "model": {"preset": "tiny"},
    "pretrain": {"sequence_length": 256, "tokens": 1_000_000, "mtp": {"every_steps": 8}},
}
FACTS = {
    "pretrain": {"tokens": 1_000_000, "steps": 9},
    "quantize": {"loaded_by": {"w4a8": "model.hub"}},
    "reasoning_rl": stage_of_rl.FACTS,
}


COMMITS = {"curate": "abcdef0123456789+changes", "tokenizer": None}


def fill(stage: str, folder: Path) -> dict:
    """The payload of a stage; returns its metrics."""
    if stage == "tokenizer":
        (folder / "tokenizer.json").write_text(stage_of_rl.tokenizer_file(), encoding="utf-8")
    if stage == "sft_data":
        (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    if stage == "collect":
        source = {
            "name": "stdlib", "kind": "python_packages", "documents": 806, "characters": 11_800_000,
            "packages": 33, "characters_by_licence": {"PSF-2.0": 11_800_000},
            "characters_by_kind": {"code": 11_000_000},
        }  # fmt: skip
        (folder / "sources.json").write_text(json.dumps({"sources": [source]}))
        return {"data/documents": 806}
    if stage == "curate":
        rows = [
            {"reason": "kept", "source": "stdlib", "documents": 700, "characters": 9_000},
            {"reason": "kept", "source": "other", "documents": 50, "characters": 500},
            {"reason": "overlaps a held-out document", "source": "other", "documents": 3, "characters": 0},
            {"reason": "exact duplicate", "source": "stdlib", "documents": 56, "characters": 500},
        ]
        sample = {
            "reason": "exact duplicate", "source": "stdlib", "path": "a/b.py", "detail": "",
            "excerpt": "<script>alert(1)</script>",
        }  # fmt: skip
        (folder / "funnel.json").write_text(json.dumps({"rows": rows, "samples": [sample]}))
    if stage == "quantize":
        (folder / "config.json").write_text('{"max_position_embeddings": 1024, "quantization_config": {}}')
        (folder / "quantization.json").write_text(json.dumps(MODELS))
        (folder / "w8a8").mkdir()
        for name, size in (("model.safetensors", 1_200_000), ("w8a8/model.safetensors", 9_000_000)):
            (folder / name).write_bytes(bytes(size))
        (folder / "calibration.json").write_text(json.dumps({"w4a8": CALIBRATION}))
    if stage == "eval_sets":
        (folder / "tasks.jsonl").write_text(json.dumps({"messages": [ASKED]}) + "\n")
        return {"eval/ngrams": 67_281}
    if stage == "rl_tasks":
        (folder / "tasks.jsonl").write_text(json.dumps({"messages": AGAIN[:1]}) + "\n")
    if stage == "agent_tasks":
        rows = [
            {"kind": "terminal", "family": "log-report", "drafted": 5, "kept": 3, "rejected": {"no <b>": 2}}
        ]
        examples = {"no <b>": [{"name": "log-report-7", "detail": "said <i>so</i>"}]}
        content = {"rows": rows, "reasons": {"no <b>": 2}, "examples": examples}
        (folder / "funnel.json").write_text(json.dumps(content))
    if stage in RL_STAGES:
        return stage_of_rl.fill(folder)
    if stage in ("pretrain", "midtrain", "dsa_warmup", "dsa_adapt", "sft"):
        (folder / "config.json").write_text('{"max_position_embeddings": 1024}')
        lines = ["step,train/loss,optim/lr,val/loss", "0,,,7.5"]
        lines += [f"{step},{7.5 / step},{0.01 * step},{'4.5' if step == 9 else ''}" for step in range(1, 10)]
        (folder / "curves.csv").write_text("\n".join(lines) + "\n")
        return {"val/loss": 4.5}
    if stage == "evaluate":
        (folder / "scores.json").write_text(
            json.dumps(
                {
                    "rows": ROWS,
                    "changes": CHANGES,
                    "beside_parent": BESIDE,
                    "arena": ARENA,
                    "scripted": SCRIPTED,
                    "left_out": LEFT_OUT,
                    "settings": {},
                }
            )
        )
        chat = {
            "checkpoint": "sft", "suite": "environments", "kind": "chat", "family": "table/max",
            "mode": "off", "score": 1.0, "reason": "right", "fault": None, "segments": SEGMENTS,
        }  # fmt: skip
        (folder / "samples.jsonl").write_text(json.dumps(chat) + "\n")
    return {}


@pytest.fixture
def folders(tmp_path, monkeypatch) -> dict[str, Path]:
    monkeypatch.setenv("GLM5_ROOT", str(tmp_path))
    found = {}
    for number, stage in enumerate(load_graph()["report"].inputs):
        draft = tmp_path / f"draft-{stage}"
        draft.mkdir()
        (draft / "payload").write_text(stage)
        metrics = fill(stage, draft)
        found[stage] = tmp_path / "artifacts" / "tiny" / stage
        found[stage].parent.mkdir(parents=True, exist_ok=True)
        sections = SECTIONS if stage == "pretrain" else {}
        record = {
            "stage": stage, "identity": f"{number:064d}", "sections": sections, "metrics": metrics, "seed": 7,
            "facts": FACTS.get(stage, {}),
            "started": 1000.0 + 100 * number, "seconds": 10.0 + number, "peak_memory_bytes": 3 * 10**8,
            "git_commit": COMMITS.get(stage, "abcdef0123456789"),
            "python": "3.11.9", "packages": {"torch": "2.13.0"},
            "host": {"system": "Linux", "machine": "x86_64", "cores": 2},
        }  # fmt: skip
        artifacts.publish(draft, found[stage], record)
    return found


def write(folders: dict[str, Path], tmp_path: Path) -> tuple[str, str, list[str]]:
    facts = write_report("tiny", folders, tmp_path, "A title & more")
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    return page, text, facts.missing


class Balance(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another tag at {self.getpos()}"

    def handle_data(self, data):
        self.text.append(data)


def words(page: str) -> str:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return re.sub(r"\s+", " ", " ".join(parser.text))


def test_the_page_shows_what_was_measured(folders, tmp_path):
    page, _, missing = write(folders, tmp_path)
    shown = words(page)
    assert missing == []
    for value in (
        "1.571",
        "3-gram 1.703",
        "1.924 M",
        "+0.42 %",
        "93 %",
        "25 %",
        "806",
        "PSF-2.0 100 %",
        "-0.132",
    ):
        assert value in shown, value
    assert "A title & more" in shown
    assert "nothing here compares with GLM-5" in shown
    assert "95 % of the characters kept" in shown  # (9000 + 500) / 10000
    assert "rewards are logged there and teach nothing. Every number" in shown  # where distillation ran
    assert "3 of 5 candidates kept" in shown and "no <b>: 2 (log-report-7: said <i>so</i>)" in shown
    assert "overlaps a held-out document" in shown and "67,281 runs of 13 words" in shown
    assert "sft_data 4 4" in shown and "rl_tasks 1 0" in shown  # every chat begins with 1+1=
    assert "A turn that does not end" in shown and "1 of 40" in shown  # 0.025
    assert "sft 1012 980–1050, n 40" in shown and "321 battles over 107 tasks, of which 44" in shown
    assert "Sampled at temperature 1, one of 4 right" in shown
    assert "Score oracle nop Exact match, thinking off n 21 100 % 0 %" in shown
    assert "Not run here: humaneval (no sandbox is here)." in shown
    assert page.count("<svg") >= 1 + 5 * 2  # the graph, and at least loss and rate of each training stage
    assert "0123456789abcdef" in shown and "abcdef012345" in shown


def test_page_and_markdown_say_the_same_commits(folders, tmp_path):
    page, text, _ = write(folders, tmp_path)
    shown = {name: re.search(rf"{name} (?:0\d+ \w+) (\S+)", words(page)).group(1) for name in folders}
    written = {name: re.search(rf"\| {name} \| `0.*` \| `(\S+)` \|\n", text).group(1) for name in folders}
    others = dict.fromkeys(folders, "abcdef012345")
    assert shown == written == others | {"curate": "abcdef012345+changes", "tokenizer": "unknown"}


GONE_TO_DATA = """() => {
    const bar = document.querySelector("nav").getBoundingClientRect();
    const below = document.querySelector("#data h2").getBoundingClientRect().top - bar.bottom;
    return bar.top === 0 && 0 <= below && below < 60;
}"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 900, 390])
def test_no_entry_of_the_navigation_is_cut(folders, tmp_path, request, width):
    chromium = request.getfixturevalue("chromium")
    write(folders, tmp_path)
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.goto((tmp_path / "report.html").as_uri())
    last, bar = page.locator("nav a").last, page.locator("nav div")
    if width > 860:  # it wraps
        assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth")
    else:  # it scrolls
        last.scroll_into_view_if_needed()
    box, around = last.bounding_box(), bar.bounding_box()
    assert last.inner_text() == "Provenance" and box["x"] + box["width"] <= around["x"] + around["width"]
    page.locator("nav a", has_text="Data").click()
    page.wait_for_function(GONE_TO_DATA)  # its heading stands below the bar
    page.close()


def test_the_card_tells_of_the_last_checkpoint_what_the_records_say(folders, tmp_path):
    write(folders, tmp_path)
    text = (tmp_path / "model_card.md").read_text()
    record = json.loads((folders["quantize"] / "record.json").read_text())
    assert text.startswith("---\nlibrary_name: transformers") and "# A title & more: tiny/quantize" in text
    assert "A chat model of 1.924 M parameters" in text and "| positions | 1,024 |" in text
    assert "| weights | 1.2 MB |" in text  # without those of the export beside it
    assert record["content"] in text and record["identity"] in text
    assert "`quantize` itself was not scored: these are the scores of `sft`." in text
    assert "| Exact match, thinking off | 93 % | 87–96 | 40 |" in text
    assert "- Of 1 families of held-out tasks 0 reach 80% exact match." in text
    assert "- Harmless twins refused: 25 % (1 of 4)." in text
    assert "- On documents it is no better than a 3-gram model" in text and "1.800 bits per byte" in text
    assert "| stdlib | 806 | 11.8 MB | PSF-2.0 100 % |" in text
    assert "4 of 4 prompts of sft_data are those of held-out tasks" in text
    assert "- compressed-tensors" in text
    assert "4-bit experts, 8-bit attention and dense layers, 8-bit tokens; scales by flex awq ssz" in text
    assert "calibrated on 9,000 tokens, 3 to 70 an expert, 1 of 4 experts on all tokens" in text
    assert "Beside sft, on the same items: perplexity of held-out documents +1.20 %" in text
    assert "| w4a8 | 3.03 | +1.00 % (+0.50 to +1.50) |" in text and "| float | 3 | – |" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


def test_a_recipe_without_quantisation_shows_nothing_of_it(folders, tmp_path):
    del folders["quantize"]
    page, text, _ = write(folders, tmp_path)
    card = (tmp_path / "model_card.md").read_text()
    assert "# A title & more: tiny/sft" in card and "was not scored" not in card
    assert not [part for part in (page, text, card) if "uantisation" in part or "compressed-tensors" in part]


def test_quantised_models_stand_beside_the_float_one(folders, tmp_path):
    page, _, _ = write(folders, tmp_path)
    shown = words(page)
    assert "float 3 20 – – – 1.50 9.0 MB 2.00 W4A8 3.03 +1.00 % (+0.50 to +1.50) 20.4" in shown
    assert "0.0120 98 % 97 % 1.40 1.4 MB 0.31" in shown
    assert "W4A8 flex awq ssz, rotated 9,000 4 3 to 70 1 0" in shown
    assert "ffn 12.5 3.1" in shown  # kurtosis
    assert (
        "Every score beside sft" in shown
        and "Perplexity of held-out documents: +1.20 % (+1.00 to +1.40)." in shown
    )
    assert "Loaded by: W4A8: model.hub." in shown


def test_the_page_needs_nothing_from_outside_and_runs_no_code(folders, tmp_path):
    page, _, _ = write(folders, tmp_path)
    assert not re.search(r"""(src|href)=["'](?!#|trajectories.html")""", page)
    assert "url(" not in page and "@import" not in page
    assert "<script" not in page  # the excerpt of a document that holds one is escaped
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;9&lt;/b&gt;" in page
    assert len(page) < 300_000


def test_markdown_tables_have_one_width(folders, tmp_path):
    _, text, _ = write(folders, tmp_path)
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert len(blocks) >= 5
    for block in blocks:
        widths = {line.count("|") for line in block.splitlines()}
        assert len(widths) == 1, block
    assert "1.571 (1.520–1.620)" in text


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: (f["evaluate"] / "scores.json").unlink(), "evaluate/scores.json"),
        (lambda f: (f["curate"] / "funnel.json").write_text("{"), "curate/funnel.json"),
        (lambda f: (f["pretrain"] / "record.json").unlink(), "pretrain has no readable record.json"),
        (lambda f: (f["sft"] / "curves.csv").unlink(), "sft/curves.csv"),
        (lambda f: (f["sft_data"] / "chats.jsonl").unlink(), "sft_data/chats.jsonl"),
        (lambda f: [(folder / "record.json").unlink() for folder in f.values()], "collect has no readable"),
    ],
)
def test_what_is_missing_is_named_on_the_page(folders, tmp_path, damage, named):
    damage(folders)
    page, text, missing = write(folders, tmp_path)
    assert any(named in item for item in missing)
    assert named in words(page) and named in text


def test_reinforcement_learning_has_a_section_and_a_page_of_its_own(folders, tmp_path):
    page, text, _ = write(folders, tmp_path)
    shown = words(page)
    assert "Mean reward 0.200 over the first fifth of the steps, 0.800 over the last." in shown
    assert "tools/calc 0.100 0.400 38 % 9 7 4 2" in shown  # by family: ends, and difficulty before
    assert "Parts of the reward" in shown and "reward_model/accuracy 0.9375" in shown
    assert "rollouts 12 s, 75 %" in shown and "update 4.0 s, 25 %" in shown
    assert "Zero in every step: tokens without weight (masked)." in shown
    assert "| reasoning_rl | 4 | 0.200 | 0.800 | rollouts 75 %, update 25 % |" in text
    viewed = (tmp_path / "trajectories.html").read_text()
    assert f"{4 * len(RL_STAGES)} trajectories" in shown and '"reason":"right"' in viewed


def test_an_artifact_without_trajectories_is_noted(folders, tmp_path):
    (folders["reasoning_rl"] / "trajectories.jsonl").unlink()
    _, _, missing = write(folders, tmp_path)
    assert any("reasoning_rl/trajectories.jsonl" in item for item in missing)
    assert "run the stage again" in (tmp_path / "trajectories.html").read_text()


def test_a_recipe_without_reinforcement_learning_has_no_such_page(folders, tmp_path):
    for name in RL_STAGES:
        (folders[name] / "record.json").unlink()
    page, text, _ = write(folders, tmp_path)
    assert not (tmp_path / "trajectories.html").exists()
    assert "trajectories.html" not in page + text


def test_curves_come_from_the_run_folder_where_the_artifact_has_none(folders, tmp_path):
    (folders["pretrain"] / "curves.csv").unlink()
    run = artifacts.run_dir("tiny", "pretrain")
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "train/loss": 9 - n}) + "\n" for n in range(5))
    )
    _, _, missing = write(folders, tmp_path)
    assert missing == []


def test_changes_are_judged_by_their_interval_and_direction():
    found = gains(Scores.read({"rows": ROWS, "changes": CHANGES}))
    judged = [(stage["after"], [row["verdict"] for row in stage["rows"]]) for stage in found]
    assert judged == [("pretrain", ["better"]), ("sft", ["worse"])]
    [even] = gains(Scores.read({"rows": ROWS, "changes": [{**CHANGES[0], "high": 0.01}]}))
    assert even["rows"][0]["verdict"] == "even"


def test_forests_share_one_scale():
    lines = [(name, name, "bits_per_byte", "all") for name in ("unigram", "3-gram", "pretrain")]
    rows = Scores.read({"rows": ROWS}).forest(lines)["rows"]
    places = {r["label"]: r["at"] for r in rows}
    share = (places["3-gram"] - places["pretrain"]) / (places["unigram"] - places["pretrain"])
    assert share == pytest.approx((1.703 - 1.571) / (2.921 - 1.571))
    assert all(0 <= r["from"] <= r["at"] <= r["to"] <= 100 for r in rows)


def test_lessons_show_what_is_trained(folders, tmp_path):
    facts = write_report("tiny", folders, tmp_path, "A title")
    shown = {lesson["label"]: lesson["turns"] for lesson in lessons(facts)}
    assert list(shown) == ["thinking preserved", "a wrong turn, kept but masked", "thinking off"]
    runs = [run for turn in shown["a wrong turn, kept but masked"] for run in turn["runs"]]
    assert [str(run["text"]) for run in runs if run["trained"]] == [
        'one<span class="tok">&lt;/think&gt;</span>2'
    ]
    assert "a wrong turn, kept but masked" in words((tmp_path / "report.html").read_text())


def test_dialogues_are_cut_into_turns_with_the_chosen_role():
    user, assistant, stop = turns(SEGMENTS)
    assert (user["role"], assistant["role"], stop["role"]) == ("user", "assistant", "user")
    assert not assistant["chosen"] and stop["chosen"]
    assert [run["trained"] for run in assistant["runs"]] == [False, True]
    assert assistant["runs"][1]["text"] == '9<span class="tok">&lt;/think&gt;</span>9'
