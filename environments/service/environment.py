"""Dialogues at a service desk: a policy, a database with tools, a scripted user (in the manner of tau-bench).

The user reveals what is asked for, agrees only to what was wanted, and now and then wants what the policy
forbids; then a refusal that names the rule is the whole of the task.
"""

import random

from environments.episode import answer, call_message
from environments.interface import Draft, Environment, Episode, Message, Mode, Task
from environments.service import bank, shop, travel
from environments.service.domain import Domain
from environments.service.episode import ServiceEpisode

DOMAINS: dict[str, Domain] = {module.DOMAIN.name: module.DOMAIN for module in (shop, travel, bank)}
UNSEEN = ("bank",)


def _names(unseen: bool) -> tuple[str, ...]:
    return tuple(
        f"{domain.name}_{family}"
        for domain in DOMAINS.values()
        for family in domain.families
        if (domain.name in UNSEEN) == unseen
    )


class Service(Environment):
    name = "service"
    families = _names(unseen=False)
    evaluation_only = _names(unseen=True)

    def draw(self, family: str, rng: random.Random) -> Draft:
        name, _, kind = family.partition("_")
        domain = DOMAINS[name]
        case = domain.families[kind](rng)
        messages = (
            {"role": "system", "content": domain.policy.replace("{today}", case.today)},
            {"role": "user", "content": case.wishes[0].opening},
        )
        return Draft(messages, case.truth(name), len(case.plan.steps), domain.schemas)

    def episode(self) -> Episode:
        return ServiceEpisode(DOMAINS)

    def oracle(self, task: Task, mode: Mode) -> list[Message]:
        messages = []
        for step in task.truth["plan"]:
            thought = None if mode == "off" else step["thought"]
            if mode == "interleaved" and step["recap"]:
                thought = f"{step['recap']}; {thought}"
            if "say" in step:
                messages.append(answer(thought, step["say"]))
            else:
                name, arguments = step["call"]
                messages.append(call_message(thought, name, **arguments))
        return messages
