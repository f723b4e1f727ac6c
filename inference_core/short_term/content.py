"""What messages hold, in any provider's form: words, media, calls of tools, and results.

Every form is read into `Call` and `Result`. `accepted` pairs them, and mends what models would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, FunctionMessage, HumanMessage, ToolMessage

from inference_core.memory.text import digest_of

NO_RESULT: Final = "No result: the run ended before this tool did."
CUT: Final = "\n… [{} characters cut] …\n"
Lacking = Literal["answered", "removed", "kept"]
"""What becomes of a call without a result, which models refuse; without an id of its own, it cannot be answered."""
_CALLS: Final[Mapping[str, Lacking]] = {
    **dict.fromkeys(
        ("tool_use", "tool_call", "function_call", "custom_tool_call", "toolUse", "functionCall"), "answered"
    ),
    # Only the application can make up a result for these: a screenshot, an exit code.
    **dict.fromkeys(("computer_call", "local_shell_call", "shell_call", "apply_patch_call"), "removed"),
    "invalid_tool_call": "removed",
    "mcp_approval_request": "kept",
}
_RESULTS: Final = frozenset({
    "tool_result", "function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
    "shell_call_output", "apply_patch_call_output", "mcp_approval_response", "function_response", "toolResult",
    "functionResponse",
})  # fmt: skip
_KEYED: Final = ("toolUse", "functionCall", "toolResult", "functionResponse", "function_response")
"""Kinds of blocks that have no type, but hold everything under the name of their kind."""
_IDS: Final = ("call_id", "tool_use_id", "toolUseId", "tool_call_id", "approval_request_id", "id")
_THOUGHTS: Final = ("reasoning", "thinking", "redacted_thinking")
_MEDIA: Final = frozenset({
    "image", "image_url", "input_image", "image_file", "audio", "input_audio", "video", "video_url", "file",
    "input_file", "media", "container_upload", "image_generation_call", "computer_screenshot",
})  # fmt: skip
_DATA: Final = ("base64", "blob", "bytes", "file_data", "file_id", "b64_json", "image_url", "video_url")
"""Fields that only media have."""
_PLACES: Final = ("url", "uri", "image_url", "video_url", "file_id")
_MEDIA_TYPES: Final = ("mime_type", "media_type", "mimeType")
_LABELS: Final = frozenset({
    "type", "index", "status", "format", "role", "cache_control", "citations", "annotations", "signature",
    "encrypted_content", "extras", "page_age", *_MEDIA_TYPES, *_IDS,
})  # fmt: skip
_CAPTIONS: Final = ("title", "context", "transcript", "caption")
_MAX_REFERENCE: Final = 300
encoded: Final = json.JSONEncoder(ensure_ascii=False, default=str).encode


def blocks_of(message: BaseMessage) -> list[Any]:
    """The blocks of the message's content; a text is one."""
    content: Any = message.content
    return [content] if isinstance(content, str) else list(content)


def _kind(block: Mapping[str, Any]) -> str:
    return str(block.get("type") or next((kind for kind in _KEYED if kind in block), "data"))


