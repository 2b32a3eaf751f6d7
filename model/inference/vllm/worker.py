"""A method that vLLM's workers get (``--worker-extension-cls``): weights of another version, all of them.

vLLM's own ``reload_weights`` leaves the expert weights as they were, repacked for the CPU, without a word.
Here a second model is loaded as at the start, and its state moved into the first one's modules.
"""

from typing import Any

from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform

# Of an attention layer: what belongs to the running engine and not to the weights.
RUNTIME = {"kv_cache", "impl"}


class WholeReload:
    def load_whole(self, folder: str) -> None:
        """Go on with a folder's weights, which fit. If loading fails, the old ones stay.

        On CUDA, where nothing is repacked, it is vLLM's own reload. (Not run.)
        """
        if current_platform.is_cuda():
            self.reload_weights(weights_path=folder)
        else:
            move_state(self.vllm_config, self.model_runner.model, folder)


def move_state(config: VllmConfig, model: nn.Module, folder: str) -> None:
    """Load ``folder`` beside ``model`` and give its tensors to ``model``'s modules."""
    layers = config.compilation_config.static_forward_context
    running = dict(layers)
    layers.clear()  # a second model registers its layers under the same names
    try:
        other = dict(load_model(config, folder).named_modules())
    finally:
        layers.clear()
        layers.update(running)
    attention = {id(layer) for layer in running.values()}
    for name, module in model.named_modules():
        keep = {"_modules"} | (RUNTIME if id(module) in attention else set())
        module.__dict__.update({k: v for k, v in other[name].__dict__.items() if k not in keep})


def load_model(config: VllmConfig, folder: str) -> Any:
    first = config.model_config.model
    config.model_config.model = folder
    try:
        with set_current_vllm_config(config):
            return get_model_loader(config.load_config).load_model(
                vllm_config=config, model_config=config.model_config
            )
    finally:
        config.model_config.model = first
