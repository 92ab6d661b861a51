//! `net`, on a server that answers each line with itself, and `http`, on one that keeps objects.

use kv_store_sdk::http::{self, Request, RequestOptions, Response};
use kv_store_sdk::net::{self, ConnectOptions, ConnectRequest, Connection, Message};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Chunk, Result};

use crate::{content, done, row, text};

const MS: u64 = 1_000_000;

fn say(connection: &Connection, line: &str) -> Result<()> {
    connection.send(&[Part::Bytes(line.as_bytes().to_vec())])
}

fn each<T>(outcomes: Vec<Result<T>>) -> String {
    let said = |outcome: Result<T>| outcome.map_or_else(|error| crate::kind(&error), |_| "ok".into());
    outcomes.into_iter().map(said).collect::<Vec<_>>().join(", ")
}

pub fn ask(echo: &str, objects: &str, chunks: &[Chunk]) {
    connect(echo);
    if let Err(error) = converse(echo, chunks) {
        row("net: the conversation", Err::<&str, _>(error));
    }
    if let Err(error) = several(echo) {
        row("net: several", Err::<&str, _>(error));
    }
    requests(objects, chunks);
}

fn connect(echo: &str) {
    row("connect: granted", done(net::connect(echo, None)));
    row("connect: not granted", done(net::connect("192.0.2.1:1", None)));
    row("connect: no port", done(net::connect("localhost", None)));
    row("connect: nothing", done(net::connect("", None)));
    let options = ConnectOptions::new();
    row("set-session: 1024 bytes", done(options.set_session(&"s".repeat(1024))));
    row("set-session: 1025 bytes", done(options.set_session(&"s".repeat(1025))));
    options.set_patience(0);
    options.set_patience(u64::MAX);
    row("connect: with a session", net::connect(echo, Some(&options)).map(|connection| connection.resumed()));
    options.set_server_name("a name that is none");
    row("connect: a server name that is none", done(net::connect(echo, Some(&options))));
}

fn converse(echo: &str, chunks: &[Chunk]) -> Result<()> {
    let c = net::connect(echo, None)?;
    row("resumed: a new connection", Ok(c.resumed()));
    row("send: nothing", done(c.send(&[])));
    row("send: parts", done(c.send(&[Part::Bytes(b"one ".to_vec()), chunks[0].part(), Part::Bytes(b"\n".to_vec())])));
    row("receive-exact", c.receive_exact(4).map(|bytes| text(&bytes)));
    row("receive-exact: nothing", c.receive_exact(0).map(|bytes| text(&bytes)));
    row("receive-until: the delimiter is not returned", c.receive_until(b"\n", 100).map(|bytes| text(&bytes)));
    say(&c, "12345\r\n")?;
    row(
        "receive-until: as many as the limit, without the delimiter",
        c.receive_until(b"\r\n", 5).map(|bytes| text(&bytes)),
    );
    say(&c, "some\n")?;
    row("receive-some", c.receive_some(100).map(|bytes| !bytes.is_empty() && bytes.len() <= 5));
    row("receive-some: a limit of 0", c.receive_some(0).map(|bytes| text(&bytes)));
    let c = net::connect(echo, None)?;
    row("receive-until: a delimiter of nothing", done(c.receive_until(b"", 10)));
    let c = net::connect(echo, None)?;
    row("receive-until: a delimiter of 17 bytes", done(c.receive_until(&[b'x'; 17], 10)));
    let c = net::connect(echo, None)?;
    say(&c, "123456\n")?;
    row("receive-until: more than the limit", done(c.receive_until(b"\n", 5)));
    let c = net::connect(echo, None)?;
    say(&c, "payload and more\n")?;
    row("receive-payload: no item", c.receive_payload(7, None).and_then(|payload| content(&payload)));
    row("receive-payload: nothing", c.receive_payload(0, None).map(|payload| payload.len()));
    row("receive-payload: an item in a put", c.receive_payload(4, Some(0)).and_then(|payload| content(&payload)));
    row("skip", done(c.skip(1)));
    row("skip: nothing", done(c.skip(0)));
    row("after skip", c.receive_until(b"\n", 10).map(|bytes| text(&bytes)));
    c.set_patience(50 * MS);
    row("patience: no byte comes", done(c.receive_exact(1)));
    row("patience: the connection is over", done(say(&c, "x\n")));
    let c = net::connect(echo, None)?;
    say(&c, "bye\n")?;
    row("receive-exact: the peer closes first", c.receive_exact(5).map(|bytes| text(&bytes)));
    let c = net::connect(echo, None)?;
    say(&c, "bye\n")?;
    row("receive-some: what came before the end", c.receive_until(b"\n", 10).map(|bytes| text(&bytes)));
    row("receive-some: the peer has finished", c.receive_some(10).map(|bytes| text(&bytes)));

    let options = ConnectOptions::new();
    options.set_session("edges")?;
    let c = net::connect(echo, Some(&options))?;
    row("park: new", Ok(c.resumed()));
    net::park(c);
    let c = net::connect(echo, Some(&options))?;
    row("park: taken up", Ok(c.resumed()));
    say(&c, "still\n")?;
    row("park: it works", c.receive_until(b"\n", 10).map(|bytes| text(&bytes)));
    net::park(c);
    let other = ConnectOptions::new();
    other.set_session("edges other")?;
    row("park: another session", net::connect(echo, Some(&other)).map(|connection| connection.resumed()));
    row("park: without a session", net::connect(echo, None).map(|connection| connection.resumed()));
    // One with an answer outstanding is not handed out.
    let c = net::connect(echo, Some(&other))?;
    say(&c, "unread\n")?;
    net::ready(&[&c], None)?;
    net::park(c);
    row("park: with bytes that nobody read", net::connect(echo, Some(&other)).map(|connection| connection.resumed()));
    Ok(())
}

