"""Tiny graphs with digits as nodes: follow arrows, say what can be reached, find the one shortest path."""

import random

from environments.question import Question, QuestionEnvironment


def _chains(rng: random.Random) -> tuple[list[str], str]:
    """Two chains without a common node, and their arrows in random order."""
    nodes = rng.sample("0123456789", rng.randint(6, 7))
    cut = rng.randint(3, 4)
    chains = [nodes[:cut], nodes[cut:]]
    arrows = [f"{a}>{b}" for chain in chains for a, b in zip(chain, chain[1:], strict=False)]
    rng.shuffle(arrows)
    return ["".join(chain) for chain in chains], ",".join(arrows)


def _follow(rng: random.Random) -> Question:
    (chain, _), arrows = _chains(rng)
    return Question(f"{arrows} from {chain[0]}", ">".join(chain), chain[-1], len(chain))


def _reach(rng: random.Random) -> Question:
    (chain, other), arrows = _chains(rng)
    there = rng.random() < 0.5
    goal = chain[-1] if there else other[-1]
    return Question(
        f"{arrows} from {chain[0]} to {goal}", ">".join(chain), "yes" if there else "no", len(chain)
    )


def _shortest(rng: random.Random) -> Question:
    """An undirected graph in which exactly one shortest path of two or three edges joins the two nodes."""
    while True:
        nodes = rng.sample("0123456789", 6)
        edges = {tuple(sorted(rng.sample(nodes, 2))) for _ in range(7)}
        start, goal = rng.sample(nodes, 2)
        layers, paths = _search(edges, start, goal)
        if len(paths) == 1 and len(paths[0]) in (3, 4):
            break
    shown = [f"{a}-{b}" for a, b in edges]
    shown.sort()  # a set has no order that a seed fixes
    rng.shuffle(shown)
    steps = "|".join("".join(sorted(layer)) for layer in layers)
    return Question(f"{','.join(shown)} path {start} {goal}", steps, "-".join(paths[0]), len(paths[0]))


def _search(edges: set[tuple[str, str]], start: str, goal: str) -> tuple[list[set[str]], list[str]]:
    """Breadth first: the layers up to the goal's, and all shortest paths to it."""
    layers, paths, seen = [{start}], [start], {start}
    while paths and goal not in seen:
        longer = [
            path + b
            for path in paths
            for edge in sorted(edges)
            for a, b in (edge, edge[::-1])
            if a == path[-1] and b not in seen
        ]
        layers.append({path[-1] for path in longer})
        seen |= layers[-1]
        paths = longer
    return layers, [path for path in paths if path[-1] == goal]


class Graph(QuestionEnvironment):
    name = "graph"
    families = ("follow", "reach", "shortest")
    generators = {"follow": _follow, "reach": _reach, "shortest": _shortest}
