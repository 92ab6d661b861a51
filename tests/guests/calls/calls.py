"""A backend that calls each function of the contract's imports. The manifest `rows` tells what came: `INTERFACE.FUNCTION: OUTCOME`, one
line for each call. `tests/compat/calls.txt` has what must come, on every host.

`SCHEME:///DIRECTORY` calls `payloads`, `system`, `changes` and `files`; `SCHEME://ECHO,OBJECTS/x` calls `net` on a server that answers
each line with itself, and `http` on one that keeps objects.
"""

from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.imports import changes, files, http, net, payloads, system
from wit_world.imports import store_types as s
from wit_world.imports.payloads import Part_Bytes, Part_Payload, Part_Range, Payload, Range
from wit_world.imports.types import Error, ErrorKind

SECOND = 1_000_000_000
where = ""
rows: list[str] = []


def content(payload: Payload) -> str:
    return payload.read(0, payload.len()).decode()


def row(name: str, call, shown=lambda answer: answer):
    """Note what a call came to. Returns what it returned."""
    try:
        answer = call()
        said = shown(answer)
    except Err as error:
        answer, said = None, error.value.kind.name.lower()
    said = "done" if said is None else str(said).lower() if isinstance(said, bool) else said
    rows.append(f"{name}: {said}\n")
    return answer


def is_there(_) -> str:
    return "done"


def part(text: str) -> Part_Bytes:
    return Part_Bytes(text.encode())


def text(bytes: bytes) -> str:
    return bytes.decode()


def hex(bytes: bytes) -> str:
    return bytes[:8].hex()


def own_bytes() -> None:
    payload = row("payloads.payload.from-bytes", lambda: Payload.from_bytes(b"0123456789"), is_there)
    some = Part_Range(Range(payload, 2, 3))
    row("payloads.payload.from-parts", lambda: Payload.from_parts([part("a"), some]), content)
    row("payloads.payload.len", lambda: payload.len())
    row("payloads.payload.read", lambda: payload.read(2, 3), text)
    row("payloads.payload.share", lambda: payload.share(), content)
    whole = [Part_Payload(payload)]
    row("payloads.crc32c", lambda: payloads.crc32c(whole), "{:x}".format)
    row("payloads.xxh3", lambda: payloads.xxh3(whole), "{:x}".format)
    row("payloads.sha256", lambda: payloads.sha256([part("abc")]), hex)
    row("payloads.hmac-sha256", lambda: payloads.hmac_sha256(b"key", [part("abc")]), hex)


def host() -> None:
    row("system.log", lambda: system.log(system.Level.DEBUG, "a line"))
    row("system.secret", lambda: system.secret("not-set"), lambda found: found or "none")
    row("system.now", lambda: system.now() > 1_704_000_000 * SECOND)
    then = system.monotonic()
    row("system.sleep", lambda: system.sleep(1_000_000))
    row("system.monotonic", lambda: system.monotonic() - then >= 1_000_000)
    row("system.remaining", lambda: system.remaining() > 0)
    row("system.random", lambda: system.random() != system.random())
    row("system.fact", lambda: system.fact("contract") is not None and system.fact("no-such-fact") is None)
    row("changes.begin", lambda: len(changes.begin([0], b"token")))
    row("changes.not-done", lambda: changes.not_done([0]))


def directory() -> None:
    d = row("files.open-directory", lambda: files.open_directory(""), is_there)

    def tag(outcomes) -> str:
        return type(outcomes[0]).__name__.split("_")[-1].lower()

    def write(path: str):
        return d.write([files.WriteRequest(path, [part("hello")], True)], False)

    row("files.directory.write", lambda: write("a"), tag)
    row("files.directory.read", lambda: d.read([files.ReadRequest("a", 1, 3, None)]), lambda outcomes: content(outcomes[0].value))
    row("files.directory.sizes", lambda: d.sizes(["a"]), lambda outcomes: outcomes[0].value)
    row("files.directory.sync", lambda: d.sync(["a"]))
    row("files.directory.entries", lambda: d.entries("", None, 10), lambda entries: " ".join(entry.name for entry in entries))
    row("files.directory.space", lambda: d.space().total > 0)
    removed = lambda outcomes: f"{tag(outcomes)} {outcomes[0].value}"
    row("files.directory.remove-unused", lambda: d.remove_unused(["a"], 2**64 - 1), removed)
    write("b")
    row("files.directory.remove", lambda: d.remove(["b"], True), tag)


