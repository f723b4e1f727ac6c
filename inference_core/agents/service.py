"""AgentService: an agent with memory and conversations, configured by settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypedDict, Unpack
from uuid import UUID, uuid4

from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command

from inference_core.agents.checkpoints import open_checkpointer
from inference_core.agents.fenced_checkpoints import OnWorkers
from inference_core.agents.from_settings import ShortTerm, guards, make_capture, make_chat_model, named, outer_guards
from inference_core.agents.identity import MemoryContext, field_of, thread_label
from inference_core.agents.middleware.calls import appended, text_block
from inference_core.agents.middleware.capture import CaptureMiddleware
from inference_core.agents.middleware.memory import MemoryMiddleware
from inference_core.agents.middleware.short_term import ShortTermMemoryMiddleware
from inference_core.agents.streams import AgentResponse, OnStep, OnToken, RunObserver
from inference_core.errors import ConfigurationError, IdentityError
from inference_core.memory.text import id_text
from inference_core.services.agent_memory_service import AgentMemoryStoreService
from inference_core.settings import AgentSettings, MemorySettings, load_env_file, policy_of, read_settings
from inference_core.stores.factory import open_configured_store
from inference_core.stores.store import MemoryStore

_LOG = logging.getLogger(__name__)
Ask = str | Mapping[str, Any] | Command[Any]
"""The input of a run: the user's text, a state such as ``{"messages": […]}``, or the Command that resumes a run."""


class RunOptions(TypedDict, total=False):
    """The user and the conversation of a run.

    ``user_id``, ``context``, ``config`` or the service may name the user; all that do must agree. Name the user even if
    your middleware has a function for it: the thread id is made before that function is called.
    """

    thread_id: str | UUID | None
    """The conversation, among this user's. None: the thread in ``config``, or else the service's."""
    user_id: str | UUID | None
    context: Any
    """The run's context, with a ``user_id`` or without."""
    config: RunnableConfig | None
    """LangGraph's configuration, merged into the service's."""


