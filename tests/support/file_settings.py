"""What Spark's own sources of files obey, besides the settings that `storage.listing` and `tfrecords.options` name."""

# Options of every source of files in Spark, by their names there.
OBEYED_OPTIONS = (
    "basePath", "columnNameOfCorruptRecord", "compression", "ignoreCorruptFiles", "ignoreInvalidPartitionPaths",
    "ignoreMissingFiles", "maxBytesPerTrigger", "maxFilesPerTrigger", "maxRecordsPerFile", "mode", "modifiedAfter",
    "modifiedBefore", "partitionBy", "partitionOverwriteMode", "pathGlobFilter", "recursiveFileLookup", "timeZone",
)  # fmt: skip
REFUSED_OPTIONS = (
    "allowOverwrites", "cleanSource", "discardCachedInputRatio", "encoding", "fileNameOnly", "latestFirst",
    "maxCachedFiles", "maxFileAge", "mergeSchema", "samplingRatio", "sourceArchiveDir",
)  # fmt: skip
# Settings that change neither which rows are read or written, nor their values; or that are of other formats.
WITHOUT_MEANING = (
    "spark.sql.files.maxPartitionNum", "spark.sql.files.minPartitionNum", "spark.sql.files.openCostInBytes",
    "spark.sql.hive.filesourcePartitionFileCacheSize", "spark.sql.hive.manageFilesourcePartitions",
    "spark.sql.maxConcurrentOutputFileWriters", "spark.sql.sources.bucketing", "spark.sql.sources.default",
    "spark.sql.sources.disabledJdbcConnProviderList", "spark.sql.sources.fileCompressionFactor",
    "spark.sql.sources.ignoreDataLocality", "spark.sql.sources.parallelPartitionDiscovery",
    "spark.sql.sources.structPredicateDecompose", "spark.sql.sources.useV1SourceList", "spark.sql.sources.v2",
    "spark.sql.sources.validatePartitionColumns", "spark.sql.streaming.fileSource",
    "spark.sql.streaming.schemaInference",
)  # fmt: skip
