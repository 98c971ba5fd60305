"""How each result is laid out for people and for programs."""
