"""What a runner's log says of each test, as JSON; a log that is no evidence is refused.

python -m environments.swe.parsers go LOG
"""

import argparse
import json
from pathlib import Path

from environments.swe.grading import LogRejected
from environments.swe.parsers import PARSERS, parse
from pipeline.errors import UserError, run_command


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m environments.swe.parsers")
    parser.add_argument("runner", choices=PARSERS)
    parser.add_argument("log", type=Path)
    options = parser.parse_args(arguments)
    try:
        statuses = parse(options.runner, options.log.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{options.log} cannot be read: {error.strerror}") from None
    except LogRejected as error:
        raise UserError(f"{options.log} says nothing of the tests: {error}") from None
    print(json.dumps(statuses, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    run_command(main)
