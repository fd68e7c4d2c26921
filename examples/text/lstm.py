"""Which package a docstring belongs to: an LSTM on texts of different lengths, as a stage of Spark ML.

    spark-submit --master 'local[2]' examples/text/lstm.py

The texts are the docstrings of ten packages of Python's own standard library.
"""

import argparse
import ast
import sysconfig
from pathlib import Path

from pyspark.sql import SparkSession

from tensorflowonspark.ml import KerasEstimator

PACKAGES = [
    "asyncio",
    "email",
    "http",
    "importlib",
    "logging",
    "mailbox.py",
    "multiprocessing",
    "_pydecimal.py",
    "unittest",
    "xml",
]
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings():
    """Return each docstring of the packages once, with its package's number."""
    texts = {}
    for number, package in enumerate(PACKAGES):
        path = Path(sysconfig.get_path("stdlib"), package)
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if {"test", "tests"}.isdisjoint(file.parts):
                nodes = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, DEFINITIONS))
                texts.update((text, number) for text in map(ast.get_docstring, nodes) if text)
    return list(texts.items())


def build():
    """Return the network: it takes strings. Called on the workers, where the first layer adapts to their rows."""
    import keras

    words = keras.layers.TextVectorization(max_tokens=4000)
    return keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            words,  # pads each batch with zeros to its longest text
            keras.layers.Embedding(4000, 64, mask_zero=True),  # the LSTM skips the zeros
            keras.layers.Dropout(0.4),
            keras.layers.Bidirectional(keras.layers.LSTM(32, return_sequences=True)),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(len(PACKAGES), "softmax"),
        ]
    )


def naive_bayes(train, test):
    """Return the accuracy of naive Bayes on the counts of words, without their order."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    train, test = train.toPandas(), test.toPandas()
    return make_pipeline(CountVectorizer(), MultinomialNB()).fit(train.text, train.label).score(test.text, test.label)


def main():
    """Train on four fifths of the docstrings, and classify the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--words", type=int, default=60, help="of a text that are used, from its beginning")
    parser.add_argument("--output", default="lstm_model", help="where the fitted stage is saved")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("text").getOrCreate()
    texts = [(" ".join(text.split()[: options.words]), label) for text, label in docstrings()]
    table = spark.createDataFrame(texts, "text string, label int").cache()
    train, test = (table.where(f"pmod(xxhash64(text), 5) {sign} 0") for sign in ("<>", "="))

    est = KerasEstimator(build, featuresCol="text", numWorkers=options.workers, epochs=options.epochs, batchSize=32)
    est.setOptimizer("adam").setLoss("sparse_categorical_crossentropy").setMetrics(["accuracy"])
    model = est.setParams(validationData=test, seed=1).fit(train)
    model.write().overwrite().save(options.output)

    classified = model.transform(test).cache()
    rows, right = classified.count(), classified.where("prediction = label").count()
    most = max(row["count"] for row in test.groupBy("label").count().collect())
    for row in classified.dropDuplicates(["label"]).orderBy("label").limit(4).collect():
        print(f"{PACKAGES[row.label]}, classified as {PACKAGES[int(row.prediction)]}: {row.text[:60]}")
    print(f"accuracy on the {rows} held-out docstrings: {right / rows:.3f}")
    print(f"of naive Bayes on counts of words: {naive_bayes(train, test):.3f}; the largest class: {most / rows:.3f}")
    spark.stop()


if __name__ == "__main__":
    main()
