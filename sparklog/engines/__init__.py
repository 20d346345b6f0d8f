"""Topics as tables of DuckDB, Polars and other engines that read pyarrow datasets."""
