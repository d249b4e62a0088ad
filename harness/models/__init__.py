"""Models: who answers an agent. One small protocol, and what satisfies it."""

from harness.models._messages import (
    Message,
    ModelRequest,
    ModelResponse,
    Role,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._protocol import Model, ModelStream

__all__ = [
    "Message",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ModelStream",
    "Role",
    "ToolCall",
    "ToolDescription",
    "Usage",
]
