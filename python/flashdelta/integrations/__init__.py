"""flashdelta under other libraries' models."""
