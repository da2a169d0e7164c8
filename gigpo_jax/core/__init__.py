"""What any room may import: errors, files, settings, references."""
