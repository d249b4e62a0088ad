"""Thirty leaking programs of threads, as people have reported them, each with its correction.

A report names the fault. Nothing here is anybody's code: each program is the shortest one that we
could think of with that fault.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from tests.testing.corpus.leak import leaks_of

LEAKS, leak = leaks_of()


def at_once(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class HTTPSession:
    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}

    def get(self, user: str) -> str:
        self.cookies["user"] = user
        time.sleep(1)
        return f"page of {self.cookies['user']}"


SESSION = HTTPSession()


@leak("psf/requests#4941", "SESSION.cookies['user']")
def session_of_all_threads(user: str) -> str:
    """Results leak from one request to another, for they share a session."""
    return SESSION.get(user)


def session_of_all_threads_right(user: str) -> str:
    return HTTPSession().get(user)


class Pools:
    """Keeps one pool open, and closes the one before."""

    def __init__(self) -> None:
        self.host = ""
        self.closed: list[str] = []

    def get(self, host: str) -> str:
        if self.host != host:
            self.host = host
        pool = self.host
        time.sleep(1)
        return f"{host} by the pool of {self.host}, then {pool}"


POOLS, USING_POOLS = Pools(), threading.Lock()


@leak("psf/requests#1871", "POOLS.host")
def pool_evicted(host: str) -> str:
    """A pool is evicted between being found and being used."""
    return POOLS.get(host)


def pool_evicted_right(host: str) -> str:
    with USING_POOLS:
        return POOLS.get(host)


class Transport:
    headers: ClassVar[dict[str, str]] = {}


class OwnTransport(Transport):
    def __init__(self) -> None:
        self.headers = {}  # type: ignore[misc]


def _authorized(transport: Transport, token: str) -> str:
    transport.headers["authorization"] = token
    time.sleep(1)
    return transport.headers["authorization"]


@leak(
    "datalab-org/datalab-api#93",
    "Transport.headers['authorization']",
)
def headers_of_all_clients(token: str) -> str:
    """All clients share the headers, and with them who is signed in."""
    return _authorized(Transport(), token)


def headers_of_all_clients_right(token: str) -> str:
    return _authorized(OwnTransport(), token)


class Soap:
    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []

    def call(self, token: str) -> str:
        self.headers = [("authorization", token)]
        time.sleep(1)
        return self.headers[0][1]


SOAP = Soap()


@leak("mvantellingen/python-zeep#758", "SOAP.headers")
def headers_by_user(token: str) -> str:
    """The headers of a user are set on the client before each call."""
    return SOAP.call(token)


def headers_by_user_right(token: str) -> str:
    return Soap().call(token)


api_key = ""


@leak("beyonic/beyonic-python#17", "api_key")
def key_of_the_module(key: str) -> str:
    """The key of a client is a global of its module."""
    global api_key
    api_key = key
    time.sleep(1)
    return f"sent with {api_key}"


def key_of_the_module_right(key: str) -> str:
    time.sleep(1)
    return f"sent with {key}"


@leak("neka-nat/freecad-mcp#93", "sys.stdout")
def redirected_prints(text: str) -> str:
    """What code prints is caught by redirecting the prints of the process."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        time.sleep(1)
        print(text)
    return out.getvalue()


def redirected_prints_right(text: str) -> str:
    out = io.StringIO()
    time.sleep(1)
    print(text, file=out)
    return out.getvalue()


@leak("datarobot-oss/datarobot-genai#217", "sys.stdout")
def prints_sent_elsewhere(text: str) -> str:
    """A sandbox replaces the prints of the process, and puts back what it found."""
    out = io.StringIO()
    before, sys.stdout = sys.stdout, out
    try:
        time.sleep(1)
        print(text)
    finally:
        sys.stdout = before
    return out.getvalue()


def prints_sent_elsewhere_right(text: str) -> str:
    return redirected_prints_right(text)


FOLDERS = {"ada": "/", "bob": "/usr", "cyd": "/etc"}


@leak("microsoft/promptflow#4205", "os.getcwd()")
def current_folder(name: str) -> str:
    """A flow runs in its folder by changing the folder of the process."""
    before = os.getcwd()
    os.chdir(FOLDERS[name])
    try:
        time.sleep(1)
        return os.getcwd()
    finally:
        os.chdir(before)


def current_folder_right(name: str) -> str:
    time.sleep(1)
    return FOLDERS[name]


@leak("tomerfiliba/plumbum#25", "os.environ['HARNESS_CORPUS']")
def environment_of_the_process(name: str) -> str:
    """A command gets its variables by way of the environment of the process."""
    os.environ["HARNESS_CORPUS"] = name
    try:
        time.sleep(1)
        return os.environ.get("HARNESS_CORPUS", "nobody")
    finally:
        os.environ.pop("HARNESS_CORPUS", None)