def _fields(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of ``block``, which may be one level deeper."""
    inner: Any = None if "type" in block else block.get(_kind(block))
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else block


def _id_key(block: Mapping[str, Any]) -> str:
    return next((key for key in _IDS if key in _fields(block)), "id")


def _id_of(block: Mapping[str, Any]) -> str:
    return str(_fields(block).get(_id_key(block)) or "")


def _with_id(block: Mapping[str, Any], new: str) -> dict[str, Any]:
    fields = {**_fields(block), _id_key(block): new}
    return {**block, _kind(block): fields} if _fields(block) is not block else fields


def is_call(block: str | Mapping[str, Any]) -> bool:
    """Whether ``block`` of a message's content is a call whose result comes in another message."""
    return not isinstance(block, str) and _kind(block) in _CALLS


def _is_result(block: str | Mapping[str, Any]) -> bool:
    return not isinstance(block, str) and _kind(block) in _RESULTS


# Words and media


class Part(NamedTuple):
    """Words of a message, or the name of what is no text."""

    text: str
    is_media: bool = False


def parts_in(value: Any) -> Iterator[Part]:
    """The words in a message's content, or in a part of it, in order, however deep, and its media; no calls."""
    if isinstance(value, str):
        yield Part(value)
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from parts_in(one)
    elif isinstance(value, Mapping):
        yield from _parts_of(cast("Mapping[str, Any]", value))


def _parts_of(block: Mapping[str, Any]) -> Iterator[Part]:
    kind, text = _kind(block), block.get("text")
    if isinstance(text, str):
        yield Part(text)
    elif kind in _CALLS or kind in _THOUGHTS:
        return
    elif _is_media(block):
        captions = (block.get(name) for name in _CAPTIONS)
        yield from (Part(caption) for caption in captions if isinstance(caption, str))
        yield Part(_name(block), is_media=True)
    else:
        found = [part for name, inner in _fields(block).items() if name not in _LABELS for part in _inner(name, inner)]
        yield from found or [Part(_name(block), is_media=True)]


def _inner(name: str, value: Any) -> Iterator[Part]:
    """The words of a block's field. Data that are no blocks are JSON, as their names are words, too."""
    is_block = isinstance(value, Mapping) and (
        name in ("source", "resource") or not {"type", "text", *_KEYED}.isdisjoint(cast("Mapping[str, Any]", value))
    )
    is_list = isinstance(value, list) and all(isinstance(one, str | Mapping) for one in cast("list[Any]", value))
    if isinstance(value, str) and value.startswith("data:"):
        yield Part(f"[{name} {value[5:].partition(';')[0][:_MAX_REFERENCE]}]", is_media=True)
    elif isinstance(value, Mapping | list) and not is_block and (name == "json" or not is_list):
        yield Part(encoded(value))
    else:
        yield from parts_in(value)


def _is_media(block: Mapping[str, Any]) -> bool:
    inner: Any = block.get("source") or block.get("resource")
    fields = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else block
    has_data = any(name in fields for name in _DATA) or (
        "data" in fields and not _media_type(fields).startswith("text/")
    )
    return has_data or fields.get("type") in ("url", "file") or _kind(block) in _MEDIA


def _media_type(fields: Mapping[str, Any]) -> str:
    """The media type that ``fields`` name; that of text if they name none."""
    named = (fields.get(name) for name in _MEDIA_TYPES)
    return str(next(filter(None, named), "text/plain"))


def _name(block: Mapping[str, Any]) -> str:
    """The kind of ``block`` with its URL or else its media type, never its data."""
    kind = _kind(block)
    inner: Any = block.get(kind) or block.get("source") or block.get("resource")
    fields: dict[str, Any] = {**block, **(inner if isinstance(inner, Mapping) else {"url": block.get("url") or inner})}
    places = (fields.get(name) for name in _PLACES)
    name = next((place for place in places if isinstance(place, str) and not place.startswith("data:")), None)
    name = name or next((str(fields[name]) for name in _MEDIA_TYPES if fields.get(name)), "")
    return f"[{kind}{f' {name}'.rstrip()[:_MAX_REFERENCE]}]"


def told_calls(message: BaseMessage) -> list[tuple[str, str]]:
    """The name and the arguments of each call in ``message``."""
    if not isinstance(message, AIMessage) or not _may_call(message):
        return []
    told = [(call["name"], encoded(call["args"])) for call in message.tool_calls]
    told += [(call["name"] or "", call["args"] or "") for call in message.invalid_tool_calls]
    others = (call.at for call in calls_in(message)[len(told) :] if call.at is not None)
    blocks = blocks_of(message)
    return told + [(_kind(blocks[at]), encoded(blocks[at])) for at in others]


def thoughts_in(message: BaseMessage) -> list[str]:
    """The model's thoughts in ``message``, as JSON."""
    blocks = (block for block in blocks_of(message) if not isinstance(block, str))
    return [encoded(block) for block in blocks if _kind(block) in _THOUGHTS]


def text_in(message: BaseMessage) -> str:
    """The words of ``message``, also those of results and documents, with a name in place of each picture or file."""
    return "\n".join(part.text for part in parts_in(blocks_of(message)) if part.text)


# Calls and results


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool; ``id`` is "" if it has none yet, and None if its form has none.

    ``at`` is its place in the message's content; None if it is not there.
    """

    id: str | None
    name: str
    lacking: Lacking
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What answers a call; ``at`` is its place in the message's content, None if it is the whole message."""

    id: str | None
    at: int | None = None


def _may_call(message: AIMessage) -> bool:
    has_calls = bool(message.tool_calls or message.invalid_tool_calls or "function_call" in message.additional_kwargs)
    return has_calls or not isinstance(message.content, str)


def calls_in(message: BaseMessage) -> list[Call]:
    """The calls in ``message``: its ``tool_calls``, ``invalid_tool_calls``, those that only its content has."""
    if not isinstance(message, AIMessage) or not _may_call(message):
        return []
    calls = [Call(call["id"] or "", call["name"] or "unknown", "answered") for call in message.tool_calls]
    calls += [Call(call["id"] or "", call["name"] or "unknown", "removed") for call in message.invalid_tool_calls]
    settled: set[str | None] = set()
    for at, block in enumerate(blocks_of(message)):
        if _is_result(block):
            settled.add(_id_of(block))
        elif is_call(block):
            own, known = _id_of(block), [call.id for call in calls]
            same = next((nth for nth, call in enumerate(calls) if call.id == own and call.at is None), None)
            if same is None:
                lacking: Lacking = "removed" if own in known else _CALLS[_kind(block)]
                calls.append(Call(own, str(_fields(block).get("name") or "unknown"), lacking, at))
            else:
                calls[same] = replace(calls[same], at=at)
    if not calls and message.additional_kwargs.get("function_call"):
        return [Call(None, "", "kept")]
    return [replace(call, lacking="kept") if call.id in settled else call for call in calls]


def results_in(message: BaseMessage) -> list[Result]:
    """The results in ``message``, a tool's or one in the user's role."""
    if isinstance(message, ToolMessage):
        return [Result(message.tool_call_id)]
    if isinstance(message, FunctionMessage):
        return [Result(None)]
    if isinstance(message, HumanMessage) and not isinstance(message.content, str):
        return [Result(_id_of(block), at) for at, block in enumerate(blocks_of(message)) if _is_result(block)]
    return []


def has_only_results(message: BaseMessage) -> bool:
    """Whether ``message`` holds results and nothing else."""
    results = results_in(message)
    return bool(results) and (results[0].at is None or len(results) == len(blocks_of(message)))


Pairs = Mapping[tuple[int, int | None], int]
"""By the place of a result (the message's among those after the call's, and that in its content), the call's place."""


def paired(calls: Sequence[Call], answers: Iterable[BaseMessage]) -> Pairs:
    """Which of ``calls`` each result in ``answers`` belongs to: by id or, where one of the two has none, in order."""
    results = {(at, one.at): one.id for at, message in enumerate(answers) for one in results_in(message)}
    pairs: dict[tuple[int, int | None], int] = {}
    waiting = dict(enumerate(calls))
    for needs_id in (True, False):
        for place in [place for place in results if place not in pairs]:
            own = results[place]
            fitting = (at for at, call in waiting.items() if (call.id == own if needs_id else "" in (call.id, own)))
            if (found := next(fitting, None)) is not None:
                pairs[place] = found
                del waiting[found]
    return pairs


def accepted(messages: tuple[AnyMessage, ...], calls: Sequence[Call], pairs: Pairs) -> tuple[AnyMessage, ...]:
    """A unit as models accept it: ``messages`` of which the first has ``calls``, and the others may answer them.

    No result is without its call, no call without a result or an id of its own. What needs nothing stays as it is.
    """
    first, *answers = messages
    if not calls:
        return tuple(_with_results(first, {}))
    answered = set(pairs.values())
    ids: dict[int, str | None] = {}
    gone, missing = set[int](), list[int]()
    for at, call in enumerate(calls):
        has_id = call.id is None or (call.id != "" and call.id not in ids.values())
        if at in answered or call.lacking == "kept" or (has_id and call.lacking == "answered"):
            ids[at] = call.id if has_id else f"call_{digest_of([first.id, at, call.name])[:24]}"
            missing += [] if at in answered or call.lacking == "kept" else [at]
        else:
            gone.add(at)
    new = {at: name for at, name in ids.items() if name and name != calls[at].id}
    shown: list[AnyMessage] = [first]
    if isinstance(first, AIMessage) and (gone or new):
        shown[0] = _with_calls(first, calls, gone, new)
    for at, message in enumerate(answers):
        shown += _with_results(message, {place[1]: ids[call] for place, call in pairs.items() if place[0] == at})
    behind = next((at for at, one in enumerate(shown) if at and not isinstance(one, ToolMessage)), len(shown))
    shown[behind:behind] = [
        ToolMessage(NO_RESULT, tool_call_id=str(ids[at]), name=calls[at].name, status="error") for at in missing
    ]
    return tuple(shown)


def _with_calls(message: AIMessage, calls: Sequence[Call], gone: set[int], new: Mapping[int, str]) -> AIMessage:
    """``message`` without the calls ``gone`` and with ``new`` ids, in all the forms in which providers store calls."""
    content: Any = message.content
    if not isinstance(content, str):
        removed = {calls[at].at for at in gone}
        named = {calls[at].at: name for at, name in new.items()}
        blocks = enumerate(content)
        content = [_with_id(one, named[at]) if at in named else one for at, one in blocks if at not in removed]
    count = len(message.tool_calls)
    listed: Iterator[tuple[int, Any]] = enumerate([*message.tool_calls, *message.invalid_tool_calls])
    left = [(at, {**call, "id": new.get(at, call["id"])}) for at, call in listed if at not in gone]
    update = {
        "content": content,
        "tool_calls": [call for at, call in left if at < count],
        "invalid_tool_calls": [call for at, call in left if at >= count],
        "additional_kwargs": {name: one for name, one in message.additional_kwargs.items() if name != "tool_calls"},
    }
    return message.model_copy(update=update)


def _with_results(message: AnyMessage, ids: Mapping[int | None, str | None]) -> list[AnyMessage]:
    """``message`` with those of its results whose places are in ``ids``, under these; nothing if nothing is left."""
    results = results_in(message)
    if all(one.at in ids and ids[one.at] in (None, one.id) for one in results):
        return [message]
    if isinstance(message, ToolMessage):
        return [message.model_copy(update={"tool_call_id": ids[None]})] if None in ids else []
    lost = {one.at for one in results if one.at not in ids}
    blocks = [(at, block) for at, block in enumerate(blocks_of(message)) if at not in lost]
    content = [_with_id(block, name) if (name := ids.get(at)) else block for at, block in blocks]
    return [message.model_copy(update={"content": content})] if content and None not in lost else []


def with_results_cut(message: AnyMessage, limit: int) -> AnyMessage:
    """``message`` with the middle cut out of each result longer than ``limit`` characters, and pictures as names.

    A screenshot that answers a computer call stays, as nothing else may.
    """
    results, content = results_in(message), message.content
    if not results or message.additional_kwargs.get("type") == "computer_call_output":
        return message
    if isinstance(content, str) or results[0].at is None:
        return message.model_copy(update={"content": _middle_cut(text_in(message), limit)})
    blocks: list[Any] = []
    for block in blocks_of(message):
        is_result = _is_result(block) and _kind(block) != "computer_call_output"
        field = next((name for name in ("content", "output") if is_result and name in block), None)
        text = "\n".join(part.text for part in parts_in(block[field])) if field else ""
        blocks.append({**block, field: _middle_cut(text, limit)} if field else block)
    return message.model_copy(update={"content": blocks})


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    size = limit - len(CUT.format(len(text)))
    tail = size // 4  # three quarters from its start, the rest from its end
    return text[: size - tail] + CUT.format(len(text) - size) + text[len(text) - tail :]
