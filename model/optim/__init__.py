"""Muon with Muon Split for the layers' matrices, AdamW for the rest."""

from model.optim.build import Optimizers, build_optimizer

__all__ = ["Optimizers", "build_optimizer"]
