"""The command line: one file per command, and the tables, bars and options that commands share."""
