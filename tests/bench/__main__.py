"""`python -m tests.bench [ROWS...]`: ratios against peers, measured side by side, merged into bench.json.

Each file row_*.py has functions row_<name>() that return {"row", "ratio", "goal", "better", "detail"}, or a
list of such rows. A row that can't be measured here is reported and leaves bench.json as it was.
"""

import json
import sys
import traceback
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
BENCH = HERE.parent.parent / "bench.json"


def main(wanted):
    functions = dict(_functions())
    unknown = [name for name in wanted if name not in functions]
    if unknown:
        print(f"no row {unknown[0]!r}; there are {', '.join(functions)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted or functions:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            found = functions[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        for row in found if isinstance(found, list) else [found]:
            _merge(row)
            print(_line(row), flush=True)
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _functions():
    sys.path.insert(0, str(HERE))
    for path in sorted(HERE.glob("row_*.py")):
        module = import_module(path.stem)
        for name, function in vars(module).items():
            if name.startswith("row_") and callable(function):
                yield name.removeprefix("row_"), function


def _merge(row):
    rows = {r["row"]: r for r in json.loads(BENCH.read_text())} if BENCH.exists() else {}
    rows[row["row"]] = row
    BENCH.write_text(json.dumps([rows[name] for name in sorted(rows)], indent=1) + "\n")


def _line(row):
    met = row["ratio"] >= row["goal"] if row["better"] == "higher" else row["ratio"] <= row["goal"]
    sign = "≥" if row["better"] == "higher" else "≤"
    verdict = f"goal {sign} {row['goal']:g}, {'met' if met else 'missed'}"
    return f"{row['row']}: {row['ratio']:.3g} ({verdict}); {row['detail']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
