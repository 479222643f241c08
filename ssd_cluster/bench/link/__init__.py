"""What the draft link costs: round trips and bytes, backend by backend, without any model."""
