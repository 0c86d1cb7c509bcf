"""`hvd-dbs report`: what a journal shows."""
