"""How the draft divides its guesses among kept lengths, over budgets."""
