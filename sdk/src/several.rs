//! Several servers asked at once, from one thread: requests are sent side by side, and answers are read as they come, so that a
//! server that hangs holds up no other.

use std::cell::Cell;
use std::rc::Rc;

use crate::net::{self, ConnectRequest, Connection, Message};
use crate::payloads::Part;
use crate::{Conversation, Error, ErrorKind, Peer, Result};

/// How long the others may still take once one server has used up the patience, in nanoseconds. They were asked at the same time.
const LATE: u64 = 100_000_000;

/// What one server is asked.
pub struct Request<'a> {
    pub peer: Rc<Peer>,
    /// What is said first on a new connection, a login for example, and how many answers it has.
    pub greeting: Vec<u8>,
    pub greeting_answers: usize,
    /// The questions, one after the other, and how many answers they have.
    pub parts: Vec<Part<'a>>,
    pub answers: usize,
    /// Ask on a kept connection only, and never again on another one: what is asked holds for the connection that was kept, or may not
    /// be done twice. A new connection is greeted, and is kept for the next time; nothing is asked on it.
    pub kept_only: bool,
    /// See [`Request::was_asked`].
    #[doc(hidden)]
    pub asked: Cell<bool>,
}

impl<'a> Request<'a> {
    /// Questions to a server that wants no greeting.
    pub fn new(peer: Rc<Peer>, parts: Vec<Part<'a>>, answers: usize) -> Self {
        let asked = Cell::new(false);
        Request { peer, greeting: Vec::new(), greeting_answers: 0, parts, answers, kept_only: false, asked }
    }

    /// Whether a byte of the questions may have been sent.
    pub fn was_asked(&self) -> bool {
        self.asked.get()
    }
}

/// Which answer comes next on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Number n of the greeting.
    Greeting(usize),
    /// Number n of the questions.
    Answer(usize),
}

/// Ask each server. `read` is called for each answer as soon as it begins to arrive, with the number of the request, which answer
/// it is, and where to read it from. It reads the whole answer. An error that it returns ends that server's conversation; one that
/// concerns a single answer, and leaves the connection in step, is for `read` to remember. Comes back with, for each request,
/// whether all its answers were read, or why the rest was not.
///
/// A kept connection that turns out to be closed is replaced once, unless the request is `kept_only`: all else may be repeated.
/// Servers that stay silent are waited for together, for one patience.
pub fn ask(requests: &[Request], mut read: impl FnMut(usize, Next, &Conversation) -> Result<()>) -> Vec<Result<()>> {
    let mut outcomes: Vec<Result<()>> = requests.iter().map(|_| Ok(())).collect();
    let stale = converse(requests, (0..requests.len()).collect(), &mut outcomes, &mut read);
    if !stale.is_empty() {
        converse(requests, stale, &mut outcomes, &mut read);
    }
    outcomes
}

/// A connection at work for a request.
struct Line {
    request: usize,
    conversation: Conversation,
    /// Answers that come first, to the greeting, and in all.
    greetings: usize,
    answers: usize,
    /// How many of them were read.
    read: usize,
    /// The questions are asked, and may be asked again.
    asks: bool,
    repeats: bool,
}

impl Line {
    fn next(&self) -> Next {
        match self.read.checked_sub(self.greetings) {
            None => Next::Greeting(self.read),
            Some(answer) => Next::Answer(answer),
        }
    }

    /// The connection was kept from an earlier call, and was closed meanwhile, as it seems.
    fn is_stale(&self, error: &Error) -> bool {
        error.kind == ErrorKind::Unavailable
            && !error.has_run_out()
            && self.read == 0
            && self.repeats
            && self.conversation.connection().resumed()
    }
}