def network(echo: str) -> None:
    options = row("net.connect-options.constructor", lambda: net.ConnectOptions(), is_there)
    row("net.connect-options.set-tls", lambda: options.set_tls(False))
    row("net.connect-options.set-server-name", lambda: options.set_server_name(echo.split(":")[0]))
    row("net.connect-options.set-session", lambda: options.set_session("calls"))
    row("net.connect-options.set-patience", lambda: options.set_patience(SECOND))
    c = row("net.connect", lambda: net.connect(echo, options), is_there)
    row("net.connection.resumed", lambda: c.resumed())
    row("net.connection.set-patience", lambda: c.set_patience(SECOND))
    row("net.connection.send", lambda: c.send([part("exactuntil\npayload skip\n")]))
    row("net.connection.receive-exact", lambda: c.receive_exact(5), text)
    row("net.connection.receive-until", lambda: c.receive_until(b"\n", 10), text)
    row("net.connection.receive-payload", lambda: c.receive_payload(7, None), content)
    row("net.connection.skip", lambda: c.skip(6))
    c.send([part("s")])
    c.send([part("\n")])
    row("net.connection.receive-some", lambda: c.receive_some(1), text)
    c.skip(1)
    row("net.park", lambda: net.park(c))
    row("net.connection.resumed", lambda: net.connect(echo, options).resumed())
    outcomes = lambda answers: " ".join(type(answer).__name__.lower() for answer in answers)
    request = net.ConnectRequest(echo, None)
    both = [answer.value for answer in row("net.connect-all", lambda: net.connect_all([request, request]), outcomes)]
    messages = [net.Message(both[0], []), net.Message(both[1], [part("here\n")])]
    row("net.send-all", lambda: net.send_all(messages), outcomes)
    row("net.ready", lambda: net.ready(both, SECOND), lambda places: " ".join(map(str, places)))


def requests(authority: str) -> None:
    options = row("http.request-options.constructor", lambda: http.RequestOptions(), is_there)
    row("http.request-options.set-tls", lambda: options.set_tls(False))
    row("http.request-options.set-server-name", lambda: options.set_server_name(authority.split(":")[0]))
    row("http.request-options.set-patience", lambda: options.set_patience(SECOND))
    row("http.request-options.set-max-body", lambda: options.set_max_body(6))

    def send(method: str, body, options):
        return http.send([http.Request(method, authority, "/calls/a", [], body, None, options)])

    def outcome(answers) -> str:
        [answer] = answers
        if isinstance(answer, Ok):
            return f"{answer.value.status} {content(answer.value.body)}".rstrip()
        return answer.value.kind.name.lower()

    row("http.send", lambda: send("PUT", [part("object")], None), outcome)
    row("http.send", lambda: send("GET", [], options), outcome)
    options.set_max_body(5)
    row("http.send", lambda: send("GET", [], options), outcome)
    row("http.send", lambda: send("DELETE", [], None), outcome)


class Store(exports.Store):
    def open(self, uri, options):
        global where
        where = uri.partition("://")[2]
        return s.Features("calls", s.Properties.HOLDS_DATA, None, None, None, None, [])

    def exists(self, hashes):
        return [s.Presence_Absent()] * (len(hashes.bytes) // hashes.width)

    def put_chunks(self, hashes, lens, replace):
        return [s.PutOutcome_Failed(Error(ErrorKind.UNSUPPORTED, "this backend keeps nothing", None))] * len(lens)

    def get_chunks(self, hashes):
        return [s.GetOutcome_Missing()] * (len(hashes.bytes) // hashes.width)

    def delete_chunks(self, hashes):
        return [s.DeleteOutcome_Gone()] * (len(hashes.bytes) // hashes.width)

    def commit(self, fresh, manifest):
        return s.CommitOutcome_Published()

    def get_manifest(self, name):
        if name != "rows":
            return None
        rows.clear()
        if where.startswith("/"):
            own_bytes()
            host()
            directory()
        else:
            echo, objects = where.split("/")[0].split(",")
            network(echo)
            requests(objects)
        return Payload.from_bytes("".join(rows).encode())

    def delete_manifest(self, name):
        pass
