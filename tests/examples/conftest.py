"""Make the example scripts importable by their names, as Python does when it runs one of them."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

sys.path.insert(0, str(EXAMPLES))