/// Ask the requests of these numbers, and note the outcome of each. Comes back with those whose kept connection was closed.
fn converse(
    requests: &[Request],
    numbers: Vec<usize>,
    outcomes: &mut [Result<()>],
    read: &mut impl FnMut(usize, Next, &Conversation) -> Result<()>,
) -> Vec<usize> {
    let mut stale = Vec::new();
    let mut note = |request: usize, outcome: Result<()>| {
        if let Some(slot) = outcomes.get_mut(request) {
            *slot = outcome;
        }
    };
    let mut lines = Vec::new();
    for (number, connected) in connect(requests, numbers) {
        match connected {
            Ok(line) => lines.push(line),
            Err(error) => note(number, Err(error)),
        }
    }
    let sent = send(requests, &lines);
    let mut waiting = Vec::with_capacity(lines.len());
    for (line, sent) in lines.into_iter().zip(sent) {
        match sent {
            Ok(()) => waiting.push(line),
            Err(error) => {
                if line.is_stale(&error) {
                    stale.push(line.request);
                }
                note(line.request, Err(error));
            }
        }
    }
    let mut patience = None;
    loop {
        // All that was asked is answered.
        for line in waiting.extract_if(.., |line| line.read == line.answers) {
            line.conversation.end();
        }
        if waiting.is_empty() {
            return stale;
        }
        let connections: Vec<&Connection> = waiting.iter().map(|line| line.conversation.connection()).collect();
        // The only one that is left can as well be waited for where it is read.
        let ready = if connections.len() == 1 { Ok(vec![0]) } else { net::ready(&connections, patience) };
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                waiting.iter().for_each(|line| note(line.request, Err(error.clone())));
                return stale;
            }
        };
        // From the last to the first, so that a number still says which one when others have been removed.
        for number in ready.into_iter().rev() {
            let Some(line) = waiting.get_mut(number as usize) else { continue };
            match read(line.request, line.next(), &line.conversation) {
                Ok(()) => line.read += 1,
                Err(error) => {
                    let line = waiting.swap_remove(number as usize);
                    if line.is_stale(&error) {
                        stale.push(line.request);
                    } else if error.kind == ErrorKind::Unavailable {
                        patience = Some(LATE);
                        waiting.iter().for_each(|line| line.conversation.connection().set_patience(LATE));
                    }
                    note(line.request, Err(error));
                }
            }
        }
    }
}

/// Connect for the requests of these numbers, side by side.
fn connect(requests: &[Request], numbers: Vec<usize>) -> Vec<(usize, Result<Line>)> {
    let wanted: Vec<(usize, &Request)> = numbers.into_iter().filter_map(|n| Some((n, requests.get(n)?))).collect();
    let asked: Vec<ConnectRequest> = wanted
        .iter()
        .map(|(_, request)| ConnectRequest {
            authority: request.peer.authority().to_owned(),
            options: Some(request.peer.options()),
        })
        .collect();
    let line = |(number, request): (usize, &Request), connection: Connection| {
        let greetings = if connection.resumed() { 0 } else { request.greeting_answers };
        let asks = connection.resumed() || !request.kept_only;
        let answers = greetings + if asks { request.answers } else { 0 };
        let conversation = Conversation::on(connection);
        Line { request: number, conversation, greetings, answers, read: 0, asks, repeats: !request.kept_only }
    };
    let connected = wanted.iter().zip(net::connect_all(&asked));
    connected.map(|(wanted, connection)| (wanted.0, connection.map(|connection| line(*wanted, connection)))).collect()
}

/// Say what there is to say, side by side.
fn send(requests: &[Request], lines: &[Line]) -> Vec<Result<()>> {
    let message = |line: &Line| {
        let request = requests.get(line.request);
        let greeting = request.filter(|_| line.greetings > 0).map(|request| Part::Bytes(request.greeting.clone()));
        let request = request.filter(|_| line.asks);
        let questions = request.into_iter().flat_map(|request| {
            request.asked.set(true);
            request.parts.iter().cloned()
        });
        greeting.into_iter().chain(questions).collect::<Vec<Part>>()
    };
    let messages: Vec<Message> =
        lines.iter().map(|line| Message { connection: line.conversation.connection(), parts: message(line) }).collect();
    net::send_all(&messages)
}
