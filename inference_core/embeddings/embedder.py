"""Embedder: a LangChain ``Embeddings`` object with a name for its vector space, made safe for the reply path.

Vectors come back checked and normalised. A model that must be loaded is loaded in the background; until then, calls
fail at once. Nothing is embedded inside a lock or a transaction. The protocols say what a model may offer beyond
LangChain's ``Embeddings``. Documents and queries become vectors as the index stores them: by passage, packed, with
those of content tokens.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from langchain_core.embeddings import Embeddings

from inference_core.effects import Effect, Operation, WorkerPool, settle
from inference_core.errors import DeadlineExceeded, EmbeddingError, EmbeddingMismatch, raised_as
from inference_core.memory.redaction import told_error
from inference_core.retrieval.analysis import is_content_token, language_of
from inference_core.retrieval.documents import QueryVectors, passages

if TYPE_CHECKING:
    from inference_core.retrieval.vectors import Floats


class TextEncoding(NamedTuple):
    """A text's vector and, if the model gives them, its tokens' vectors (tokens, dimensions) and names.

    Vectors have unit length. Token vectors may have fewer dimensions than the text's; start and end tokens have none.
    ``pieces`` are in lower case; those that continue a word begin with "##", as in BERT's vocabulary. ``space`` is the
    vector space that the vectors are in, for a model with several. ``necessity`` is, for a query, the log-odds that a
    reply to it needs memory (`scripts/fit_necessity.py`); None if the model cannot tell.
    """

    vector: Floats
    tokens: Floats | None = None
    pieces: tuple[str, ...] = ()
    space: int = 0
    necessity: float | None = None


@runtime_checkable
class TokenEmbeddings(Protocol):
    """What late interaction requires of a LangChain ``Embeddings`` object in addition."""

    def encode(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each text."""
        ...

    def encode_query(self, text: str) -> TextEncoding:
        """The encoding of a query."""
        ...


@runtime_checkable
class SpacedEmbeddings(Protocol):
    """A model with a vector space for each group of languages."""

    def encode_in(self, texts: list[str], languages: list[str]) -> list[TextEncoding]:
        """The encoding of each text, in the space of its language (ISO 639-1; "" if unknown)."""
        ...

    def encode_query_in(self, text: str, spaces: frozenset[int]) -> list[TextEncoding]:
        """The encoding of a query in each of ``spaces``."""
        ...


@runtime_checkable
class QueryBatches(Protocol):
    """A `TokenEmbeddings` that encodes several queries at once, so that callers at the same time share the work."""

    def encode_queries(self, texts: list[str]) -> list[TextEncoding]:
        """The encoding of each query, the same as by itself."""
        ...


@runtime_checkable
class SpacedQueryBatches(Protocol):
    """A `SpacedEmbeddings` that does so."""

    def encode_queries_in(self, texts: list[str], spaces: frozenset[int]) -> list[list[TextEncoding]]:
        """The encodings of each query in each of ``spaces``."""
        ...


class Passage(NamedTuple):
    """A text to embed, and the language of the whole that it is part of (ISO 639-1; "" if unknown)."""

    text: str
    language: str = ""


Encodings = list[TextEncoding]


T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_WORKERS: Final = 2
_QUESTIONS_AT_ONCE: Final = 8
"""Most models are servers, and a reply waits for a question: eight do not wait for each other, nor for documents."""
_PATIENCE: Final = 3
_PAUSE_S: Final = 5.0
_SILENCE_S: Final = 2.0
"""A model that does not answer for this long is not called for a while. Callers give up on vectors earlier than this,
so that further calls would only delay everybody."""
_WARNING_PERIOD_S: Final = 60.0
_PARTING_S: Final = 2.0
_LOADING_S: Final = 20.0
_MATRIX: Final = 2
_loaders: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_native_calls: set[object] = set()
"""Running calls of models loaded in this process, which are native code."""
_fewer_calls: Final = threading.Condition()
_TEXTS_AT_ONCE: Final = 32
_READ_CHARS: Final = 20_000
"""Only so many characters of a text are embedded: models read fewer, or refuse longer texts."""


class _QueryText(NamedTuple):
    text: str
    spaces: frozenset[int]


_Waiting = tuple[Sequence[Passage], "Future[Encodings]"]


