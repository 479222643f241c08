"""What a row does that missed, over batch sizes."""
