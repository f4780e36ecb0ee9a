"""The entry points of engines. They register a plug-in only where `safetensors` is this package.

They lie outside `safetensors_cpp`, because importing that makes `safetensors` this package.
"""

from importlib.util import find_spec


def vllm() -> None:
    """Registers the plug-in of vLLM."""
    if find_spec("safetensors.plugins"):
        from safetensors.plugins.vllm import register

        register()


def sglang() -> None:
    """Registers the plug-in of sglang."""
    if find_spec("safetensors.plugins"):
        from safetensors.plugins.sglang import register

        register()
