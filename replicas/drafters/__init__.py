"""Drafters: models or rules that propose draft tokens. Siblings, not a hierarchy."""
