"""What the paper compares, measures and prints: methods, measures, statistics, its numbers."""
