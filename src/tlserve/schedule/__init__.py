"""Who runs next: sequences, the plan of a step, the scheduler."""
