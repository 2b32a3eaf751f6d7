import pytest

from environments.catalog import environments, select
from evals.bits_per_byte import BitsPerByte
from evals.documents import Document
from evals.environments import Environments, Item
from evals.long_context import LongContext, LongContextItem
from evals.sampled import SampledEnvironments
from evals.sparse_attention import SparseAttention
from evals.suite import protocol_hash
from pipeline.recipe import load_recipe

EXAMINED = select(environments(), load_recipe("tiny").eval_sets.environments)
UNSEEN = {family for environment in EXAMINED.values() for family in environment.evaluation_only}


class Alternating:
    """Every other answer is empty."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: dict) -> dict:
        self.count += 1
        return message if self.count % 2 else {"role": "assistant", "content": ""}


@pytest.fixture
def items() -> list[Item]:
    seed = 271_828
    made = []
    for environment in EXAMINED.values():
        for family in environment.families + environment.evaluation_only:
            task = environment.make_task(family, seed, heldout=True)
            made += [Item(task, mode) for mode in ("interleaved", "preserved", "off")]
    return made


def by_name(result) -> dict:
    return {score.name: score for score in result.scores}


def test_the_oracle_scores_one_and_is_batched_by_turn(items, oracle_policy):
    policy = oracle_policy(items)
    scores = by_name(Environments(items, max_new_tokens=64).run(policy))
    for mode in ("interleaved", "preserved", "off"):
        assert scores[f"exact/{mode}"].value == 1.0
        assert scores[f"exact/unseen/{mode}"].value == 1.0
        assert scores[f"valid/{mode}"].value == 1.0
    assert scores["failed"].value == 0.0
    conduct = {name: score.value for name, score in scores.items() if name.startswith("conduct/")}
    assert len(conduct) == 4 and not any(conduct.values())
    assert (scores["safety/refused"].value, scores["safety/wrongly_refused"].value) == (1.0, 0.0)
    # One call of the policy a mode and turn, however many items there are.
    assert policy.calls <= 3 * 8


def test_a_policy_that_says_nothing_scores_zero(items, oracle_policy):
    policy = oracle_policy(items, change=lambda message: {"role": "assistant", "content": ""})
    scores = by_name(Environments(items, max_new_tokens=64).run(policy))
    assert all(score.value == 0.0 for name, score in scores.items() if name.startswith("exact/"))
    assert scores["exact/off"].high < 0.25  # a Wilson interval does not collapse at 0
    assert scores["exact/off"].low == 0.0


def test_turns_that_were_cut_off_are_neither_valid_nor_right(items, oracle_policy):
    result = Environments(items, max_new_tokens=64, samples=2).run(oracle_policy(items, finish="length"))
    scores = by_name(result)
    assert scores["exact/interleaved"].value == 0.0
    assert scores["valid/interleaved"].value == 0.0
    assert scores["conduct/cut_off"].value == 1.0 and scores["conduct/cut_off"].n == len(
        {item.task.id for item in items}
    )
    assert {sample["fault"] for sample in result.samples} == {"cut off"}


def test_unseen_families_stand_apart(items, oracle_policy):
    unseen = {f for e in EXAMINED.values() for f in e.evaluation_only}
    assert len(unseen) >= 2
    scores = by_name(Environments(items, max_new_tokens=64).run(oracle_policy(items)))
    seen = sum(item.mode == "off" and item.task.family not in unseen for item in items)
    assert scores["exact/off"].n == seen
    assert scores["exact/unseen/off"].n == sum(i.mode == "off" for i in items) - seen


def test_modes_of_one_task_are_one_item(items, oracle_policy):
    tasks = {i.task.id for i in items if (i.task.environment, i.task.family) == ("table", "max")}
    scores = by_name(Environments(items, max_new_tokens=64).run(oracle_policy(items)))
    assert scores["exact/all/table/max"].n == len(tasks) == 1
    assert scores["exact/off/table/max"].n == 1


def test_sampled_scores_count_a_task_once_and_give_pass_at_k(items, oracle_policy):
    chosen = [i for i in items if i.mode == "interleaved"]
    policy = oracle_policy(chosen, change=Alternating())
    result = SampledEnvironments(chosen, 2, max_new_tokens=64).run(policy)
    scores = by_name(result)
    assert [a["task"] for a in result.attempts] == [i.task.id for i in chosen for _ in range(2)]
    seen = {i.task.id for i in chosen if i.task.family not in UNSEEN}
    assert scores["mean/all"].n == scores["pass@2/all"].n == len(seen)
    assert scores["mean/unseen"].n == len({i.task.id for i in chosen}) - len(seen)
    assert scores["pass^2/all"].value <= scores["mean/all"].value <= scores["pass@2/all"].value
    assert scores["mean/arithmetic/add2"].value == 0.5  # one turn: every other answer is empty
    assert policy.temperatures == {1.0} and len(policy.seeds) == policy.calls


def test_bits_per_byte_weighs_documents_by_their_bytes(byte_policy):
    documents = [Document("a", "one", "abcd"), Document("b", "one", "xy"), Document("c", "two", "é" * 3)]
    result = BitsPerByte(documents, max_tokens=3, samples=2).run(byte_policy({"sparse": 1.5}))
    scores = by_name(result)
    assert scores["all"].value == pytest.approx(1.5)
    assert scores["one"].denominators == [3.0, 2.0]  # cut at three tokens
    assert scores["two"].denominators == [6.0]  # bytes, not characters
    assert [sample["source"] for sample in result.samples] == ["one", "two"]
    assert result.samples[0]["tokens"][0] == ["a", 1.5]


def test_gaps_are_relative_to_dense_and_recall_to_the_best_possible(byte_policy):
    documents = [Document(str(n), "one", "abcdefgh" * (n + 1)) for n in range(6)] + [
        Document("z", "one", "ab")
    ]
    policy = byte_policy({"dense": 2.0, "sparse": 2.02, "window": 2.1, "random": 3.0})
    scores = by_name(SparseAttention(documents, max_tokens=64).run(policy))
    assert scores["bpb/dense"].value == pytest.approx(2.0)
    assert scores["gap/sparse"].value == pytest.approx(0.01)
    assert scores["gap/random"].value == pytest.approx(0.5)
    assert scores["topk_recall"].value == pytest.approx((0.45 + 0.9) / 1.5)
    assert scores["topk_recall"].n == 6  # the short document has no query beyond the budget
    assert scores["topk_recall/layer_1"].value == pytest.approx(0.9)
    assert scores["window_recall"].value == pytest.approx(1.0 / 1.5)
    assert scores["indexer_kl"].value == pytest.approx(0.2)


def test_long_context_counts_the_share_of_answers_in_the_first_line(byte_policy):
    items = [
        LongContextItem("1", "needle", 256, "p1", ("739",)),
        LongContextItem("2", "multi_value", 512, "p2", ("120", "450")),
    ]
    completions = {
        "dense": {"p1": "739\nk=1", "p2": "120,450"},
        "sparse": {"p1": "739", "p2": "450"},
        "window": {"p1": "1\n739", "p2": ""},
    }
    scores = by_name(LongContext(items, max_new_tokens=8).run(byte_policy({}, completions)))
    assert scores["dense/all"].value == 1.0
    assert scores["sparse/512"].value == 0.5
    assert scores["sparse/needle"].value == 1.0
    assert scores["window/all"].value == 0.0


def test_the_protocol_hash_changes_with_all_that_decides_a_score():
    documents = [Document("a", "one", "abcd")]
    base = protocol_hash(BitsPerByte(documents, 8))
    assert base == protocol_hash(BitsPerByte(documents, 8, samples=3))  # samples are shown, not scored
    assert base != protocol_hash(BitsPerByte(documents, 9))
    assert base != protocol_hash(BitsPerByte([Document("a", "one", "abce")], 8))
    assert base != protocol_hash(SparseAttention(documents, 8))
