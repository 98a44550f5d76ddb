"""SQL over topics by DuckDB. `predicates` says which records a query can need (pure, from DuckDB's own syntax tree),
`scan` hands topics over batch by batch, `query` brings both together."""