@atexit.register
def _finish_native_calls() -> None:
    """Waits for native code: if the interpreter ends while it runs, the process aborts."""
    for loader in list(_loaders):
        loader.join(_LOADING_S)
    with _fewer_calls:
        _fewer_calls.wait_for(lambda: not _native_calls, _LOADING_S)


@contextmanager
def _native_call() -> Generator[None]:
    call = object()
    with _fewer_calls:
        _native_calls.add(call)
    try:
        yield
    finally:
        with _fewer_calls:
            _native_calls.discard(call)
            _fewer_calls.notify_all()


class Embedder:
    """Embeds texts with ``model``. ``fingerprint`` names its vector space; vectors of different spaces never mix.

    ``load`` runs once, in the background, before the model can answer; None if it needs no loading. With a ``load``, or
    if the model has a true ``runs_in_process`` or several vector spaces, a search embeds its query in its own thread,
    in the spaces that the searched texts are in.
    """

    def __init__(self, model: Embeddings, fingerprint: str, load: Callable[[], None] | None = None) -> None:
        self.model = model
        self.fingerprint = fingerprint
        self.dimensions: int | None = None
        self.failure: str | None = None
        self._expected: tuple[int, str] | None = None
        self.has_languages = isinstance(model, SpacedEmbeddings)
        """Whether the model has a vector space for each group of languages."""
        self._gives_tokens = isinstance(model, TokenEmbeddings)
        self._load = load
        self._pool = WorkerPool(_WORKERS, "embedder", hang_s=_SILENCE_S)
        self._questions = WorkerPool(_QUESTIONS_AT_ONCE, "embedder-question", hang_s=_SILENCE_S)
        for pool in (self._pool, self._questions):
            weakref.finalize(self, pool.close).atexit = False  # engines that are closed at exit still embed
        self._joined = JoinedCalls(self._pool, self._embedded)
        self._shared = SharedQueries(self._embedded_together)
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._first_loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._when_loaded: list[Callable[[], None]] = []
        self._failures = 0
        self._last_failure = ""
        self._paused_until = 0.0
        self._silent_until = 0.0
        self._is_native = load is not None
        self._silence = _Silence()
        self._has_batches = isinstance(model, SpacedQueryBatches if self.has_languages else QueryBatches)
        self.runs_in_process = self._is_native or self.has_languages or getattr(model, "runs_in_process", False) is True
        if load is None:
            self._ready.set()

    @property
    def is_ready(self) -> bool:
        """Whether the model can answer now. After three failures in a row, it is not called for five seconds."""
        return self._ready.is_set() and self.failure is None and time.monotonic() >= self._paused_until

    @property
    def is_loaded(self) -> bool:
        """Whether loading has finished and succeeded."""
        return self._ready.is_set() and self.failure is None

    @property
    def is_loading(self) -> bool:
        """Whether it has to be loaded, and that has neither finished nor failed."""
        return not self._ready.is_set()

    def when_loaded(self, call: Callable[[], None]) -> None:
        """Runs ``call``, in any thread, when loading has finished or failed; at once if it already has."""
        with self._lock:
            if not self._ready.is_set():
                self._when_loaded.append(call)
                return
        call()

    def warm(self) -> None:
        """Starts loading the model in the background; returns at once."""
        load, self._load = self._load, None
        if load is None:
            return

        def warm() -> None:
            loaded: Future[None] = Future()
            settle(loaded, load)
            if error := loaded.exception():  # recall goes on without vectors
                self.failure = f"The embedding model could not be loaded: {error}"
                _LOG.warning("%s; recall is lexical only", self.failure)
            with self._lock:
                self._ready.set()
                calls, self._when_loaded = self._when_loaded, []
            for call in calls:
                call()

        loader = threading.Thread(target=warm, name="embedder-load", daemon=True)
        _loaders.add(loader)
        loader.start()

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Waits until loading has finished or failed. Returns whether the model can answer."""
        return self._ready.wait(timeout) and self.is_ready

    async def loaded(self, timeout: float) -> None:
        """Waits until loading has finished or failed, for at most ``timeout`` seconds, without holding up a thread."""

        def start() -> Future[None]:
            future: Future[None] = Future()
            self.when_loaded(lambda: settle(future, lambda: None))
            return future

        with suppress(DeadlineExceeded):
            await Effect(start, timeout=timeout)

    def expect(self, dimensions: int, refusal: str) -> None:
        """Refuses vectors of any other number of ``dimensions``, with the message ``refusal``.

        Raises EmbeddingMismatch at once if the model has already made others; else its first vectors may raise it.
        """
        self._expected = (dimensions, refusal)
        if self.dimensions not in (None, dimensions):
            raise EmbeddingMismatch(refusal)

    def documents(self, passages: Sequence[Passage], timeout: float | None = None) -> Operation[Encodings]:
        """An encoding of each passage. Raises EmbeddingError, EmbeddingMismatch or DeadlineExceeded."""
        given = _readable(passages)
        return self._asked(given, partial(self._joined.submit, given), timeout, inline=partial(self._embedded, given))

    def query(
        self, text: str, timeout: float | None = None, spaces: frozenset[int] = frozenset()
    ) -> Operation[Encodings]:
        """The encoding of a query in each of ``spaces``; a single one if the model has only one space.

        Raises EmbeddingError or DeadlineExceeded.
        """
        asked = _QueryText(text[:_READ_CHARS], spaces)
        embed = partial(self._shared.embed, asked) if self._has_batches else partial(self._embedded, asked)
        return self._asked(asked, partial(self._questions.submit, embed), timeout, inline=embed)

    def _query_now(self, text: str, spaces: frozenset[int] = frozenset()) -> Encodings:
        """Like `query`, in the caller's thread. Raises EmbeddingError."""
        self._check_ready()
        asked = _QueryText(text[:_READ_CHARS], spaces)
        return self._shared.embed(asked) if self._has_batches else self._embedded(asked)

    def embed_now(self, passages: Sequence[Passage]) -> Encodings:
        """The encodings of ``passages``, made in the caller's thread. Success ends the pause after failures.

        Raises EmbeddingError.
        """
        encodings = self._encoded(_readable(passages))
        self._failures, self._paused_until = 0, 0.0
        return encodings

    def in_background(self, call: Callable[[], T]) -> Future[T]:
        """Runs ``call`` on one of the model's threads. Raises StoreUnavailable if all of them hang."""
        return self._pool.submit(call)

    def close(self) -> None:
        """Ends the worker threads. Running calls get two seconds to return."""
        self._pool.close(_PARTING_S)
        self._questions.close(_PARTING_S)

    async def _asked(
        self,
        given: list[Passage] | _QueryText,
        submit: Callable[[], Future[Encodings]],
        timeout: float | None,
        inline: Callable[[], Encodings],
    ) -> Encodings:
        """The encodings of texts, or of a query, from the model's own coroutine if it has one.

        LangChain's default coroutine is not used: it runs on the event loop's shared executor. No coroutine gives token
        vectors. On a second event loop none is used, as the client's connections belong to the first.
        """
        self._check_ready()
        name = "aembed_query" if isinstance(given, _QueryText) else "aembed_documents"
        own = getattr(type(self.model), name)
        is_native = not self._gives_tokens and own is not getattr(Embeddings, name) and self._is_on_first_loop()
        encodings: Encodings = await Effect(
            submit,
            inline=None if timeout else inline,
            native=partial(self._embedded_async, partial(own, self.model), given) if is_native else None,
            timeout=timeout,
        )
        return encodings

    def _check_ready(self) -> None:
        if not self.is_ready:
            loading = "The embedding model is being loaded"
            raise EmbeddingError(self.failure or (self._last_failure if self._ready.is_set() else loading))

    def _is_on_first_loop(self) -> bool:
        """Whether the caller's event loop is the one in which the model's coroutines run; True without a loop."""
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            self._first_loop = self._first_loop or weakref.ref(loop)
            return self._first_loop() is loop
        return True

    @contextmanager
    def _judged(self) -> Generator[None]:
        """Counts the call as the model's failure or success; a caller's timeout is neither."""
        try:
            yield
        except EmbeddingError as error:
            self._failures += 1
            self._failed(str(error), pauses=self._failures >= _PATIENCE)
            raise
        self._failures, self._paused_until = 0, 0.0

    def _failed(self, problem: str, *, pauses: bool) -> None:
        now = time.monotonic()
        self._last_failure = problem
        if pauses:
            self._paused_until = now + _PAUSE_S
        if now >= self._silent_until:
            self._silent_until = now + _WARNING_PERIOD_S
            _LOG.warning("%s; texts wait for their vectors and recall is lexical until it answers", problem)

    def _embedded(self, given: list[Passage] | _QueryText) -> Encodings:
        with self._judged():
            return self._encoded(given)

    def _embedded_together(self, asked: Sequence[_QueryText]) -> list[Encodings]:
        """The encodings of several queries, made by one call for all that are in the same spaces."""
        found: dict[int, Encodings] = {}
        model: Any = self.model
        with self._judged(), raised_as(partial(_failure, "failed"), but=(EmbeddingError, EmbeddingMismatch)):
            for spaces in {query.spaces for query in asked}:
                own = [at for at, query in enumerate(asked) if query.spaces == spaces]
                texts = [asked[at].text for at in own]
                with _native_call() if self._is_native else nullcontext():
                    if self.has_languages:
                        made = model.encode_queries_in(texts, spaces)
                    else:
                        made = [[encoding] for encoding in model.encode_queries(texts)]
                for at, encodings in zip(own, made, strict=True):
                    found[at] = self._normalized_all(encodings, asked[at])
        return [found[at] for at in range(len(asked))]

    def _encoded(self, given: list[Passage] | _QueryText) -> Encodings:
        model: Any = self.model
        with raised_as(partial(_failure, "failed")), _native_call() if self._is_native else nullcontext():
            if isinstance(given, _QueryText):
                if self.has_languages:
                    found = model.encode_query_in(given.text, given.spaces)
                else:
                    found = [model.encode_query(given.text) if self._gives_tokens else model.embed_query(given.text)]
            else:
                texts = [passage.text for passage in given]
                if self.has_languages:
                    found = model.encode_in(texts, [passage.language for passage in given])
                else:
                    found = model.encode(texts) if self._gives_tokens else model.embed_documents(texts)
        return self._normalized_all(found, given)

    async def _embedded_async(
        self, embed: Callable[[Any], Awaitable[Any]], given: list[Passage] | _QueryText
    ) -> Encodings:
        with self._judged():
            self._silence.note(1)
            is_answered = True
            try:
                with raised_as(partial(_failure, "failed")):
                    if isinstance(given, _QueryText):
                        found = [await embed(given.text)]
                    else:
                        found = await embed([passage.text for passage in given])
            except asyncio.CancelledError:
                is_answered = False
                raise
            finally:
                if self._silence.note(-1, is_answered=is_answered) >= _SILENCE_S:
                    self._silence.note(0, is_answered=True)
                    self._failed(f"The embedding model has not answered for {_SILENCE_S:g} s", pauses=True)
            return self._normalized_all(found, given)

    def _normalized_all(self, found: Any, given: list[Passage] | _QueryText) -> Encodings:
        count = len(given) if not isinstance(given, _QueryText) else len(given.spaces) if self.has_languages else 1
        unreadable = partial(_failure, "returned something else than vectors")
        with raised_as(unreadable, but=(EmbeddingError, EmbeddingMismatch)):  # a generator may raise anything here
            made = [self._normalized(one) for one in found]
        if len(made) != count:
            raise EmbeddingError(f"The embedding model returned {len(made)} vectors for {count} texts")
        return made

    def _normalized(self, found: TextEncoding | Sequence[float]) -> TextEncoding:
        import numpy as np  # noqa: PLC0415 - keeps the import of the package light

        given = found if isinstance(found, TextEncoding) else TextEncoding(np.asarray(found, dtype=np.float32))
        values, tokens = np.asarray(given.vector, dtype=np.float32), given.tokens
        if tokens is not None and (tokens.ndim != _MATRIX or not np.isfinite(tokens).all()):
            raise EmbeddingError("The embedding model returned token vectors that are no matrix of numbers")
        norm = float(np.linalg.norm(values)) if values.ndim == 1 and len(values) else 0.0
        if not math.isfinite(norm) or norm == 0:
            raise EmbeddingError("The embedding model returned an empty vector, zeros or NaN")
        if self.dimensions not in (None, len(values)):
            raise EmbeddingError(f"The embedding model returned {len(values)} dimensions, not {self.dimensions}")
        if self.dimensions is None and self._expected and self._expected[0] != len(values):
            raise EmbeddingMismatch(self._expected[1])
        self.dimensions = len(values)
        return given if isinstance(found, TextEncoding) else TextEncoding(values / norm)


