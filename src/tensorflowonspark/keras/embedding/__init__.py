"""An embedding whose table is divided among the workers of a ``MultiWorkerMirroredStrategy``.

- `layer`: the Keras layer.
- `ids`: ids as the layer takes them, and their combination.
- `row_exchange`: ids and rows from worker to worker, by all-to-all.
- `lookup`: one step of the layer: rows forwards, gradients backwards.
- `table`: one worker's rows, their initial values, and the slots of the optimizer beside them.
- `growing_table`: one worker's rows of a table of any ids, which get rows as they come.
- `slot_map`: from ids to slots, in arrays that grow, with a bound and eviction.
- `served_rows`: such a table in a model for serving.
- `row_optimizers`: sparse SGD, Adagrad and lazy Adam.
- `prediction`: ``predict``, in which all workers take part.
- `table_parts`: the rows as parts of a checkpoint, and those of another number of workers.
- `table_export`: models for serving, written block by block.
"""

from tensorflowonspark.keras.embedding.layer import ShardedEmbedding

__all__ = ["ShardedEmbedding"]
