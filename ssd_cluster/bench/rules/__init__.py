"""Block efficiency of verification rules on a real pair: target and draft in one process, drafting in turn."""
