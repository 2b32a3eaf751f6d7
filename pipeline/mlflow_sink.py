"""Mirror of a stage's metrics in MLflow."""


class MlflowSink:
    """Writes to MLflow from its own thread; whatever fails there is said once and never stops the stage."""

    @classmethod
    def open(
        cls, recipe: str, stage: str, identity: str, sections: dict, inputs: dict[str, dict]
    ) -> "MlflowSink":
        return cls()

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def finish(self, record: dict) -> None: ...

    def fail(self, reason: str) -> None: ...
