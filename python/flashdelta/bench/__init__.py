"""`python -m flashdelta.bench`: the case list and the peers, timed, as a table and as one HTML page."""
