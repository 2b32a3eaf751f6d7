"""What every section of a recipe shares: unknown keys are errors, so are ``.inf`` and ``.nan``, and values do
not change after loading.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
