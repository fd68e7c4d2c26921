"""Conversion between Arrow columns and numpy arrays: the only folder that knows both layouts.

`column_summaries` counts the nulls of a column and measures its arrays, `kinds` derives the dtype and shape of its
values, and `arrays` converts them to numpy. `result_columns` converts numpy arrays to Arrow. `layout` describes the
types of Arrow, `schema` those of Spark, and `plain_types` maps those of files to them.
"""

from tensorflowonspark.columns.arrays import Array as Array
from tensorflowonspark.columns.arrays import Ragged as Ragged
from tensorflowonspark.columns.arrays import concatenate as concatenate
from tensorflowonspark.columns.arrays import convert as convert
from tensorflowonspark.columns.arrays import lists_as_vectors as lists_as_vectors
from tensorflowonspark.columns.arrays import repeat_rows as repeat_rows
from tensorflowonspark.columns.arrays import spread as spread
from tensorflowonspark.columns.arrays import to_array as to_array
from tensorflowonspark.columns.arrays import vector_lists as vector_lists
from tensorflowonspark.columns.arrays import view as view
from tensorflowonspark.columns.arrays import zeros as zeros
from tensorflowonspark.columns.checksum import checksum as checksum
from tensorflowonspark.columns.column_summaries import merge as merge
from tensorflowonspark.columns.column_summaries import summarize as summarize
from tensorflowonspark.columns.kinds import Kind as Kind
from tensorflowonspark.columns.kinds import kind_of as kind_of
from tensorflowonspark.columns.kinds import natural_type as natural_type
from tensorflowonspark.columns.layout import flat_columns as flat_columns
from tensorflowonspark.columns.layout import integers as integers
from tensorflowonspark.columns.places import mixed_order as mixed_order
from tensorflowonspark.columns.places import places_of as places_of
from tensorflowonspark.columns.places import spark_hash as spark_hash
from tensorflowonspark.columns.places import split_column as split_column
from tensorflowonspark.columns.places import split_places as split_places
from tensorflowonspark.columns.result_columns import joined as joined
from tensorflowonspark.columns.result_columns import to_batch as to_batch
from tensorflowonspark.columns.schema import arrow_type as arrow_type
from tensorflowonspark.columns.schema import check_schema as check_schema
from tensorflowonspark.columns.schema import map_in_arrow as map_in_arrow
from tensorflowonspark.columns.schema import parse_schema as parse_schema
from tensorflowonspark.columns.schema import plainly_named as plainly_named
from tensorflowonspark.columns.schema import quoted as quoted
from tensorflowonspark.columns.schema import require_frame as require_frame
from tensorflowonspark.columns.schema import select as select
from tensorflowonspark.columns.schema import unused_name as unused_name
