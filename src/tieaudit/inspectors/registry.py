"""This file holds the list of all rules and how they are chosen and run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ..errors import OptionError
from ..report import Finding, ordered
from . import adapters, changes, claims, duplicates, files, live, quantization, shards, slack, ties
from .rule import Case, Rule

FAMILIES = (ties, claims, duplicates, slack, shards, files, adapters, quantization, live, changes)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return tuple(sorted((rule for family in FAMILIES for rule in family.RULES), key=lambda rule: rule.code))


def matching(words: Iterable[str], option: str) -> frozenset[str]:
    """Codes of the rules that the words name: a code, a prefix of codes (`TIE2`), or a name. OptionError for a word that names none."""
    codes: set[str] = set()
    for given in words:
        word = f"TIE{given}" if given.isdecimal() else given
        found = {rule.code for rule in all_rules() if word.lower() == rule.name or (word and rule.code.startswith(word.upper()))}
        if not found:
            raise OptionError(option, given, "a code, a prefix such as TIE2, or a name; `tieaudit rules` lists them")
        codes |= found
    return frozenset(codes)


def run(case: Case, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[tuple[Finding, ...], int]:
    """(findings in order, bytes wasted in all). A byte that two findings call wasted counts once."""
    chosen = matching(select, "--select") or {rule.code for rule in all_rules()}
    chosen -= matching(ignore, "--ignore")
    findings, waste = [], {}
    for rule in all_rules():
        if rule.code in chosen:
            for finding, bytes_of in rule.findings(case):
                findings.append(finding)
                waste.update({(file, what): nbytes for file, what, nbytes in bytes_of})
    whole = {file for file, what in waste if what == "all"}
    total = sum(nbytes for (file, what), nbytes in waste.items() if what == "all" or file not in whole)
    return ordered(findings), total
