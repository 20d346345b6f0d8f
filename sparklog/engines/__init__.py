"""Read topics as tables with DuckDB, Polars and other engines that support pyarrow datasets."""