def _failure(what: str, error: Exception) -> EmbeddingError:
    return EmbeddingError(f"The embedding model {what}: {told_error(error)}")


def _readable(passages: Sequence[Passage]) -> list[Passage]:
    return [passage._replace(text=passage.text[:_READ_CHARS]) for passage in passages]


class _Silence:
    """How long the model has been silent: the time since its last answer in which any caller waited.

    A coroutine ends when its caller gives up, so a single call's duration says nothing about the model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._waiting = 0
        self._at = 0.0

    def note(self, waiting: int, *, is_answered: bool = False) -> float:
        """Adds ``waiting`` to the number of waiting callers. Returns the seconds without an answer."""
        with self._lock:
            now = time.monotonic()
            self._seconds = 0.0 if is_answered else self._seconds + (now - self._at if self._waiting else 0.0)
            self._at = now
            self._waiting += waiting
            return self._seconds


class SharedQueries:
    """Embeds queries by one call of ``embed`` for all callers that wait, in the thread of one of them.

    While it does, the next ones gather. Nobody waits for others to come.
    """

    def __init__(self, embed: Callable[[Sequence[_QueryText]], list[Encodings]]) -> None:
        self._embed = embed
        self._turn = threading.Lock()
        self._waiting: deque[tuple[_QueryText, Future[Encodings]]] = deque()

    def embed(self, asked: _QueryText) -> Encodings:
        """The encodings of ``asked``. Raises EmbeddingError."""
        future: Future[Encodings] = Future()
        self._waiting.append((asked, future))
        with self._turn:
            while not future.done():
                self._answer([self._waiting.popleft() for _ in range(min(_TEXTS_AT_ONCE, len(self._waiting)))])
        return future.result()

    def _answer(self, taken: Sequence[tuple[_QueryText, Future[Encodings]]]) -> None:
        try:
            made = self._embed([asked for asked, _ in taken])
        except BaseException as error:  # whoever waits for it must not wait forever
            if len(taken) > 1 and isinstance(error, (EmbeddingError, EmbeddingMismatch)):
                for one in taken:  # so that a query that the model refuses fails no other
                    self._answer([one])
                return
            for _, future in taken:
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), encodings in zip(taken, made, strict=True):
                future.set_result(encodings)


class JoinedCalls:
    """Joins the texts of waiting callers, up to 32, into one call of ``embed`` on ``pool``.

    A model embeds a batch much faster than its texts one by one. The texts of one caller are never split.
    """

    def __init__(self, pool: WorkerPool, embed: Callable[[list[Passage]], Encodings]) -> None:
        self._pool = pool
        self._embed = embed
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def submit(self, texts: Sequence[Passage]) -> Future[Encodings]:
        """The encoding of each text, or the model's EmbeddingError. Raises StoreUnavailable if every worker hangs."""
        future: Future[Encodings] = Future()
        with self._lock:  # a worker that starts at once must wait until the texts are there
            self._pool.submit(self._serve)
            self._waiting.append((texts, future))
        return future

    def _serve(self) -> None:
        """Answers the waiting callers, unless another worker has done so."""
        taken: list[_Waiting] = []
        size = 0
        with self._lock:
            while self._waiting and (not size or size + len(self._waiting[0][0]) <= _TEXTS_AT_ONCE):
                texts, future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    taken.append((texts, future))
                    size += len(texts)
        if taken:
            self._answer(taken)

    def _answer(self, taken: Sequence[_Waiting]) -> None:
        """One call for all. If it fails, one for each caller, so that a text that the model refuses fails no other."""
        try:
            encodings = iter(self._embed([text for texts, _ in taken for text in texts]))
        except (EmbeddingError, EmbeddingMismatch) as error:
            if len(taken) == 1:
                taken[0][1].set_exception(error)
                return
            for waiting in taken:
                self._answer([waiting])
        else:
            for texts, future in taken:
                future.set_result(list(islice(encodings, len(texts))))


