"""What a program has come to on several workers, beside one process of plain Keras."""

from fnmatch import fnmatch

from tests.support.keras_table.judging import DIFFERENT, EQUAL, REFUSED, WRONG, Verdict, differences

RELATIVE, ABSOLUTE = 1e-3, 1e-5


def judge(program, backend, reference, found, ended=""):
    """Return the verdict on a cell.

    Parameters
    ----------
    program : Program
        The row of the table.
    backend : str
        ``"tensorflow"`` or ``"jax"``.
    reference : tuple
        What `running.outcome` gave in one process.
    found : list of tuple or None
        The same of each worker; None where it did not end.
    ended : str
        The error that ended the cluster in the midst of it.
    """
    if ended or None in found:
        return Verdict(WRONG, f"did not end: {_errors(found)}; {ended[:1500]}")
    kinds = {each[0] for each in found}
    if kinds == {"refused"}:
        return _refused(program, backend, found)
    if kinds != {"value"}:
        return Verdict(WRONG, _errors(found))
    if reference is None or reference[0] != "value":
        return Verdict(WRONG, f"in one process: {reference and _errors([reference])}")
    problems = []
    for worker, each in enumerate(found):
        problems += [
            f"worker {worker}: {problem}" for problem in differences(reference[1], each[1], RELATIVE, absolute=ABSOLUTE)
        ]
        if worker:
            apart = differences(found[0][1]["weights"], each[1]["weights"], 1e-6)
            problems += [f"workers 0 and {worker} have other weights: {problem}" for problem in apart]
    known = {problem: _reason(program, problem) for problem in problems}
    wrong = [problem for problem, reason in known.items() if not reason]
    if wrong:
        return Verdict(WRONG, "; ".join(wrong[:4]))
    return Verdict(DIFFERENT, next(iter(known.values()))) if known else Verdict(EQUAL)


def _refused(program, backend, found):
    text = found[0][1]
    late = [each[2] for each in found if each[2]]
    if late:
        return Verdict(WRONG, f"refused after {late[0]} steps: {text[:600]}")
    expected = program.refused.get(backend)
    if expected is None:
        return Verdict(WRONG, f"should be equal, and is refused: {text[:600]}")
    if not all(expected in each[1] for each in found):
        return Verdict(WRONG, f"is refused without {expected!r}: {text[:600]}")
    return Verdict(REFUSED, text)


def _errors(found):
    texts = []
    for worker, each in enumerate(found):
        if each is None:
            texts.append(f"worker {worker}: no outcome")
        elif each[0] == "error":
            rest = "" if texts else f" | {each[1][-2500:]}"
            texts.append(f"worker {worker}: {each[2][:400]}{rest}")
        else:
            texts.append(f"worker {worker}: {each[0]} {each[1] if each[0] == 'refused' else ''}")
    return "; ".join(texts)


def _reason(program, problem):
    path = problem.split(": ")[1]
    return next((reason for pattern, reason in program.different.items() if fnmatch(path, pattern)), "")
