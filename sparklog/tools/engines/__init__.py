"""Topics as tables of other engines: DuckDB, Polars, and what takes datasets of pyarrow."""
