"""Models: who answers an agent. One small protocol, and what satisfies it.

`ScriptedModel`, `FunctionModel` and `FallbackModel` need nothing else. Those that talk to a
provider or run a model in this process each need an extra, and are loaded when first used.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.models._fallback import FallbackEntry, FallbackModel
from harness.models._file import Content, File, Part, Prompt
from harness.models._function import FunctionModel
from harness.models._messages import (
    Finish,
    Message,
    ModelRequest,
    ModelResponse,
    Role,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._notices import AgentBegan, ModelCallOver, ToolCallOver
from harness.models._price import Price
from harness.models._protocol import Model, ModelStream
from harness.models._recorded import RecordedModel
from harness.models._scripted import ScriptedModel, ScriptedReply
from harness.models._sending import request_sent

if TYPE_CHECKING:
    from harness.models._anthropic import AnthropicModel
    from harness.models._batched import BatchedModel, open_batched
    from harness.models._local import LocalModel
    from harness.models._named import NamedModel, is_model_name
    from harness.models._openai import OpenAIModel
    from harness.models._prices import PriceTable
else:
    __getattr__, __dir__ = lazy(
        extras={"anthropic": "anthropic", "openai": "openai", "xllamacpp": "local"}
    )

__all__ = [
    "AgentBegan",
    "AnthropicModel",
    "BatchedModel",
    "Content",
    "FallbackEntry",
    "FallbackModel",
    "File",
    "Finish",
    "FunctionModel",
    "LocalModel",
    "Message",
    "Model",
    "ModelCallOver",
    "ModelRequest",
    "ModelResponse",
    "ModelStream",
    "NamedModel",
    "OpenAIModel",
    "Part",
    "Price",
    "PriceTable",
    "Prompt",
    "RecordedModel",
    "Role",
    "ScriptedModel",
    "ScriptedReply",
    "ToolCall",
    "ToolCallOver",
    "ToolDescription",
    "Usage",
    "is_model_name",
    "open_batched",
    "request_sent",
]
