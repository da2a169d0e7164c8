"""Points24: four cards make 24."""
