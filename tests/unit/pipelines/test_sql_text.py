"""Tables are found where SQL has them and nowhere else."""

import pytest

from headrace.spark.pipelines.spec.sql_tables import tables_of


def names(sql: str) -> list[str]:
    return [".".join(table.parts) for table in tables_of(sql)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select a from orders o join customers c on o.id = c.id", ["orders", "customers"]),
        ("SELECT * FROM a, b, c WHERE a.x = b.x", ["a", "b", "c"]),
        ("SELECT x, orders FROM clicks", ["clicks"]),
        ("SELECT EXTRACT(year FROM at) FROM clicks", ["clicks"]),
        ("SELECT trim(BOTH ' ' FROM name), substring(s FROM 2) FROM t", ["t"]),
        ("SELECT * FROM t WHERE a IS NOT DISTINCT FROM b", ["t"]),
        ("WITH x AS (SELECT * FROM a), y (p, q) AS (SELECT 1, 2 FROM x) SELECT * FROM y JOIN b USING (p)", ["a", "b"]),
        ("SELECT * FROM (SELECT * FROM inner_one) s JOIN (a JOIN b ON 1=1) ON true", ["inner_one", "a", "b"]),
        ("SELECT (SELECT max(v) FROM limits) FROM t WHERE k IN (SELECT k FROM allowed)", ["limits", "t", "allowed"]),
        ("SELECT * FROM STREAM orders", ["orders"]),
        ("SELECT * FROM STREAM(orders)", ["orders"]),
        ("SELECT * FROM range(10) r, orders", ["orders"]),
        ("SELECT 'FROM x', \"from y\" FROM t -- FROM z\n /* FROM q */ GROUP BY a, b", ["t"]),
        ("SELECT * FROM `my table`, db.other", ["my table", "db.other"]),
        ("SELECT * FROM t LATERAL VIEW explode(items) x AS item, second", ["t"]),
        ("SELECT * FROM t, LATERAL explode(t.items), u", ["t", "u"]),
        ("SELECT * FROM a JOIN LATERAL (SELECT * FROM b WHERE b.x = a.x)", ["a", "b"]),
        ("SELECT a FROM x UNION ALL SELECT b FROM y ORDER BY 1, 2", ["x", "y"]),
        ("SELECT * FROM VALUES (1, 2), (3, 4) AS v(a, b)", []),
        ("SELECT window(at, '1 minute') w, count(*) FROM orders GROUP BY window(at, '1 minute'), country", ["orders"]),
        ("FROM orders |> WHERE x > 1 |> SELECT x", ["orders"]),
        ("SELECT * FROM Orders o, ORDERS p", ["Orders"]),
    ],
)
def test_tables(sql: str, expected: list[str]) -> None:
    assert names(sql) == expected


def test_lines_are_counted_through_comments_and_texts() -> None:
    found = tables_of("SELECT 'a\nb'\n/* x\n y */ FROM\n  orders\n JOIN other")
    assert [(table.parts[0], table.line) for table in found] == [("orders", 5), ("other", 6)]


@pytest.mark.parametrize(
    "sql", ["", ")", "FROM", "SELECT * FROM (", "WITH", "FROM a.", "'open", "SELECT * FROM a JOIN"]
)
def test_broken_text_is_survived(sql: str) -> None:
    tables_of(sql)
