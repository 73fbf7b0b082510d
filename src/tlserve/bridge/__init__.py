"""The only room with both colours: the engine thread and its tickets."""
