"""Find out which hosts there are."""
