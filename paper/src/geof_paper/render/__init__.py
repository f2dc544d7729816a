"""Tables, figures and pages made from recorded runs."""