def environment_of_the_process_right(name: str) -> str:
    environment = {**os.environ, "HARNESS_CORPUS": name}
    time.sleep(1)
    return environment["HARNESS_CORPUS"]


class Engine:
    made = 0

    def __init__(self) -> None:
        time.sleep(1)
        Engine.made += 1
        self.number = Engine.made


class Memory:
    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.lock = threading.Lock()

    def engine_of(self) -> Engine:
        if self.engine is None:
            self.engine = Engine()
        return self.engine

    def engine_in_turn(self) -> Engine:
        with self.lock:
            return self.engine_of()


def _engines(get: Callable[[], Engine]) -> None:
    seen: list[Engine] = []
    at_once(lambda: seen.append(get()), lambda: seen.append(get()))
    assert seen[0] is seen[1]


@leak("r-spade/ormah#27", "Memory.engine (local of _engines)")
def made_twice() -> None:
    """Two threads find no search engine, and make two."""
    _engines(Memory().engine_of)


def made_twice_right() -> None:
    _engines(Memory().engine_in_turn)


class Singleton(type):
    instances: ClassVar[dict[type, Any]] = {}
    lock = threading.RLock()

    def __call__(cls) -> Any:
        if cls not in cls.instances:
            time.sleep(1)
            cls.instances[cls] = super().__call__()
        return cls.instances[cls]


class LockedSingleton(Singleton):
    def __call__(cls) -> Any:
        with cls.lock:
            return super().__call__()


def _same(metaclass: type[Singleton]) -> None:
    made = metaclass("Thing", (), {})
    seen: list[object] = []
    at_once(lambda: seen.append(made()), lambda: seen.append(made()))
    metaclass.instances.pop(made)
    assert seen[0] is seen[1]


@leak("tmancal74/quantarhei#307", "Singleton.instances")
def two_singletons() -> None:
    """A metaclass looks for the instance, and makes it, without a lock."""
    _same(Singleton)


def two_singletons_right() -> None:
    _same(LockedSingleton)


class Provider:
    def __init__(self) -> None:
        self.storage: object | None = object()

    def reset(self) -> None:
        self.storage = None

    def provide(self) -> object:
        if self.storage is None:
            self.storage = object()
        return self.storage

    def provide_once(self) -> object:
        storage = self.storage
        if storage is None:
            self.storage = storage = object()
        return storage


def _provided(provider: Provider, provide: Callable[[], object]) -> None:
    seen: list[object] = []
    at_once(lambda: seen.append(provide()), provider.reset)
    assert seen[0] is not None


@leak("ets-labs/python-dependency-injector#322", "Provider.storage (local of reset_in_between)")
def reset_in_between() -> None:
    """A provider looks at its storage, and returns it after another thread has reset it."""
    provider = Provider()
    _provided(provider, provider.provide)


def reset_in_between_right() -> None:
    provider = Provider()
    _provided(provider, provider.provide_once)


def _managers(lock: contextlib.AbstractContextManager[object]) -> None:
    manager: list[str] | None = None
    found: list[list[str]] = []

    def get() -> list[str]:
        nonlocal manager
        with lock:
            if manager is None:
                time.sleep(1)
                manager = []
            return manager

    def discover(name: str) -> None:
        get().append(name)
        found.append(get())

    at_once(lambda: discover("a"), lambda: discover("b"))
    assert sorted(get()) == ["a", "b"]


@leak("NousResearch/hermes-agent#83684", "manager (local of _managers)")
def plugins_on_an_orphan() -> None:
    """The first of two managers is thrown away, and with it the plugins it has discovered."""
    _managers(contextlib.nullcontext())


def plugins_on_an_orphan_right() -> None:
    _managers(threading.Lock())


def _show(name: str) -> str:
    return f"{name} was warned" if warnings.filters[0][0] == "error" else f"{name} was not"


