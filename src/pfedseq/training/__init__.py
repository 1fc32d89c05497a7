"""Local training: its options, and the optimiser that turns a gradient into a step of φ."""
