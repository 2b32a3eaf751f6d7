r"""Compares answers with Math-Verify in a process of its own: a line of JSON in, true or false out; null
where the right answer itself cannot be read.

SymPy evaluates what it reads, and ``9^{9^{9}}`` does not come to an end. The kernel ends this process after
``SECONDS`` of its own work for one comparison, however busy the machine is; its parent starts another.
"""

import json
import logging
import resource
import signal
import sys

SECONDS = 3.0  # of processor time for one comparison
MEMORY = 2 * 2**30


def main() -> None:
    from math_verify import LatexExtractionConfig, parse, verify  # here: it takes a second to load

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    read_as = [LatexExtractionConfig()]

    def equal(gold: str, answer: str) -> bool | None:
        # Its own timeouts are alarms, which only the main thread of a process may set, and which do not
        # interrupt a power of large integers.
        first, second = (parse(f"${text}$", read_as, parsing_timeout=None) for text in (gold, answer))
        if not first:
            return None
        return bool(second) and verify(first, second, allow_set_relation_comp=True, timeout_seconds=None)

    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # no handler: the default ends the process
        try:
            same = equal(gold, answer)
        except (MemoryError, RecursionError):
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(same), flush=True)


if __name__ == "__main__":
    main()
