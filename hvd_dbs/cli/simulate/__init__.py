"""`hvd-dbs simulate`: strategies on modelled clusters."""
