"""Many targets on one real draft: their outcomes are replayed, so that no target needs a forward."""