@leak("sktime/sktime#7906", "warnings.filters")
def silenced_warnings(name: str) -> str:
    """Warnings are silenced for the process, while other threads go on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error" if name == "ada" else "ignore")
        time.sleep(1)
        return _show(name)


def silenced_warnings_right(name: str) -> str:
    time.sleep(1)
    return f"{name} was warned" if name == "ada" else f"{name} was not"


class CommandLineParser:
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def parse(self, source: str) -> list[str]:
        self.tokens = []
        for word in (source, "|", source):
            self.tokens.append(word)
            time.sleep(1)
        return list(self.tokens)


PARSER = CommandLineParser()


@leak("vsajip/sarge#13", "PARSER.tokens")
def parser_of_the_module(source: str) -> list[str]:
    """One parser, with what it is parsing, is used by all threads."""
    return PARSER.parse(source)


def parser_of_the_module_right(source: str) -> list[str]:
    return CommandLineParser().parse(source)


class Rules:
    rules: ClassVar[list[str]] = []

    def parse(self, text: str) -> list[str]:
        self.rules.clear()
        self.rules.append(text)
        time.sleep(1)
        return list(self.rules)


class OwnRules(Rules):
    def __init__(self) -> None:
        self.rules = []  # type: ignore[misc]


@leak("plyara/plyara#58", "Rules.rules")
def rules_of_the_class(text: str) -> list[str]:
    """Each thread has a parser, but they parse into one list."""
    return Rules().parse(text)


def rules_of_the_class_right(text: str) -> list[str]:
    return OwnRules().parse(text)


result: dict[str, str] = {}


@leak("OpenModelica/OMPython#15", "result['value']")
def result_of_the_module(text: str) -> str:
    """A parser collects its result in a global."""
    result["value"] = text
    time.sleep(1)
    return result["value"].upper()


def result_of_the_module_right(text: str) -> str:
    own = {"value": text}
    time.sleep(1)
    return own["value"].upper()


def _timeouts(*, copies: bool) -> None:
    started = {1: 0.0, 2: 0.0}
    errors: list[RuntimeError] = []

    def check() -> None:
        try:
            for _, at in list(started.items()) if copies else started.items():
                time.sleep(at)
        except RuntimeError as error:
            errors.append(error)

    at_once(check, lambda: started.update({3: 0.0}), lambda: started.pop(1))
    assert not errors


@leak("boxed/mutmut#410", "started (local of _timeouts)")
def changed_while_iterated() -> None:
    """A thread looks through a dict of processes while others start and end."""
    _timeouts(copies=False)


def changed_while_iterated_right() -> None:
    _timeouts(copies=True)


form: list[str] = []


def _submitted(name: str, fields: list[str]) -> list[str]:
    fields.clear()
    fields.append(name)
    time.sleep(1)
    return list(fields)


@leak("MikeGawi/ePiframe#49", "form")
def form_of_the_module(name: str) -> list[str]:
    """The form that a user fills in is a global."""
    return _submitted(name, form)


def form_of_the_module_right(name: str) -> list[str]:
    return _submitted(name, [])


class ThreadAware:
    def __init__(self) -> None:
        self.by_thread: dict[str, dict[str, int]] = {}
        self.lock = threading.Lock()

    def set(self, group: str, name: str) -> None:
        if group not in self.by_thread:
            time.sleep(1)
            self.by_thread[group] = {}
        self.by_thread[group][name] = 1

    def set_locked(self, group: str, name: str) -> None:
        with self.lock:
            self.set(group, name)


def _set(aware: ThreadAware, set: Callable[[str, str], None]) -> None:
    at_once(lambda: set("main", "a"), lambda: set("main", "b"))
    assert sorted(aware.by_thread["main"]) == ["a", "b"]


@leak(
    "cherrypy/cherrypy#106",
    "ThreadAware.by_thread (local of overwritten_map)",
)
def overwritten_map() -> None:
    """A map of attributes is made by two threads, and the later one replaces the earlier."""
    aware = ThreadAware()
    _set(aware, aware.set)


def overwritten_map_right() -> None:
    aware = ThreadAware()
    _set(aware, aware.set_locked)


class Hoplite:
    def __init__(self) -> None:
        self.uncommitted: list[str] = []
        self.lock = threading.Lock()

    def insert(self, row: str) -> list[str]:
        self.uncommitted.append(row)
        time.sleep(1)
        rows = list(self.uncommitted)
        self.uncommitted.clear()
        return rows

    def insert_locked(self, row: str) -> list[str]:
        with self.lock:
            return self.insert(row)


HOPLITE = Hoplite()


@leak("google-research/perch-hoplite#156", "HOPLITE.uncommitted")
def others_rows_committed(row: str) -> list[str]:
    """A commit on the shared connection commits what another thread has begun."""
    return HOPLITE.insert(row)


def others_rows_committed_right(row: str) -> list[str]:
    return HOPLITE.insert_locked(row)


handlers: dict[str, list[str]] = {}
INITIALIZING = threading.Lock()


def _initialize(name: str) -> None:
    if "http" not in handlers:
        time.sleep(1)
        handlers["http"] = []
    handlers["http"].append(name)


def _initialized(initialize: Callable[[str], None]) -> None:
    handlers.clear()
    at_once(lambda: initialize("a"), lambda: initialize("b"))
    registered = handlers.pop("http")
    assert len(registered) == 2


@leak("cloudforet-io/python-core#174", "handlers")
def handlers_twice() -> None:
    """Two first requests both initialize the handlers."""
    _initialized(_initialize)


def handlers_twice_right() -> None:
    def locked(name: str) -> None:
        with INITIALIZING:
            _initialize(name)

    _initialized(locked)


USERS = {"ada": "1", "bob": "1", "cyd": "1"}


def _load(users: dict[str, str]) -> None:
    known = dict(users)
    users.clear()
    time.sleep(1)
    users.update(known)


def _checked(name: str, users: dict[str, str]) -> str:
    _load(users)
    return f"{name} is {'in' if name in users else 'out'}"


@leak("datawire/ambassador-auth-httpbasic#5", "USERS")
def users_being_loaded(name: str) -> str:
    """Users are checked while another thread loads them anew."""
    return _checked(name, USERS)


def users_being_loaded_right(name: str) -> str:
    return _checked(name, dict(USERS))


@functools.cache
def reductions(name: str) -> list[str]:
    return [name]


@leak("zooniverse/aggregation-for-caesar#166", "reductions")
def cached_for_all(user: str) -> list[str]:
    """What is cached for all users is changed by one."""
    found = reductions("all")
    found.append(user)
    time.sleep(1)
    return list(found)


def cached_for_all_right(user: str) -> list[str]:
    found = [*reductions("all"), user]
    time.sleep(1)
    return found


message = ""


def _reply() -> str:
    time.sleep(1)
    return f"re: {message}"


@leak("paicha/gxgk-wechat-server#8", "message")
def message_of_the_module(text: str) -> str:
    """The message that is answered is a global, for the helpers."""
    global message
    message = text
    return _reply()


def message_of_the_module_right(text: str) -> str:
    time.sleep(1)
    return f"re: {text}"


@leak("numpy/numpy#32059", "random")
def seed_of_the_process(name: str) -> float:
    """A thread seeds the random numbers of all."""
    random.seed(name)
    time.sleep(1)
    return random.random()


def seed_of_the_process_right(name: str) -> float:
    own = random.Random(name)
    time.sleep(1)
    return own.random()


TEMPORARY: dict[str, str] = {}


def _summed(path: str, text: str) -> str:
    TEMPORARY[path] = text
    time.sleep(1)
    summary = TEMPORARY.get(path, "gone")
    TEMPORARY.pop(path, None)
    return summary


@leak("opea-project/GenAIExamples#1279", "TEMPORARY['/tmp/report.pdf']")
def one_temporary_file(text: str) -> str:
    """Threads overwrite and remove each other's temporary file."""
    return _summed("/tmp/report.pdf", text)


