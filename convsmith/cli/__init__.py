"""The command line: `convsmith bench`, `verify`, `explain`, `show`, `machine` and `cache`."""
