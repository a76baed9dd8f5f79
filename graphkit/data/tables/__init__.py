"""Tables in .csv and .parquet files: numbers with missing values, categories, and a target."""
