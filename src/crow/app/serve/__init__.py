"""The HTTP interface: a versioned JSON API over one index, and the page that uses it."""
