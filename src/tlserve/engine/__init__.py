"""The engine: one synchronous step loop over scheduler, runner and sampler."""
