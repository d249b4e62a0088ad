"""How many model providers and scorers are there?"""

from benchmarks.comparison import _offers
from harness import models
from harness.evals import AgentJudge, Choice, Contains, Exact, Fields, Number

PROVIDERS = (models.OpenAIModel, models.AnthropicModel, models.LocalModel)
SCORERS = (AgentJudge, Choice, Contains, Exact, Fields, Number)

if __name__ == "__main__":
    providers = f"{len(PROVIDERS)}, and what speaks OpenAI's or Anthropic's dialect"
    _offers.show("trio-harness", providers=providers, scorers=len(SCORERS))
