"""Keras 3 on JAX: several workers of a cluster as the processes of one JAX program.

Nothing here imports JAX or Keras before the program does, and nothing imports TensorFlow.

- `jax_processes`: ``jax.distributed`` is initialised when JAX is imported; equal seeds; ``DataParallel`` by default.
- `layouts`: `ctx.layout` divides variables and batches among the devices of all workers.
- `value_placement`: values are placed on the devices of all workers without an exchange, and read from them.
- `data_adapters`, `equal_batches`: what Keras reads data through; all batches have the same number of rows on all
  workers.
- `short`: steps take out the rows that fill up a batch.
- `building`: models are built by the shapes of a feed's batches, which a stream has only once.
- `agreement`: all workers stop at the same step, and have the same model.
- `model_methods`: the calls of all workers are compared; callbacks that write files run on the chief; ``predict`` is
  local.
- `saving_alone`: models are saved by the chief alone.
- `training_state`: the state of a training as files of arrays, for checkpoints.
"""
