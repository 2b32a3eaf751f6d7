"""``glm5 pipeline``: server and worker up, deployments there, the full pipeline run and watched."""

from flows import server
from flows.known_families import refuse_unknown_families
from flows.parameters import override
from flows.terminal import View
from pipeline.graph import load_graph, select
from pipeline.recipe import load_recipe


def run_through_prefect(
    recipe: str, start: str | None, only: list[str], force: bool, assignments: list[str], port: int | None
) -> int:
    """Run a recipe's stages through Prefect. Returns the exit status: 0 when all of them are up to date."""
    graph = load_graph()
    select(graph, start, only)  # complain before anything is started
    view = View(load_recipe(recipe).name)
    for message in override(recipe, assignments, only[0] if len(only) == 1 else None):
        view.say(message)
    refuse_unknown_families(recipe, graph)
    starting = server.start(port)
    from flows import submit  # loads Prefect, as the started processes do at the same time

    starting.wait()
    view.say(f"Prefect: {starting.api.removesuffix('/api')}")
    submit.prepare(view, starting)
    parameters = {"recipe": recipe, "from_stage": start, "only": list(only), "force": force}
    status = submit.run_and_watch(parameters, view)
    starting.deployed()
    return status
