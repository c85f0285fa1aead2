"""Models in fleets that others manage."""
