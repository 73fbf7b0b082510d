"""The conformance kit: cases of the v1 API that any server can be put to, over HTTP and nothing else."""
