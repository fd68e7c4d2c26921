"""What may be shown of settings, variables, command lines and texts: all outputs for others leave out secrets by this.

Values of settings and variables are shown if their names are known to hold no secret, or if they are numbers and the
like; other names' values are hidden. Texts lose what follows the names of secrets, and what looks like one.
"""

import re
from collections.abc import Iterable

HIDDEN = "<redacted>"
_SECRET = re.compile(
    r"secret|passw|passphrase|token(?!iz)|credential|bearer|basic$|authorization|(access|account|api|private|secret)[._-]?key|"
    r"keytab|principal|signature|(^|[._-])(sas|sig|pwd?|pass|pat|pin|auth|cookie|dsn)([._-]|$)|[._-]key$|^key$",
    re.IGNORECASE,
)
# Settings of Spark and variables that hold no secret, as far as their values are cleaned.
_VARIABLES = (
    r"SPARK_(HOME|CONF_DIR|LOCAL_\w+|LOG_DIR|MASTER\w*|WORKER_\w+|DIST_CLASSPATH|REMOTE|SUBMIT_OPTS|DAEMON_\w+|"
    r"EXECUTOR_\w+|DRIVER_\w+|SCALA_VERSION|USER|ENV_LOADED|PID_DIR|CONNECT_\w+)|"
    r"PYSPARK_(PYTHON|DRIVER_PYTHON\w*|SUBMIT_ARGS|PIN_THREAD)|PYTHON[A-Z]+|JAVA_(HOME|OPTS|TOOL_OPTIONS)|"
    r"HADOOP_(HOME|CONF_DIR|USER_NAME|CLASSPATH|OPTS)|YARN_CONF_DIR|TFOS_\w+|TENSORFLOW_PORT|TF_(?!VAR_)\w+|"
    r"KERAS_\w+|CUDA\w*|NCCL_\w+|XLA_\w+|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_(PREFIX|DEFAULT_ENV)|MASTER|"
    r"DATABRICKS_RUNTIME_VERSION|KUBERNETES_SERVICE_HOST"
)
_SETTINGS = (
    r"spark\.(app\.(id|name)|master|remote|home|submit\.(deployMode|pyFiles)|files|archives|jars(\.packages)?|local\.dir|"
    r"cores\.max|default\.parallelism|log\.level|logConf|serializer|extraListeners|plugins|"
    r"(driver|executor)\.(cores|memory\w*|instances|host|port|bindAddress|blockManager\.port|maxResultSize|"
    r"extraClassPath|extraLibraryPath|(extra|default)JavaOptions|heartbeatInterval|pyspark\.memory|resource\.[\w.]+)|"
    r"(task|dynamicAllocation|barrier|locality|scheduler|speculation|stage|shuffle|broadcast|rdd|storage|memory|network|"
    r"rpc|port|reducer|excludeOnFailure|eventLog|ui|history|python|pyspark|io|kryo\w*|tensorflowonspark|worker)\.[\w.]+|"
    r"authenticate(\.enableSaslEncryption)?|ssl(\.\w+)?\.enabled|"
    r"sql\.(shuffle|execution|adaptive|session|sources|files|parquet|orc|ansi|warehouse|autoBroadcastJoinThreshold|"
    r"extensions|catalogImplementation|defaultCatalog|artifact)[\w.]*|"
    r"hadoop\.fs\.(defaultFS|s3a\.(endpoint[\w.]*|path\.style\.access|impl|aws\.credentials\.provider))|"
    r"yarn\.(queue|tags|stagingDir|maxAppAttempts|archive|jars|dist\.\w+|am\.(cores|memory\w*)|submit\.\w+)|"
    r"kubernetes\.(namespace|container\.image[\w.]*|file\.upload\.path|driver\.pod\.name|local\.dirs\.tmpfs|"
    r"allocation\.[\w.]+|(driver|executor)\.(podTemplate\w+|request\.\w+|limit\.\w+|deleteOnTermination|"
    r"useDriverPodIP|volumes\.[\w.-]+)|authenticate\.driver\.serviceAccountName)|"
    rf"(executorEnv|kubernetes\.driverEnv|yarn\.appMasterEnv)\.({_VARIABLES}))"
)
_PUBLIC = re.compile(rf"{_VARIABLES}|{_SETTINGS}|(java|javax|sun|jdk|log4j2?|io\.netty|user|file)\.[\w.]+")
_PLAIN = re.compile(r"true|false|[+-]?\d{1,9}(\.\d{1,9})?\s?(%|[kmgtp]i?b?|b|ns|us|ms|s|m|h|d|min)?", re.IGNORECASE)
# A name and what may stand between it and its value; names may follow each other, as in `--conf name=value`.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]+)([\"']?\s*[=:]\s*|\s+)")
_QUOTED = {'"': re.compile(r'(?:\\.|[^"\\])*', re.DOTALL), "'": re.compile(r"[^']*")}
_WORD = r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s{}])*"""
_URL_CHARACTERS = 999  # before a name in which a `?` is looked for: a bound for the time of long texts
_LONGEST_NAME = 256  # of a setting that is known: a bound for the time of the pattern
_SHORT = ("-p",)  # options that many programs have for a password; a port is a number, and shown
_LEAST_TOKEN = 16  # characters, of small letters alone
_SCHEMES = ("bearer", "basic", "token")  # of the header Authorization
_WORDS = {ends: re.compile(_WORD.format(ends), re.DOTALL) for ends in ("", "&")}
_USERS = (
    re.compile(r"(://)[^/\s'\"]{0,999}(?=@)"),  # a bound, for time that does not grow with the square of a text
    re.compile(r"(://)[^/\s@:'\"]{1,999}:(?!\d+(?:[/?,\s]|$))[^\s'\"]{0,999}(?=@)"),  # a password with a slash
    re.compile(r"(jdbc:\w{1,99}:\w{1,99}:)(?![/@])[^\s'\"]{0,999}(?=@)"),  # Oracle's user/password@
    # user:password@host, without a scheme; no digest of an image
    re.compile(r"((?<![\w.:/@+<>-]))[\w.+-]{1,64}:[^\s/@:'\"<>]{1,256}(?=@(?!sha256:)[A-Za-z0-9])"),
)
# Keys of AWS, GitHub, GitLab, Google, Slack, OpenAI, Hugging Face and Databricks, JSON Web Tokens, and private keys.
# A Web Token begins at no place within another's characters, so that each is looked at once.
_SHAPES = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[opsur]_\w{30,}|github_pat_\w{30,}|xox[abeprs]-[\w-]{10,}|sk-[\w-]{20,}|hf_\w{30,}|"
    r"glpat-[\w-]{16,}|AIza[\w-]{30,}|dapi[0-9a-f]{32})|(?<![\w-])eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?|"
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)",
    re.DOTALL,
)


def is_secret(name: str) -> bool:
    """Return whether a setting or variable of this name holds a secret, or the name of a person.

    Examples
    --------
    >>> is_secret("spark.hadoop.fs.s3a.access.key"), is_secret("spark.executor.cores")
    (True, False)
    """
    return _SECRET.search(name) is not None


def shown_value(name: str, value: str) -> str:
    """Return what may be shown of the value of a setting of Spark's, or of a variable.

    Examples
    --------
    >>> shown_value("spark.executor.memory", "2g"), shown_value("spark.sql.catalog.prod.pw", "abc")
    ('2g', '<redacted>')
    >>> shown_value("spark.driver.extraJavaOptions", "-Dpw=abc -XX:+UseG1GC")
    '-Dpw=<redacted> -XX:+UseG1GC'
    """
    return HIDDEN if _hides(name, value) else without_secrets(value)


def _hides(name: str, value: str) -> bool:
    if is_secret(name):
        return True
    return not _is_public(name) and _PLAIN.fullmatch(value) is None


def _is_public(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _PUBLIC.fullmatch(name) is not None


def shown_words(words: Iterable[str]) -> list[str]:
    """Return what may be shown of the words of a command line.

    Examples
    --------
    >>> shown_words(["--conf", "spark.x.credential=a b", "train.py", "--password", "c", "--lr", "0.1"])
    ['--conf', 'spark.x.credential=<redacted>', 'train.py', '--password', '<redacted>', '--lr', '0.1']
    """
    found = []
    option = ""
    for word in words:
        head, name, sign, value = "", *word.partition("=")
        if name in ("--conf", "-c") and sign:
            head, (name, sign, value) = f"{name}=", value.partition("=")
        if option and (is_secret(option) or (option in _SHORT and _hides(option, word))):
            found.append(HIDDEN)
        elif sign and (head or option in ("--conf", "-c")):
            found.append(f"{head}{name}={shown_value(name, value)}")
        elif sign and is_secret(name):
            found.append(f"{name}={HIDDEN}")
        else:
            found.append(without_secrets(word))
        option = word if word.startswith("-") and not sign else ""
    return found


def without_secrets(text: str) -> str:
    """Return a text without the values that follow names of secrets, and without passwords in URLs.

    In doubt, too much is left out.

    Examples
    --------
    >>> without_secrets("dashboard: http://h1:8080/?token=abc, postgresql://me:pw@db/x, api_key='a b'")
    "dashboard: http://h1:8080/?token=<redacted> postgresql://<redacted>@db/x, api_key='<redacted>'"
    """
    for pattern in _USERS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    parts, done = [], 0
    for match in _NAMED.finditer(text):
        name, between = match[1], match[2]
        if match.end() <= done or (between.isspace() and not _takes_next_word(name)) or not _may_hide(name):
            continue
        if not is_secret(name) and _is_public(name.removeprefix("-D")):
            continue  # whatever its value is, which may hold other names
        begin, end = _value(text, match)
        is_scheme = match.start() < done  # of a header
        if name.lower() == "token" and between.isspace() and not is_scheme and _is_word(text[begin:end]):
            continue  # of a sentence
        if end > max(begin, done) and _hides(name.removeprefix("-D"), text[begin:end]):
            parts += [text[done:begin], HIDDEN]
            done = end
    return _SHAPES.sub(HIDDEN, "".join([*parts, text[done:]]))


def _is_word(value: str) -> bool:
    return len(value) < _LEAST_TOKEN and value.rstrip(".,;:!?)").isalpha() and value.islower()


def _may_hide(name: str) -> bool:
    """Return whether a text may be without the value after a name: that of a secret, or of a setting."""
    return name.startswith(("-D", "spark.")) or name in _SHORT or is_secret(name)


def _takes_next_word(name: str) -> bool:
    """Return whether a name is followed by its value without a sign between: an option, a header's scheme."""
    return name.startswith("-") or name.lower() in _SCHEMES


def _value(text: str, match: "re.Match[str]") -> tuple[int, int]:
    """Return where the value after a name begins and ends."""
    begin, quote = match.end(), text[match.start() - 1 : match.start()]
    if quote not in _QUOTED or match[2][0] in _QUOTED:  # not of the whole assignment: of the value
        quote = text[begin : begin + 1]
        begin += quote in _QUOTED
    if quote in _QUOTED:
        end = begin
        while (found := _QUOTED[quote].match(text, end)) and (
            quote := text[found.end() + 1 : found.end() + 2]
        ) in _QUOTED:
            end = found.end() + 2  # a shell's 'a'"'"'b'
        assert found is not None
        return begin, found.end()
    before = text[max(0, match.start() - _URL_CHARACTERS) : match.start()].rsplit(" ", maxsplit=1)[-1]
    found = _WORDS["&" if "?" in before else ""].match(text, begin)  # "&": a parameter of a URL
    assert found is not None
    return begin, found.end()
