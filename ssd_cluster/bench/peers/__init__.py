"""The same prompts through our modes and through what a user would pick instead."""
