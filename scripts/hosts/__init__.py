"""Several hosts on one machine, for tests, demos and development; `scripts/hosts.sh` runs it."""
