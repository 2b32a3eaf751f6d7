"""The real form of a deployment in Prefect's page, filled in and sent in a browser."""

from tests.waiting import PATIENCE

MILLISECONDS = 1000 * PATIENCE
MILLISECONDS_TO_ANSWER = 120_000  # of the form, then it is filled in again
ATTEMPTS = 4


def submit(page, form: str) -> dict:
    """The flow run made by the form at address ``form``, with a learning rate of 0.375.

    Prefect answers 503 while another writer holds its database, and its page draws the form again whenever
    it hears from the server: a click or an entry can be lost on a busy machine. As a person would, try again.
    """
    from playwright.sync_api import TimeoutError as Waited

    for _ in range(ATTEMPTS):
        page.goto(form, wait_until="domcontentloaded")
        page.get_by_text("New learning rate of Muon").wait_for()
        try:
            # Instead of None: the field for a number appears.
            page.get_by_text("float", exact=True).first.click(timeout=MILLISECONDS_TO_ANSWER)
            page.locator("input[type=number]").first.fill("0.375", timeout=MILLISECONDS_TO_ANSWER)
            with page.expect_response(
                lambda answer: answer.url.endswith("/create_flow_run"), timeout=MILLISECONDS_TO_ANSWER
            ) as made:
                page.get_by_role("button", name="Submit").click(timeout=MILLISECONDS_TO_ANSWER)
        except Waited:
            continue
        if made.value.status == 201 and made.value.json()["parameters"].get("muon_lr") == 0.375:
            return made.value.json()
    raise AssertionError(f"no run after {ATTEMPTS} attempts; the page says: {page.inner_text('body')}")
