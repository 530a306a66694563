"""Writes and reads the table of units of a run, and compares runs by it.

units.parquet   measure, statistic, sum and count of every unit, in the order of the units; for a measure that is a
                change also the sum and count that it is a change from. Its metadata say what the units are.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ralm.errors import DamagedFolderError, FolderError, UsageError
from ralm.evaluation.intervals import Column, Comparison, Statistic, Units, UnitTable
from ralm.records import DoubleArray
from ralm.runs.tables import damage_errors, select_columns
from ralm.storage import manifest, outputs
from ralm.validation import check_strings

UNITS: Final = "units.parquet"
_COLUMNS: Final = {
    "measure": pa.string(),
    "statistic": pa.string(),
    **dict.fromkeys(("sum", "count", "base_sum", "base_count"), pa.float64()),
}
_KINDS: Final = ("run", "answers", "choices")
_NOUN, _IDENTITY = b"noun", b"identity"
_REMEDY: Final = "make the run again"


def write_units(folder: Path, units: UnitTable) -> None:
    """Write the table of units into the folder of a run."""
    tables = [_rows(name, column) for name, column in units.columns.items()]
    schema = pa.schema(_COLUMNS, {_NOUN: units.noun.encode(), _IDENTITY: units.identity.encode()})
    whole = pa.concat_tables(tables) if tables else pa.schema(_COLUMNS).empty_table()
    pq.write_table(whole.cast(schema), folder / UNITS, compression="zstd")


def _rows(name: str, column: Column) -> pa.Table:
    def numbers(units: Units | None) -> list[Any]:
        if units is None:
            return [pa.nulls(len(column.units.counts_U), pa.float64())] * 2
        return [pa.array(units.sums_U), pa.array(units.counts_U.astype(np.float64))]

    texts = [pa.repeat(text, len(column.units.counts_U)) for text in (name, column.statistic)]
    return pa.table([*texts, *numbers(column.units), *numbers(column.base)], schema=pa.schema(_COLUMNS))


def read_units(folder: Path) -> UnitTable:
    """Read the table of units of a run; FolderError or DamagedFolderError if the folder holds none."""
    kind = manifest.kind_of(folder)
    if kind not in _KINDS or UNITS not in manifest.read_manifest(folder, kind=outputs.FolderKind(kind)).files:
        raise FolderError(
            f"{folder} is no run that can be compared: give folders of `ralm eval` or `ralm qa`, of a sweep those "
            f"inside it; if it is one of an earlier version, {_REMEDY}."
        )
    with damage_errors(folder, _REMEDY):
        table = pq.read_table(folder / UNITS)
        metadata = table.schema.metadata or {}
        noun, identity = metadata[_NOUN].decode(), metadata[_IDENTITY].decode()
    table = select_columns(folder, table, _COLUMNS, nullable=("base_sum", "base_count"), remedy=_REMEDY)
    measures = table["measure"].to_numpy(zero_copy_only=False)
    columns = {}
    for name in dict.fromkeys(measures.tolist()):
        rows = table.filter(pa.array(measures == name))
        [statistic, *more] = rows["statistic"].unique().to_pylist()
        if more or statistic not in get_args(Statistic):
            raise DamagedFolderError(f"{folder} is damaged: {UNITS} has an unknown statistic; {_REMEDY}.")
        numbers: list[DoubleArray] = [rows[name].to_numpy() for name in ("sum", "count", "base_sum", "base_count")]
        base = None if rows["base_sum"].null_count else Units(*numbers[2:])
        columns[name] = Column(Units(*numbers[:2]), statistic, base)
    return UnitTable(noun, identity, columns)


def compare_runs(paths: Sequence[Path | str]) -> Comparison:
    """Compare runs over the same text or the same questions with the first of them, unit by unit.

    Units are the documents of a text, its stretches of 512 targets if it is one document, or questions.

    Raises:
        UsageError: The runs have other targets or questions.
        FolderError: A folder is no run; DamagedFolderError if it is damaged.
    """
    check_strings("paths", paths)
    folders = [Path(path) for path in paths]
    tables = [manifest.open_consistently(folder, partial(read_units, folder)) for folder in folders]
    for folder, table in zip(folders, tables, strict=True):
        if table.noun != tables[0].noun or table.identity != tables[0].identity:
            raise UsageError(
                f"{folder} and {folders[0]} are runs over different targets or questions: compare runs over the same "
                "text, with the same tokenizer and the same limit of tokens, or over the same questions and answers."
            )
    return Comparison([str(folder) for folder in folders], tables)
