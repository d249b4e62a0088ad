"""Models: who answers an agent. One small protocol, and what satisfies it."""

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
from harness.models._scripted import ScriptedModel, ScriptedReply

__all__ = [
    "FunctionModel",
    "Message",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ModelStream",
    "Price",
    "Role",
    "ScriptedModel",
    "ScriptedReply",
    "ToolCall",
    "ToolDescription",
    "Usage",
]
