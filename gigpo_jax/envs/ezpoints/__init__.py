"""EZPoints: two cards make 12."""
