"""The command line: `hvd-dbs`. One module a subcommand; `main.COMMANDS` lists them."""