fn several(echo: &str) -> Result<()> {
    let request = |authority: &str| ConnectRequest { authority: authority.into(), options: None };
    row("connect-all", Ok(each(net::connect_all(&[request(echo), request("192.0.2.1:1"), request(echo)]))));
    row("connect-all: none", Ok(net::connect_all(&[]).len()));
    let (a, b) = (net::connect(echo, None)?, net::connect(echo, None)?);
    let message = |connection, line: &str| Message { connection, parts: vec![Part::Bytes(line.as_bytes().to_vec())] };
    row("send-all", Ok(each(net::send_all(&[message(&a, "a\n"), message(&b, "b\n")]))));
    row(
        "send-all: answers",
        a.receive_until(b"\n", 9).and_then(|left| Ok(text(&[left, b.receive_until(b"\n", 9)?].concat()))),
    );
    row("send-all: one connection twice", Ok(each(net::send_all(&[message(&a, "1\n"), message(&a, "2\n")]))));
    row("send-all: what was sent of those", a.receive_until(b"\n", 9).map(|bytes| text(&bytes)));
    row("send-all: none", Ok(net::send_all(&[]).len()));
    row("ready: none says anything", net::ready(&[&a, &b], Some(50 * MS)).map(|ready| ready.len()));
    say(&b, "here\n")?;
    row("ready: one does", net::ready(&[&a, &b], None).map(|ready| format!("{ready:?}")));
    row("ready: twice the same answer", net::ready(&[&b, &a], None).map(|ready| format!("{ready:?}")));
    row("ready: an empty list", done(net::ready(&[], None)));
    row("ready: one twice", done(net::ready(&[&a, &a], None)));
    say(&a, "bye\n")?;
    a.receive_until(b"\n", 9)?;
    row("ready: a peer that has finished", net::ready(&[&a], None).map(|ready| format!("{ready:?}")));
    Ok(())
}

