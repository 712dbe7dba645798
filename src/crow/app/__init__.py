"""What people touch."""