def one_temporary_file_right(text: str) -> str:
    return _summed(f"/tmp/{text}.pdf", text)


class Settings:
    def __init__(self) -> None:
        self.stream = "nobody"


SETTINGS = Settings()


@contextlib.contextmanager
def temporarily(settings: Settings, stream: str) -> Any:
    before, settings.stream = settings.stream, stream
    try:
        yield
    finally:
        settings.stream = before


def _streamed(settings: Settings, stream: str) -> str:
    with temporarily(settings, stream):
        time.sleep(1)
        return settings.stream


@leak("langroid/langroid#816", "SETTINGS.stream")
def settings_for_a_while(stream: str) -> str:
    """Global settings are changed for a block, and put back after it."""
    return _streamed(SETTINGS, stream)


def settings_for_a_while_right(stream: str) -> str:
    return _streamed(Settings(), stream)


BOUND: dict[str, str] = {}


def _logged(context: dict[str, str], request: str) -> str:
    context.setdefault("request_id", request)
    time.sleep(1)
    return f"request_id={context['request_id']}"


@leak("ONSdigital/eq-survey-runner#2396", "BOUND['request_id']")
def context_of_the_last_request(request: str) -> str:
    """Lines are logged with what an earlier request has bound."""
    return _logged(BOUND, request)


def context_of_the_last_request_right(request: str) -> str:
    return _logged({}, request)


CONFIGURATION = {"sender": "udp", "plugin_a": "on"}


def _from_dict(config: dict[str, str]) -> str:
    return f"{config.pop('sender', 'none')}, {config.pop('plugin_a', 'off')}"


@leak("mozilla-services/metlog-py#37", "CONFIGURATION")
def configuration_used_up(name: str) -> str:
    """Making a client takes its configuration apart, and there is none for the next."""
    return f"{name}: {_from_dict(CONFIGURATION)}"


def configuration_used_up_right(name: str) -> str:
    return f"{name}: {_from_dict(dict(CONFIGURATION))}"
