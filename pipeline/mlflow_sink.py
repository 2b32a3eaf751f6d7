"""Mirror of a stage's metrics in MLflow."""

PARENT = "GLM5_MLFLOW_PARENT"  # name of the pipeline run that a stage belongs to


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
