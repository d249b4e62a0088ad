"""Answer the prompts of the triage agent from labelled examples.

This takes the place of a language model: a function from the messages of a chat to
what the model says next. It reads the ticket that was asked about last, says which
category it is like and how sure it is, and changes its mind when it is shown similar
tickets.
"""

import json
from collections import defaultdict
from collections.abc import Sequence

import attrs

from nearest_example import LabelledExamples
from simulated_model import Message

UNCLEAR = "unclear"
"""The category of a text that shares no word with any example."""


@attrs.frozen
class LabelledAnswers:
    """A model's knowledge, as far as triage needs any."""

    examples: LabelledExamples

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return a JSON object with the ``category`` and a ``confidence`` from 0 to 1."""
        ticket = ""
        votes: dict[str, float] = defaultdict(float)
        for message in reversed(messages):
            if message["role"] != "user":
                continue
            question = json.loads(message["content"])
            for similar in question.get("similar_tickets", ()):
                # Squared, so that many far examples don't outvote a few near ones.
                votes[similar["category"]] += similar["similarity"] ** 2
            if "ticket" in question:
                ticket = question["ticket"]
                break
        scores = self._scores(ticket, votes)
        (best, best_score), (_, second_score) = sorted(
            [*scores.items(), (UNCLEAR, 0.0), (UNCLEAR, 0.0)],
            key=lambda scored: scored[1],
            reverse=True,
        )[:2]
        confidence = 1 - second_score / best_score if best_score else 0.0
        return json.dumps({"category": best, "confidence": round(confidence, 3)})

    def _scores(self, ticket: str, votes: dict[str, float]) -> dict[str, float]:
        """Give equal weight to the ticket as a whole and to the votes; drop the hopeless."""
        similarities = self.examples.category_similarities(ticket)
        most_similar, all_votes = max(similarities.values()), sum(votes.values())
        scores: dict[str, float] = {}
        for category, similarity in similarities.items():
            score = similarity / most_similar if most_similar else 0.0
            score += votes.get(category, 0.0) / all_votes if all_votes else 0.0
            if score > 0:
                scores[category] = score
        return scores
