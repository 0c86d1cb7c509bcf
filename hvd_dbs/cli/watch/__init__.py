"""`hvd-dbs watch`: a job's journal while it is being written."""