fn requests(objects: &str, chunks: &[Chunk]) {
    let options = RequestOptions::new();
    options.set_max_body(20);
    options.set_patience(u64::MAX);
    let request = |method: &str, path: &str| Request {
        method: method.into(),
        authority: objects.into(),
        path: path.into(),
        headers: Vec::new(),
        body: Vec::new(),
        item: None,
        options: None,
    };
    let status = |answers: Vec<Result<Response>>| {
        let said = |answer: Result<Response>| answer.map_or_else(|error| crate::kind(&error), |r| r.status.to_string());
        answers.into_iter().map(said).collect::<Vec<_>>().join(", ")
    };
    let with = |headers: &[(&str, &str)]| Request {
        headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..request("GET", "/edges/a")
    };
    let body = vec![Part::Bytes(b"body of ".to_vec()), chunks[0].part()];
    row("http: none", Ok(http::send(&[]).len()));
    row("http: PUT", Ok(status(http::send(&[Request { body, ..request("PUT", "/edges/a") }]))));
    let mut found = http::send(&[request("GET", "/edges/a")]);
    row(
        "http: GET",
        found.pop().unwrap_or_else(|| Err(kv_store_sdk::Error::other("none"))).and_then(|r| content(&r.body)),
    );
    row("http: GET of what is not there", Ok(status(http::send(&[request("GET", "/edges/none")]))));
    let mut head = http::send(&[request("HEAD", "/edges/a")]);
    row(
        "http: HEAD has no body",
        head.pop().unwrap_or_else(|| Err(kv_store_sdk::Error::other("none"))).map(|r| r.body.len()),
    );
    row("http: several", Ok(status(http::send(&[request("GET", "/edges/none"), request("GET", "/edges/a")]))));
    let bounded = Request { options: Some(&options), ..request("GET", "/edges/a") };
    row("http: a body within set-max-body", Ok(status(http::send(&[bounded]))));
    options.set_max_body(5);
    let bounded = Request { options: Some(&options), ..request("GET", "/edges/a") };
    row("http: a body over set-max-body", Ok(status(http::send(&[bounded]))));
    let named = RequestOptions::new();
    named.set_server_name("a name that is none");
    let bounded = Request { options: Some(&named), ..request("GET", "/edges/a") };
    row("http: a server name that is none", Ok(status(http::send(&[bounded]))));
    for method in ["CONNECT", "", "GE T", "G\u{e9}T"] {
        row(&format!("http: the method {method:?}"), Ok(status(http::send(&[request(method, "/edges/a")]))));
    }
    for path in ["", "edges/a", "/ed ges", "/a#b", "/\u{e9}", "/a\r\nb", "*"] {
        row(&format!("http: the path {path:?}"), Ok(status(http::send(&[request("GET", path)]))));
    }
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "connection",
        "TE",
        "Expect",
        "Upgrade",
        "Trailer",
        "keep-alive",
    ] {
        row(&format!("http: the header {name}"), Ok(status(http::send(&[with(&[(name, "x")])]))));
    }
    row("http: a header's name with a space", Ok(status(http::send(&[with(&[("a b", "x")])]))));
    row("http: a header's value with a line break", Ok(status(http::send(&[with(&[("a", "x\r\nb: c")])]))));
    row("http: a header's value that is not ASCII", Ok(status(http::send(&[with(&[("a", "\u{e9}")])]))));
    row("http: a header's value with spaces within", Ok(status(http::send(&[with(&[("a", "x y")])]))));
    row("http: 129 headers", Ok(status(http::send(&[with(&vec![("a", "b"); 129])]))));
    row("http: 64 KiB of head", Ok(status(http::send(&[with(&[("a", &"b".repeat(65_536))])]))));
    let elsewhere = Request { authority: "192.0.2.1:1".into(), ..request("GET", "/") };
    row("http: not granted", Ok(status(http::send(&[elsewhere, request("GET", "/edges/a")]))));
    let unknown = Request { body: vec![Part::Item(9)], ..request("PUT", "/edges/b") };
    row("http: a body of an item that is not there", Ok(status(http::send(&[unknown]))));
    row("http: DELETE", Ok(status(http::send(&[request("DELETE", "/edges/a")]))));
}

/// What comes for items of a get.
pub fn receive_items(echo: &str, objects: &str) {
    let receive = |item| {
        let connection = net::connect(echo, None)?;
        say(&connection, "fetched\n")?;
        connection.receive_payload(7, item).and_then(|payload| content(&payload))
    };
    row("get-chunks: receive-payload of item 0", receive(Some(0)));
    row("get-chunks: receive-payload of an item that is not there", receive(Some(99)));
    let request = |method: &str, body: Vec<Part<'static>>, item| Request {
        method: method.into(),
        authority: objects.into(),
        path: "/edges/item".into(),
        headers: Vec::new(),
        body,
        item,
        options: None,
    };
    drop(http::send(&[request("PUT", vec![Part::Bytes(b"object".to_vec())], None)]));
    for (what, item) in [("of item 1", Some(1)), ("of an item that is not there", Some(99))] {
        let answer = http::send(&[request("GET", Vec::new(), item)]).pop();
        let body = answer.unwrap_or_else(|| Err(kv_store_sdk::Error::other("none"))).and_then(|r| content(&r.body));
        row(&format!("get-chunks: a body {what}"), body);
    }
    drop(http::send(&[request("DELETE", Vec::new(), None)]));
}
