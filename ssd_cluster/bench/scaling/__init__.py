"""A running deployment under a load that rises and falls: what its pool of drafts does, and what its clients get."""
