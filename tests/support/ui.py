"""What Spark's UI shows: it reads the same store, which is there without the page too."""


def jobs(spark):
    """Return the jobs of an application, the last one first, as (description, group, state, number of tasks)."""
    found = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    every = [found.apply(number) for number in range(found.size())]
    return [(_text(job.description()), _text(job.jobGroup()), str(job.status()), job.numTasks()) for job in every]


def stages(spark):
    """Return the names of an application's stages."""
    store = spark.sparkContext._jsc.sc().statusStore()
    gateway = spark.sparkContext._gateway
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    found = store.stageList(None, False, False, quantiles, None)
    return [found.apply(number).name() for number in range(found.size())]


def _text(option):
    return str(option.get()) if option.isDefined() else ""
