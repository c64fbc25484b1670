"""What a user can get wrong, and the one line that says so."""
