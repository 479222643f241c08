"""SAGUARO sampling: what lower weights of the guessed tokens do to hit rate, acceptance and predicted speed."""
