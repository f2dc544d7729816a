"""What a reader gets: tables, figures and pages made from runs and records."""
