"""Models: who answers an agent. One small protocol, and what satisfies it.

`ScriptedModel`, `FunctionModel` and `FallbackModel` need nothing. Those that speak to a provider
or hold a model in this process need an extra each, and are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.models._fallback import FallbackEntry, FallbackModel
from harness.models._function import FunctionModel
from harness.models._messages import (
    Message,
    ModelRequest,
    ModelResponse,
    Role,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._price import Price
from harness.models._protocol import Model, ModelStream
from harness.models._recorded import RecordedModel
from harness.models._scripted import ScriptedModel, ScriptedReply

if TYPE_CHECKING:
    from harness.models._anthropic import AnthropicModel
    from harness.models._local import LocalModel
    from harness.models._openai import OpenAIModel

__all__ = [
    "AnthropicModel",
    "FallbackEntry",
    "FallbackModel",
    "FunctionModel",
    "LocalModel",
    "Message",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ModelStream",
    "OpenAIModel",
    "Price",
    "RecordedModel",
    "Role",
    "ScriptedModel",
    "ScriptedReply",
    "ToolCall",
    "ToolDescription",
    "Usage",
]

_LOADED_WHEN_USED = {
    # The name: its module, the extra that brings what it needs, and what that is.
    "AnthropicModel": ("harness.models._anthropic", "anthropic", "anthropic"),
    "LocalModel": ("harness.models._local", "local", "xllamacpp"),
    "OpenAIModel": ("harness.models._openai", "openai", "openai"),
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra, needed = _LOADED_WHEN_USED[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != needed:
            raise
        raise ImportError(f"{name} needs {needed}; install trio-harness[{extra}]") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_USED})