class DocumentVectors(NamedTuple):
    """A text's passages packed by `pack_vectors`, and their tokens, if any, packed by `pack_tokens`."""

    vector: bytes
    tokens: bytes | None


_ENGLISH: Final = ("en", "")
ACROSS: Final = 0.25
"""For a query in another language than English, the weight of closeness to English texts; to other texts, it is 1."""


async def embed_documents(
    embedder: Embedder, wholes: Sequence[Passage], timeout: float | None, *, with_tokens: bool
) -> list[DocumentVectors]:
    """The vectors of each text. Raises EmbeddingError or DeadlineExceeded."""
    parts = _parts(wholes)
    encodings = await embedder.documents(list(chain.from_iterable(parts)), timeout)
    return _packed(parts, encodings, with_tokens=with_tokens)


def embed_documents_now(embedder: Embedder, wholes: Sequence[Passage], *, with_tokens: bool) -> list[DocumentVectors]:
    """The vectors of each text, made in the caller's thread. Raises EmbeddingError."""
    parts = _parts(wholes)
    encodings = embedder.embed_now(list(chain.from_iterable(parts)))
    return _packed(parts, encodings, with_tokens=with_tokens)


async def embed_query(
    embedder: Embedder, text: str, timeout: float | None, spaces: frozenset[int], *, with_tokens: bool
) -> dict[int, QueryVectors]:
    """The vectors of a query in each of ``spaces``, by space. Raises EmbeddingError or DeadlineExceeded.

    Only a model that knows the language of the query tells whether memory is needed. So a query that is not surely in
    English, such as "danke", has a vector in the multilingual space too, if there is one.
    """
    language = language_of(text)
    spaces = _asked_in(embedder, language, spaces)
    encodings = await embedder.query(text, timeout, spaces)
    return _by_space(encodings, language, spaces, with_tokens=with_tokens)


