"""Models: who answers an agent. One small protocol, and what satisfies it.

`ScriptedModel`, `FunctionModel` and `FallbackModel` need nothing. Those that speak to a provider
or hold a model in this process need an extra each, and are loaded when first used.
"""

from typing import TYPE_CHECKING, Any

from harness._extras import load_with_extra
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
    "AnthropicModel": "harness.models._anthropic",
    "LocalModel": "harness.models._local",
    "OpenAIModel": "harness.models._openai",
}

_EXTRAS = {"anthropic": "anthropic", "openai": "openai", "xllamacpp": "local"}


def __getattr__(name: str) -> Any:
    module = _LOADED_WHEN_USED.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_with_extra(module, name, subject=f"harness.models.{name}", extras=_EXTRAS)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_WHEN_USED})
