"""This file holds the largest token id that a tokenizer names and its added tokens, found without building the vocabulary, and which
of the added ones have a row that was never trained.

tokenizer.json has `added_tokens` (a list of {"id", "content"}) near its begin and `model.vocab` behind it, a map of ids or a list
(Unigram); of a large file only the added tokens are read, which are the ones that overflow. tokenizer_config.json has
`added_tokens_decoder` ({id: {"content"}}).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from .bytewise import TensorBytes, element, one_word
from .checkpoint import TensorRecord
from .errors import FormatError, ReadError
from .inspectors.rule import UntrainedRows, Vocabulary
from .loaders.sharded import read_json
from .sources import Folder

FULL = 2 << 20  # bytes; a larger tokenizer.json is searched, not parsed: 11 MB take 0.2 s and 60 MB as Python objects
HEAD = 1 << 20  # bytes at the begin in which added_tokens stands
REMOTE_FULL, REMOTE_HEAD = 256 << 10, 64 << 10  # bytes; the same two where they come over a network (256 added tokens have 46 kB)
FILES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json")
MAX_ID = 1 << 31
MAX_ADDED = 4096  # added tokens whose rows are looked at; Llama 3 has 256
MAX_ROWS_NBYTES = 4 << 20  # read of their rows
_ADDED = re.compile(r'"added_tokens"\s*:\s*(?=\[)')


def small(folder: Folder) -> list[str]:
    """The tokenizer files that will be read whole."""
    limit = REMOTE_FULL if folder.remote else FULL
    return [name for name in FILES if folder.exists(name) and (folder.entry(name).nbytes <= limit or name != FILES[0])]


def largest(folder: Folder) -> tuple[Vocabulary | None, list[tuple[str, str]]]:
    """(the token with the largest id over the tokenizer files beside the weights, what a server did not give with the reason). None
    if there are no such files or they are broken."""
    found: list[tuple[int, str, str]] = []
    added: dict[int, str] = {}
    unread: list[tuple[str, str]] = []
    for name, ids in zip(FILES, (_tokenizer, _decoder, _flat), strict=True):
        if folder.exists(name):
            try:
                for number, token, is_added in ids(folder, name):
                    found.append((number, token, name))
                    if is_added:
                        added.setdefault(number, token)
            except ReadError as error:
                unread.append((name, error.what))
            except FormatError:
                continue  # a broken tokenizer is no fault of the weights, and others will name it
    if not found:
        return None, unread
    number, token, file = max(found, key=lambda entry: entry[0])
    return Vocabulary(file=file, token=token, largest=number, added=added), unread


def untrained(matrix: TensorRecord, added: Iterable[int], padding: object, data: TensorBytes) -> UntrainedRows | None:
    """The rows of added tokens that no training has touched: one number repeated, or byte for byte the row of another added token.

    A row of zeros for the padding token is what `nn.Embedding(padding_idx=…)` keeps it at. None if there is no such row, or if looking
    would cost requests.
    """
    height = matrix.shape[0] if len(matrix.shape) == 2 else 0
    width = matrix.nbytes // height if height else 0
    ids = sorted(number for number in added if number < height)[:MAX_ADDED]
    if not ids or not width or matrix.nbytes % height or len(ids) * width > MAX_ROWS_NBYTES or not data.readable(matrix) or data.remote:
        return None
    constant: list[int] = []
    alike: dict[bytes, list[int]] = {}
    for number in ids:
        row = data.read(matrix, number * width, width)
        if one_word(row, row[: element(matrix)]):
            if number != padding or any(row):
                constant.append(number)
        else:
            alike.setdefault(row, []).append(number)
    equal = [number for group in alike.values() if len(group) > 1 for number in group]
    return UntrainedRows(matrix=matrix, constant=tuple(constant), equal=tuple(equal)) if constant or equal else None


Token = tuple[int, str, bool]
"""(id, text, whether it was added to the vocabulary that the tokenizer was trained with)."""


def _tokenizer(folder: Folder, name: str) -> Iterator[Token]:
    source = folder.open(name)
    if source.nbytes <= (REMOTE_FULL if folder.remote else FULL):
        content = read_json(folder, name)
        if isinstance(content, dict):
            yield from _added(content.get("added_tokens"))
            model = content.get("model")
            if isinstance(model, dict):
                yield from _vocab(model.get("vocab"))
        return
    head = source.read(0, min(source.nbytes, REMOTE_HEAD if folder.remote else HEAD)).decode("utf-8", "replace")
    match = _ADDED.search(head)
    if match:
        try:
            yield from _added(json.JSONDecoder().raw_decode(head, match.end())[0])
        except (ValueError, RecursionError):
            return


def _added(tokens: Any) -> Iterator[Token]:
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict) and _is_id(token.get("id")):
            yield token["id"], str(token.get("content", "")), True


def _vocab(vocab: Any) -> Iterator[Token]:
    if isinstance(vocab, dict):
        known = [(number, token) for token, number in vocab.items() if _is_id(number)]
        if known:
            yield *max(known), False
    elif isinstance(vocab, list) and vocab:
        yield len(vocab) - 1, str(vocab[-1])[:60], False


def _decoder(folder: Folder, name: str) -> Iterator[Token]:
    content = read_json(folder, name)
    decoder = content.get("added_tokens_decoder") if isinstance(content, dict) else None
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        if key.isdecimal() and len(key) <= 10 and _is_id(int(key)):
            yield int(key), str(token.get("content", "")) if isinstance(token, dict) else "", True


def _flat(folder: Folder, name: str) -> Iterator[Token]:
    content = read_json(folder, name)
    for token, number in content.items() if isinstance(content, dict) else ():
        if _is_id(number):
            yield number, token, True


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number < MAX_ID
