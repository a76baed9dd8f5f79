"""Tables as data: numbers with gaps, categories, and a target, of .csv and .parquet files."""
