"""Pictures to vectors."""
