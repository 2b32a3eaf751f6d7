"""The report card of a recipe: ``python -m tasks.report --recipe tiny``.

Writes ``report.html``, one page without outside assets, and ``report.md``, from the records and metrics of
all stages and from nothing else; ``trajectories.html`` where reinforcement learning ran; and the card of the
last checkpoint, ``model_card.md``, which ``glm5 release`` puts beside it.
"""

from pathlib import Path

from pipeline import artifacts
from pipeline.graph import load_graph
from pipeline.stage import Context, run_stage
from tasks.reporting.card import CARD, card, released
from tasks.reporting.facts import Facts, collect_facts
from tasks.reporting.page import finished, render, view, viewer_values
from tasks.reporting.scores import Scores
from tasks.reporting.trajectories import viewer


def run(context: Context) -> dict[str, float]:
    """Collect the facts of every input stage and write the page."""
    facts = write_report(context.recipe.name, context.inputs, context.out, context.section.title)
    name = released(facts)
    if name is not None:
        context.facts |= {"released": name, "content": facts.stages[name].record["content"]}
    done = [stage for stage in facts.stages.values() if stage.record]
    return {"report/stages": float(len(done)), "report/missing": float(len(facts.missing))}


def write_report(recipe: str, folders: dict[str, Path], out: Path, title: str) -> Facts:
    """The page from whatever artifacts there are; a stage that has not run is named on it as missing."""
    runs = {name: artifacts.run_dir(recipe, name) for name in folders}
    facts = collect_facts(recipe, load_graph(), folders, runs)
    found = viewer(facts, finished(facts))
    scores = Scores.read(facts.json("evaluate", "scores.json"))
    values = {**view(facts, scores, title), "trajectories": len(found.items)}
    (out / "report.html").write_text(render("page.html.jinja", values), encoding="utf-8")
    (out / "report.md").write_text(render("page.md.jinja", values), encoding="utf-8")
    if found.stages:
        page = render("trajectories.html.jinja", viewer_values(found, recipe))
        (out / "trajectories.html").write_text(page, encoding="utf-8")
    about = card(facts, scores, title)
    if about is not None:
        (out / CARD).write_text(render("model_card.md.jinja", about), encoding="utf-8")
    return facts


if __name__ == "__main__":
    run_stage("report", run)
