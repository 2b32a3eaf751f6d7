"""Makes the tables of this folder from the database inside mendeleev's wheel.

    python -m pip download --no-deps mendeleev==1.3.0
    python -m environments.science.extract mendeleev-1.3.0-py3-none-any.whl

Only what the tasks ask about is kept, so that no task needs the package or the network.
"""

import csv
import hashlib
import sqlite3
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

from pipeline.errors import UserError

FOLDER = Path(__file__).parent
SHA256 = "76f415767b654634e51dead755513ef431abf200e892eab8468aa659ff218d1c"
SOURCE = f"# From mendeleev 1.3.0 (MIT licence, wheel SHA-256 {SHA256}) by environments/science/extract.py\n"

ELEMENTS = """
select e.symbol, e.name, e.atomic_number, e.group_id, e.period, e.atomic_weight, e.en_pauling,
       round(i.ionization_energy, 4),
       round(e.density, 8), round(min(p.melting_point), 3)
from elements e
left join ionizationenergies i on i.atomic_number = e.atomic_number and i.ion_charge = 0
left join phasetransitions p on p.atomic_number = e.atomic_number and p.allotrope is null
group by e.atomic_number order by e.atomic_number
"""
ISOTOPES = """
select e.symbol, i.mass_number, i.half_life, i.half_life_unit, max(d.mode)
from isotopes i join elements e on e.atomic_number = i.atomic_number
join isotopedecaymodes d on d.isotope_id = i.id
where i.half_life is not null and d.intensity >= 99.5 and d.relation = '=' and d.mode in ('A', 'B-')
  and i.half_life_unit in ('second', 'minute', 'hour', 'day', 'year') and i.half_life < 1000
  and not (i.half_life_unit = 'second' and i.half_life < 1)
group by i.id order by i.atomic_number, i.mass_number
"""


def main(wheel: Path) -> None:
    """Write ``elements.csv`` and ``isotopes.csv``. Raises ``UserError`` for another wheel."""
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise UserError(f"{wheel} is not the wheel of mendeleev 1.3.0 with SHA-256 {SHA256}")
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(ZipFile(wheel).extract("mendeleev/elements.db", folder))
        _write("elements.csv", database, ELEMENTS, "symbol name number group period weight electronegativity "
               "ionisation density melting")  # fmt: skip
        _write("isotopes.csv", database, ISOTOPES, "symbol mass half_life unit decay")
        database.close()


def _write(name: str, database: sqlite3.Connection, query: str, columns: str) -> None:
    with open(FOLDER / name, "w", newline="") as file:
        file.write(SOURCE)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns.split())
        writer.writerows(database.execute(query))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
