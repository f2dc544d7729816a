"""What the paper studies: which runs, what is measured on them, and the numbers it prints."""
