"""The recipe: one YAML file that decides everything about a run, loaded into strict models."""

from pipeline.recipe.load import Recipe, load_recipe

__all__ = ["Recipe", "load_recipe"]
