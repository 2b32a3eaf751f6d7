"""``jest --json`` and ``vitest --reporter=json``: one report. Test ids are ``file > group > title``."""

import json

from environments.swe.grading import ERROR, FAILED, PASSED, SKIPPED, LogRejected, merge

_STATUS = {
    "passed": PASSED, "failed": FAILED, "skipped": SKIPPED, "pending": SKIPPED, "todo": SKIPPED,
    "disabled": SKIPPED,
}  # fmt: skip


def parse_jest(log: str) -> dict[str, str]:
    try:
        report = json.loads(log)
        total, files = report["numTotalTests"], report["testResults"]
        results: dict[str, str] = {}
        tests = 0
        for file in files:
            for test in file["assertionResults"]:
                titles = [*test["ancestorTitles"], test["title"]]
                merge(results, " > ".join([file["name"], *titles]), _STATUS[test["status"]])
                tests += 1
            if file["status"] == "failed" and not file["assertionResults"]:
                merge(results, file["name"], ERROR)
    except (ValueError, KeyError, TypeError) as error:
        raise LogRejected(f"this is no whole report of jest or vitest ({error!r})") from None
    if tests != total:
        raise LogRejected(f"the report lists {tests} tests and counts {total}")
    return results
