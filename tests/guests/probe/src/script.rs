//! A conversation with servers that a test writes: steps, one on each line, each of which answers one line. What a step answers is an
//! outcome, or `kind: message` of the error in place of it. Connections are numbered from 0 in the order in which they were asked for.
//!
//! | step | |
//! | --- | --- |
//! | `connect SERVER[@MS][,SERVER[@MS]..] [tls] [name=NAME]` | `ok` for each; several at once, each with its patience |
//! | `patience N MS` | for the waits that follow |
//! | `say N TEXT` | a line |
//! | `flood N[,N..] MIB` | so many MiB to each, side by side |
//! | `ready N[,N..] [MS]` | those that can be read |
//! | `exact N BYTES` | so many bytes as text, escaped; of more than 40 the number |
//! | `drop N` | |

use kv_store_sdk::net::{self, ConnectOptions, ConnectRequest, Connection, Message};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, Payload, Result};

pub fn run(text: &str) -> Result<String> {
    let mut connections = Vec::new();
    let mut said = String::new();
    for line in text.lines() {
        said += &step(line, &mut connections).unwrap_or_else(|error| told(&error));
        said.push('\n');
    }
    Ok(said)
}

fn told(error: &Error) -> String {
    let kind = format!("{:?}", error.kind).to_lowercase();
    format!("{}: {}", kind.trim_start_matches("errorkind::"), error.message)
}

/// Each outcome, in one line.
fn each<T>(outcomes: impl IntoIterator<Item = Result<T>>) -> String {
    let outcome = |outcome: Result<T>| outcome.map_or_else(|error| told(&error), |_| "ok".to_owned());
    outcomes.into_iter().map(outcome).collect::<Vec<_>>().join(", ")
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("{text:?} is no number")))
}

fn step(line: &str, connections: &mut Vec<Option<Connection>>) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let numbers = || word(1).split(',').map(|n| Ok(number(n)? as usize)).collect::<Result<Vec<usize>>>();
    let find = |at: usize| {
        connections.get(at).and_then(Option::as_ref).ok_or_else(|| Error::other(format!("there is no connection {at}")))
    };
    match word(0) {
        "connect" => {
            let with_options = |server: &str| {
                let options = ConnectOptions::new();
                let (server, patience) = server.split_once('@').map_or((server, None), |(it, ms)| (it, Some(ms)));
                if let Some(ms) = patience {
                    options.set_patience(number(ms)? * 1_000_000);
                }
                for option in &words[2..] {
                    match option.split_once('=') {
                        Some((_, name)) => options.set_server_name(name),
                        None => options.set_tls(true),
                    }
                }
                Ok((server.to_owned(), options))
            };
            let servers = word(1).split(',').map(with_options).collect::<Result<Vec<_>>>()?;
            let made = match servers.as_slice() {
                [(server, options)] => vec![net::connect(server, Some(options))],
                several => {
                    let requests: Vec<ConnectRequest> = several
                        .iter()
                        .map(|(server, options)| ConnectRequest { authority: server.clone(), options: Some(options) })
                        .collect();
                    net::connect_all(&requests)
                }
            };
            let told = each(made.iter().map(|made| made.as_ref().map_err(Clone::clone)));
            connections.extend(made.into_iter().map(Result::ok));
            Ok(told)
        }
        "patience" => {
            find(numbers()?[0])?.set_patience(number(word(2))? * 1_000_000);
            Ok("ok".into())
        }
        "say" => {
            let text = line.splitn(3, ' ').nth(2).unwrap_or_default();
            Ok(each([find(numbers()?[0])?.send(&[Part::Bytes(format!("{text}\n").into_bytes())])]))
        }
        "flood" => {
            let data = Payload::from_bytes(&vec![b'x'; 1 << 20])?;
            let mib = number(word(2))?;
            let parts = || (0..mib).map(|_| Part::Payload(&data)).collect();
            let message = |at| Ok(Message { connection: find(at)?, parts: parts() });
            let messages: Vec<Message> = numbers()?.into_iter().map(message).collect::<Result<_>>()?;
            Ok(each(net::send_all(&messages)))
        }
        "ready" => {
            let named = numbers()?;
            let several: Vec<&Connection> = named.iter().map(|at| find(*at)).collect::<Result<_>>()?;
            let patience = words.get(2).map(|ms| number(ms)).transpose()?.map(|ms| ms * 1_000_000);
            let there: Vec<String> =
                net::ready(&several, patience)?.into_iter().map(|at| named[at as usize].to_string()).collect();
            Ok(there.join(","))
        }
        "exact" => {
            let bytes = find(numbers()?[0])?.receive_exact(number(word(2))? as u32)?;
            Ok(if bytes.len() > 40 {
                bytes.len().to_string()
            } else {
                String::from_utf8_lossy(&bytes).escape_default().to_string()
            })
        }
        "drop" => {
            connections[numbers()?[0]] = None;
            Ok("ok".into())
        }
        other => Err(Error::invalid(format!("no such step: {other:?}"))),
    }
}
