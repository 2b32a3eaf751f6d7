"""What all tests share."""

import os

# Stages that run in tests keep no MLflow run beside them; the tests of that switch it on for themselves.
os.environ.setdefault("GLM5_MLFLOW", "off")
