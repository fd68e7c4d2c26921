"""A small language model of keras-hub, fine-tuned by LoRA on a DataFrame of texts, by two workers on JAX.

    spark-submit --master 'local[2]' examples/lora/finetune.py

The weights are random, since nothing is downloaded: a preset of your own has real ones (README.md).
"""

import argparse
import math
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tensorflowonspark as tfos
from tensorflowonspark import storage
from tensorflowonspark.ml import KerasModel

LENGTH = 48  # characters of a text, at most
CHARACTERS = " abcdefghijklmnopqrstuvwxyz,."  # the tokens; 0 fills up


def make_preset(directory):
    """Write a preset of a tiny GPT-2 with random weights, as those that are downloaded are."""
    import keras
    import keras_hub

    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 256}
    vocabulary = {"vocabulary_size": len(CHARACTERS) + 1, "max_sequence_length": LENGTH}
    keras_hub.models.GPT2Backbone(**sizes, **vocabulary, dropout=0.0).save_to_preset(directory)


def texts(spark, subject, start, count):
    """Return a DataFrame of sentences with their tokens, and which of them are no padding."""
    number = "element_at(split('no one two three four five six seven eight nine', ' '), int({}) + 1)"
    one, two = ("pmod(hash(id, 1), 5)", "pmod(hash(id, 2), 5)")
    sentence = f"concat('{subject} has ', {number.format(one)}, ' and ', {number.format(two)}, ', so ', " \
               f"{number.format(f'{one} + {two}')}, '.')"  # fmt: skip
    tokens = f"transform(split(rpad(text, {LENGTH}, '_'), '(?!$)'), c -> int(instr('{CHARACTERS}', c)))"
    return (
        spark.range(start, start + count)
        .selectExpr(f"{sentence} as text")
        .withColumn("token_ids", f.expr(tokens))
        .withColumn("padding_mask", f.expr("transform(token_ids, t -> int(t > 0))"))
    )


def train(args, ctx):
    """Fine-tune on each worker; the chief writes the adapter, and a model that scores texts."""
    import keras
    import keras_hub

    ctx.layout("fsdp")  # large kernels, and their slots, are divided among the workers
    backbone = keras_hub.models.Backbone.from_preset(args["preset"])
    backbone.enable_lora(rank=8, target_layer_names=args["layers"])

    def errors(tokens, logits):
        """Return the mean surprise at each text's next characters, without the padding."""
        wanted = keras.ops.cast(tokens[:, 1:], "int32")  # Keras gives labels as float32
        real = keras.ops.cast(wanted > 0, "float32")
        chances = keras.ops.log_softmax(logits[:, :-1])
        found = keras.ops.take_along_axis(chances, wanted[..., None], axis=-1)[..., 0]
        return -keras.ops.sum(found * real, axis=1) / keras.ops.sum(real, axis=1)

    columns = ["token_ids", "padding_mask"]
    inputs = {name: keras.Input((LENGTH,), name=name, dtype="int32") for name in columns}
    logits = backbone.token_embedding(backbone(inputs), reverse=True)
    model = keras.Model(inputs, logits)
    model.compile(keras.optimizers.Adam(1e-2), errors)
    options = {"features": columns, "label": "token_ids"}
    history = model.fit(
        ctx.batches(32, **options),
        epochs=args["epochs"],
        validation_data=ctx.validation_dataset(32, **options),
        callbacks=[ctx.checkpoint(args["checkpoints"]).callback()],
        verbose=0,
    ).history
    if ctx.is_chief:
        storage.publish(args["adapter"], backbone.save_lora_weights)
    score = keras.layers.Lambda(lambda both: errors(*both), output_shape=(), name="surprise")
    ctx.export(keras.Model(inputs, score([inputs["token_ids"], logits])), args["export"])
    return history["val_loss"], sum(math.prod(each.shape) for each in model.trainable_variables), model.count_params()


def main():
    """Fine-tune, and score sentences of both kinds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--preset", help="a directory with a preset that all workers see; by default a tiny one is made"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--output", default="lora", help="a directory that all workers see")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("lora").getOrCreate()
    output = str(Path(options.output).resolve())
    args = {
        "preset": options.preset or f"{output}/preset",
        "layers": ["query", "value", "feedforward_intermediate_dense", "feedforward_output_dense"],
        "epochs": options.epochs,
        "checkpoints": f"{output}/checkpoints",
        "adapter": f"{output}/adapter.lora.h5",
        "export": f"{output}/scores",
    }
    if not options.preset:
        make_preset(args["preset"])
    data = tfos.Data(texts(spark, "ada", 0, options.rows), validation=texts(spark, "ada", options.rows, 128))
    losses, trained, all_weights = tfos.run(
        spark, train, args, num_workers=options.workers, data=data, env={"KERAS_BACKEND": "jax"}
    ).chief
    print(
        f"trained {trained:,} of {all_weights:,} weights; surprise of a character {losses[0]:.3f} -> {losses[-1]:.3f}"
    )
    print(f"adapter: {Path(args['adapter']).stat().st_size:,} bytes")
    stage = KerasModel.from_saved_model(args["export"], featuresCols=["token_ids", "padding_mask"])
    both = texts(spark, "ada", 10_000, 64).unionByName(texts(spark, "zyx qqq", 10_000, 64))
    scored = stage.transform(both).groupBy(f.substring("text", 1, 3).alias("subject")).agg(f.avg("prediction"))
    for subject, mean in sorted(scored.collect()):
        print(f"surprise at sentences on {subject}: {mean:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
