"""The running job: who is in it and how its ranks talk."""
