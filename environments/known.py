"""Does a recipe name environments and families that there are? Asked before a run starts, by ``flows``.

    echo '{"sft_data.families": ["string/copy"]}' | python -m environments.known

Names by their place in the recipe: of environments, or of families as "environment/family".
"""

import json
import sys
from collections.abc import Iterable

from environments.catalog import environments, find_family, select
from environments.interface import Environment
from pipeline.errors import UserError, run_command


def refuse_unknown(catalog: dict[str, Environment], place: str, names: Iterable[str]) -> None:
    """Raises ``UserError`` with the place for an environment that is not there, and for a family that no
    training task is made of.
    """
    for name in names:
        try:
            if place.endswith(".families"):
                environment, family = find_family(catalog, name)
                environment.refuse_untrained(family)
            else:
                select(catalog, [name])
        except UserError as error:
            raise UserError(f"{place} names {name!r}: {error}") from None


def main() -> None:
    catalog = environments()
    for place, names in json.load(sys.stdin).items():
        refuse_unknown(catalog, place, names)


if __name__ == "__main__":
    run_command(main)
