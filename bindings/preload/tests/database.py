"""SQLite: transactions, updates and a roll-back. Prints a summary of the table."""
import sqlite3, sys
base = sqlite3.connect(sys.argv[1] + "/base")
base.execute("pragma journal_mode=delete")
base.execute("create table t (a integer primary key, b text)")
for round in range(20):
    with base:
        base.executemany("insert into t (b) values (?)", [(str(round * 100 + at) * 50,) for at in range(100)])
    with base:
        base.execute("update t set b = b || ? where a % 7 = ?", ("x" * round, round % 7))
    base.execute("begin"); base.execute("delete from t"); base.rollback()
assert base.execute("pragma integrity_check").fetchone() == ("ok",)
print(base.execute("select count(*), sum(length(b)), sum(a) from t").fetchone())