class AgentService:
    """A LangChain agent with memory and conversations, configured by settings.

    A thin layer over `langchain.agents.create_agent`: `create_agent` makes the compiled agent, `run` and `stream` use
    it. Each conversation belongs to one user: LangGraph sees a thread id made of user and ``thread_id``, so no user can
    continue another's. Agents that share a checkpointer share conversations. It is a context manager, sync and async,
    that closes what it opened.

    Args:
        agent_name: Scopes episodic and procedural memories to this agent.
        tools: The agent's own tools.
        use_checkpoints: Whether to keep conversations at AGENT_CHECKPOINT_URL.
        use_memory: Whether the agent has long-term memory, on ``store`` or else on the configured store.
        checkpoint_config: The LangGraph configuration that each run starts from.
        context_schema: The type of the runs' context. None: `MemoryContext`.
        middleware: More middleware. A `MemoryMiddleware`, `CaptureMiddleware` or `ShortTermMemoryMiddleware` in it
            replaces the one that settings describe.
        enable_cost_tracking: Accepted for compatibility; not used. `AgentResponse.usage` always counts tokens.
        user_id: The user of all runs. None: each run names its own.
        session_id: The thread of runs that name none, nor does ``checkpoint_config``. None: a new one.
        request_id: Put into the configuration and the metadata of each run, for traces.
        config: Another LangGraph configuration for each run, merged into ``checkpoint_config``.
        model: A chat model, or the name of one (``provider:model``). None: AGENT_MODEL.
        store: Where memories are kept. None: the store at AGENT_MEMORY_STORE_URL.
        checkpointer: Where conversations are kept, instead of at AGENT_CHECKPOINT_URL.
        settings: None: from the environment and ``.env`` in the working directory.
        agent_settings: None: from there too.
        memory_tools: Names of the memory tools that the agent gets. None: save, recall, update and delete.
        memory_session_context_enabled: Whether to recall before each run. None: as settings say.
        memory_tool_instructions_enabled: Whether the system prompt explains the tools. None: it does.
        short_term: An overflow strategy, several, or a `ShortTermMemoryMiddleware`. None: AGENT_SHORT_TERM.
        memory_postrun_analysis: Whether to extract memories from conversations. None: AGENT_MEMORY_CAPTURE.
        memory_postrun_model: The name of the model that extracts them. None: AGENT_MEMORY_MODEL.
        instance_context: An object or mapping whose ``instance_name``, if any, scopes memories in place of
            ``agent_name``; each run's configuration has its ``instance_id``.
        system_prompt_override: Used in place of the prompt that `create_agent` gets.
        system_prompt_append: Follows the prompt.
        response_format_override: LangChain's ``response_format``, in place of the one that `create_agent` gets.

    Raises:
        ConfigurationError: An argument or setting is invalid, or a database cannot be opened.
        InvalidId: ``user_id`` or ``session_id`` is not a valid id.
    """

    def __init__(
        self,
        agent_name: str = "default_agent",
        tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any]] | None = None,
        use_checkpoints: bool = False,
        use_memory: bool = False,
        checkpoint_config: RunnableConfig | None = None,
        context_schema: type[Any] | None = None,
        middleware: Sequence[AgentMiddleware[Any, Any, Any]] | None = None,
        enable_cost_tracking: bool = True,
        user_id: str | UUID | None = None,
        session_id: str | None = None,
        request_id: str | None = None,
        config: RunnableConfig | None = None,
        *,
        model: str | BaseChatModel | None = None,
        store: BaseStore | None = None,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        settings: MemorySettings | None = None,
        agent_settings: AgentSettings | None = None,
        memory_tools: list[str] | None = None,
        memory_session_context_enabled: bool | None = None,
        memory_tool_instructions_enabled: bool | None = None,
        short_term: ShortTerm = None,
        memory_postrun_analysis: bool | None = None,
        memory_postrun_model: str | None = None,
        instance_context: Any = None,
        system_prompt_override: str | SystemMessage | None = None,
        system_prompt_append: str | None = None,
        response_format_override: Any = None,
    ) -> None:
        del enable_cost_tracking
        self.agent_name = agent_name
        self.display_name: str = field_of(instance_context, "instance_name") or agent_name
        self.memory: AgentMemoryStoreService | None = None
        self._user_id = user_id
        self._session_id = session_id
        self._model = model
        self._tools = list(tools or ())
        self._context_schema: type[Any] = context_schema or MemoryContext
        traced = {"request_id": request_id, "instance_id": field_of(instance_context, "instance_id")}
        traced = {name: str(value) for name, value in traced.items() if value is not None}
        self._config = merge_configs(checkpoint_config, config, {"configurable": traced, "metadata": traced})
        self._prompt_override, self._prompt_append = system_prompt_override, system_prompt_append
        self._response_format = response_format_override
        self._thread = uuid4().hex if session_id is None else session_id
        if settings is None or agent_settings is None:
            load_env_file()
        self._settings = settings or read_settings(MemorySettings)
        if memory_postrun_analysis is not None:
            self._settings = self._settings.model_copy(update={"capture": memory_postrun_analysis})
        if memory_postrun_model is not None:
            self._settings = self._settings.model_copy(update={"model": (memory_postrun_model,)})
        self._agent_settings = agent_settings or read_settings(AgentSettings)
        self._store = store
        self._checkpointer = checkpointer
        self._middleware = list(middleware or ())
        self._agent: CompiledStateGraph[Any, Any, Any, Any] | None = None
        self._is_closed = False
        self._owned = ExitStack()
        self.config_for()  # refuses invalid ids before anything is opened
        given = {
            "include_tools": memory_tools,
            "auto_recall": memory_session_context_enabled,
            "tool_instructions_enabled": memory_tool_instructions_enabled,
        }
        with ExitStack() as undo:  # not even an interrupt may leave the store open
            undo.callback(self.close)
            if use_memory:
                self._remember({name: value for name, value in given.items() if value is not None})
            self._middleware += self._short_term(short_term, use_memory)
            if use_checkpoints and checkpointer is None:
                self._checkpointer = open_checkpointer(self._agent_settings.checkpoint_url)
                if isinstance(self._checkpointer, OnWorkers):
                    self._owned.callback(self._checkpointer.close)
            undo.pop_all()

    async def create_agent(
        self, system_prompt: str | SystemMessage | None = None, **kwargs: Any
    ) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Like `create_agent_sync`, without blocking the event loop."""
        return await asyncio.to_thread(self.create_agent_sync, system_prompt, **kwargs)

    def create_agent_sync(
        self, system_prompt: str | SystemMessage | None = None, **kwargs: Any
    ) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Makes the agent, for sync and async runs alike; ``kwargs`` go to LangChain's ``create_agent``.

        Raises ConfigurationError or MissingExtra if the chat model cannot be made.
        """
        from langchain.agents import create_agent  # noqa: PLC0415 - slow to import # pyright: ignore[reportUnknownVariableType] - partly untyped in LangChain

        if self._response_format is not None:
            kwargs["response_format"] = self._response_format
        model = make_chat_model(self._agent_settings, self._model)
        outer = outer_guards(self._model or self._agent_settings.model, model)
        prompt = system_prompt if self._prompt_override is None else self._prompt_override
        if self._prompt_append:
            if isinstance(prompt, SystemMessage):
                prompt = appended(prompt, [text_block(self._prompt_append)])
            else:
                prompt = f"{prompt}\n\n{self._prompt_append}" if prompt else self._prompt_append
        self._agent = create_agent(
            model,
            self._tools,
            system_prompt=prompt,
            middleware=[*outer, *self._middleware, *guards(self._agent_settings)],
            context_schema=self._context_schema,
            checkpointer=self._checkpointer,
            store=self._store,
            **kwargs,
        )
        return self._agent

    def get_agent(self) -> CompiledStateGraph[Any, Any, Any, Any]:
        """The compiled agent. To run it yourself, use the configuration that `config_for` gives.

        Raises ConfigurationError if there is no agent yet, or if the service is closed.
        """
        if self._is_closed:
            raise ConfigurationError("This AgentService is closed; make a new one")
        if self._agent is None:
            raise ConfigurationError("There is no agent yet: await create_agent() or call create_agent_sync()")
        return self._agent

    def get_memory_store(self) -> BaseStore:
        """The agent's memory store. Raises ConfigurationError (a ValueError) if there is none."""
        if self._store is None:
            raise ConfigurationError("Memory store is not initialized.")
        return self._store

    def run(
        self,
        text: Ask,
        *,
        on_step: OnStep | None = None,
        on_token: OnToken | None = None,
        **options: Unpack[RunOptions],
    ) -> AgentResponse:
        """Runs the agent. Calls ``on_step`` with each message and ``on_token`` with each piece of text, as they come.

        Raises ModelError if the chat model fails (memories that tools have saved by then stay), IdentityError if
        several users are named, InvalidId for an id that is not valid.
        """
        if on_step is None and on_token is None:
            return AgentResponse.of(self.get_agent().invoke(**self._call(text, **options)))
        observer = RunObserver(on_step, on_token)
        for part in self.get_agent().stream(**self._watched(text, **options)):
            observer.note(*part)
        return AgentResponse.of(observer.state)

    async def arun(
        self,
        text: Ask,
        *,
        on_step: OnStep | None = None,
        on_token: OnToken | None = None,
        **options: Unpack[RunOptions],
    ) -> AgentResponse:
        """Like `run`."""
        agent: Any = self.get_agent()  # LangGraph leaves the type of its ainvoke open
        if on_step is None and on_token is None:
            return AgentResponse.of(await agent.ainvoke(**self._call(text, **options)))
        observer = RunObserver(on_step, on_token)
        async for part in agent.astream(**self._watched(text, **options)):
            observer.note(*part)
        return AgentResponse.of(observer.state)

    run_agent_steps = run
    arun_agent_steps = arun

    def stream(self, text: Ask, *, stream_mode: Any = "messages", **options: Unpack[RunOptions]) -> Iterator[Any]:
        """Runs the agent and yields what LangGraph yields in ``stream_mode``; otherwise like `run`."""
        return self.get_agent().stream(**self._call(text, **options), stream_mode=stream_mode)

    def astream(self, text: Ask, *, stream_mode: Any = "messages", **options: Unpack[RunOptions]) -> AsyncIterator[Any]:
        """Like `stream`."""
        return self.get_agent().astream(**self._call(text, **options), stream_mode=stream_mode)

    def config_for(
        self,
        *,
        thread_id: str | UUID | None = None,
        user_id: str | UUID | None = None,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> RunnableConfig:
        """The LangGraph configuration of a run with these options: its user, its thread, and the service's own parts.

        The arguments are those of `RunOptions`. Raises IdentityError if several users are named, InvalidId.
        """
        merged = merge_configs(self._config, config)
        configurable: dict[str, Any] = dict(merged.get("configurable") or {})
        claims = (self._user_id, user_id, field_of(context, "user_id"), configurable.get("user_id"))
        users = {id_text(claim) for claim in claims if claim is not None}
        if len(users) > 1:
            raise IdentityError(
                "This run names several users: the service's, user_id= and the context's must be the same"
            )
        user = next(iter(users), None)
        thread = configurable.get("thread_id", self._thread) if thread_id is None else thread_id
        configurable["thread_id"] = thread_label(user, thread)
        if user is not None:
            configurable["user_id"] = user
        return {**merged, "configurable": configurable}

    def _call(self, text: Ask, **options: Unpack[RunOptions]) -> dict[str, Any]:
        """Arguments for the compiled agent."""
        given = {"messages": [HumanMessage(text)]} if isinstance(text, str) else text
        return {"input": given, "config": self.config_for(**options), "context": options.get("context")}

    def _watched(self, text: Ask, **options: Unpack[RunOptions]) -> dict[str, Any]:
        """Like `_call`, for a stream whose states hold what ``invoke`` returns, and nothing private."""
        outputs = self.get_agent().output_channels
        return {**self._call(text, **options), "stream_mode": RunObserver.modes, "output_keys": outputs}

    def close(self) -> None:
        """Closes what the service opened; a second call does nothing."""
        self._is_closed = True
        self._owned.close()

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _remember(self, options: dict[str, Any]) -> None:
        """Opens the memory and adds the middlewares of long-term memory."""
        settings = self._settings
        if not settings.enabled:
            _LOG.warning("AGENT_MEMORY_ENABLED is false: agent %r has no memory", self.agent_name)
            return
        if self._store is None:
            self._store = store = open_configured_store(settings)
            self._owned.callback(store.close)
        self.memory = AgentMemoryStoreService.from_settings(settings, self._store, agent_name=self.display_name)
        if not isinstance(self._store, MemoryStore):
            self._owned.callback(self.memory.scope.engine.flush)
        if not any(isinstance(middleware, MemoryMiddleware) for middleware in self._middleware):
            given = {"user_id": self._user_id, "session_id": self._session_id} | options
            made = MemoryMiddleware.from_settings(settings, self.memory, **given)
            if unknown := set(options.get("include_tools", ())) - {tool.name for tool in made.tools}:
                raise ConfigurationError(f"Unknown memory_tools: {', '.join(sorted(map(repr, unknown)))}")
            self._middleware.insert(0, made)
        elif options:
            raise ConfigurationError(
                "memory_* arguments do not reach a MemoryMiddleware that is passed: set them there"
            )
        if settings.capture and not any(isinstance(middleware, CaptureMiddleware) for middleware in self._middleware):
            capture = make_capture(settings, self.memory, self._user_id)
            self._owned.callback(capture.close)
            self._middleware.append(capture)

    def _short_term(self, given: ShortTerm, use_memory: bool) -> list[AgentMiddleware[Any, Any, Any]]:
        """The middleware of short-term memory, as a list of at most one."""
        if any(isinstance(middleware, ShortTermMemoryMiddleware) for middleware in self._middleware):
            if given is not None:
                raise ConfigurationError("Give short_term= or a ShortTermMemoryMiddleware among middleware, not both")
            return []
        if isinstance(given, ShortTermMemoryMiddleware):
            return [given]
        # If the service has no memory of its own, a flush itself puts what it recalls into the prompt.
        overflow = named(self._agent_settings, recalls=self.memory is None) if given is None else given
        if given is None and not overflow:
            return []
        made = ShortTermMemoryMiddleware(
            overflow,
            max_tokens=self._agent_settings.short_term_max_tokens,
            memory_service=self.memory,
            user_id=self._user_id,
            agent_name=self.display_name,
            **policy_of(self._settings),
        )
        if made.needs_store and self.memory is None:
            if use_memory:
                _LOG.warning("Agent %r has no memory to flush into: its conversations only grow", self.agent_name)
                return []
            if self._store is None:
                raise ConfigurationError("A flush needs memory: pass use_memory=True, or change AGENT_SHORT_TERM")
        return [made]