def embed_query_now(
    embedder: Embedder, text: str, spaces: frozenset[int], *, with_tokens: bool
) -> dict[int, QueryVectors]:
    """Like `embed_query`, made in the caller's thread. Raises EmbeddingError."""
    language = language_of(text)
    spaces = _asked_in(embedder, language, spaces)
    encodings = embedder._query_now(text, spaces)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of this module
    return _by_space(encodings, language, spaces, with_tokens=with_tokens)


def _asked_in(embedder: Embedder, language: str, spaces: frozenset[int]) -> frozenset[int]:
    """``spaces``, and the multilingual one for a query in another ``language``."""
    from inference_core.retrieval.vectors import MULTILINGUAL  # noqa: PLC0415 - imports numpy, which takes time

    return spaces | {MULTILINGUAL} if spaces and language != "en" and embedder.has_languages else spaces


def _by_space(
    encodings: Sequence[TextEncoding], language: str, spaces: frozenset[int], *, with_tokens: bool
) -> dict[int, QueryVectors]:
    from inference_core.retrieval.vectors import MULTILINGUAL  # noqa: PLC0415 - imports numpy, which takes time

    is_english = language in _ENGLISH
    vectors: dict[int, QueryVectors] = {}
    for encoding in encodings:
        weight = 1.0 if is_english or encoding.space == MULTILINGUAL else ACROSS
        is_known = encoding.space == MULTILINGUAL or language == "en" or (is_english and MULTILINGUAL not in spaces)
        necessity = encoding.necessity if is_known else None
        vectors[encoding.space] = QueryVectors(encoding.vector, weight=weight, necessity=necessity)
        if encoding.tokens is not None and with_tokens:
            words = word_numbers(encoding.pieces)
            chosen = [at for at, piece in enumerate(encoding.pieces) if is_content_token(piece)] or [*range(len(words))]
            tokens, numbers = encoding.tokens[chosen], [words[at] for at in chosen]
            vectors[encoding.space] = QueryVectors(encoding.vector, tokens, numbers, weight, necessity)
    return vectors


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """The number of the word that each piece of a text belongs to, counted from 0."""
    begins = [at == 0 or not piece.startswith("##") for at, piece in enumerate(pieces)]
    return [number - 1 for number in accumulate(begins)]


def _parts(wholes: Sequence[Passage]) -> list[list[Passage]]:
    """The passages of each text, all with the whole text's language, so that they are in one vector space."""
    return [[Passage(part, whole.language) for part in passages(whole.text)] for whole in wholes]


def _packed(
    parts: Sequence[Sequence[Passage]], encodings: Sequence[TextEncoding], *, with_tokens: bool
) -> list[DocumentVectors]:
    import numpy as np  # noqa: PLC0415 - keeps the import of the package light

    from inference_core.retrieval.vectors import pack_tokens, pack_vectors  # noqa: PLC0415 - imports numpy

    left = iter(encodings)
    vectors: list[DocumentVectors] = []
    for own in ([next(left) for _ in part] for part in parts):
        space = own[0].space
        vector = pack_vectors(np.stack([encoding.vector for encoding in own]), space)
        tokens = [encoding.tokens for encoding in own if encoding.tokens is not None and len(encoding.tokens)]
        vectors.append(DocumentVectors(vector, pack_tokens(tokens, space) if with_tokens and tokens else None))
    return vectors
