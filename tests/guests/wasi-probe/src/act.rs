//! What can be tried, by name. An answer is what a person would say came of it; what fails answers `error: ...`.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::time::Duration;

use wasip2::clocks::monotonic_clock;
use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{DescriptorFlags, OpenFlags, PathFlags};
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress};
use wasip2::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};

pub fn act(what: &str, with: &str) -> String {
    process(what, with)
        .or_else(|| paths(what, with))
        .or_else(|| clocks(what))
        .or_else(|| many(what, with))
        .or_else(|| sockets(what, with))
        .unwrap_or_else(|| format!("error: no such thing: {what}"))
}

/// What a process is told, what it prints, and how it ends.
fn process(what: &str, with: &str) -> Option<String> {
    Some(match what {
        "environment" => std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect(),
        "arguments" => std::env::args().collect::<Vec<_>>().join(" "),
        "random" => {
            let bytes = wasip2::random::random::get_random_bytes(number(with));
            format!("{} {}", bytes.len(), bytes.iter().any(|byte| *byte != 0))
        }
        "input" => {
            let mut input = String::new();
            said(std::io::stdin().read_to_string(&mut input).map(|count| count.to_string()))
        }
        "print" => {
            println!("first of\u{1b}[31m {with}\nsecond of {with}");
            eprintln!("{}", "long ".repeat(1000));
            eprint!("unended {with}");
            "done".into()
        }
        "print-bytes" => said(std::io::stderr().write_all(b"\xff\xfe\x80 bytes\n").map(|()| "done")),
        "flood" => {
            (0..10_000).for_each(|_| eprintln!("a flood"));
            "done".into()
        }
        "exit" => std::process::exit(3),
        "panic" => panic!("told to"),
        _ => return None,
    })
}

/// What can be done to a path.
fn paths(what: &str, with: &str) -> Option<String> {
    Some(match what {
        "roots" => get_directories().into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" "),
        "list" => said(std::fs::read_dir(with).map(|entries| {
            let mut names: Vec<String> =
                entries.flatten().map(|entry| entry.file_name().display().to_string()).collect();
            names.sort();
            names.join(" ")
        })),
        "read" => said(std::fs::read_to_string(with)),
        "write" => said(std::fs::write(with, "written").map(|()| "done")),
        "make" => said(std::fs::create_dir(with).map(|()| "done")),
        "remove" => said(std::fs::remove_file(with).map(|()| "done")),
        "rename" => {
            let (from, to) = with.split_once(' ').unwrap_or_default();
            said(std::fs::rename(from, to).map(|()| "done"))
        }
        "link" => {
            let (to, at) = with.split_once(' ').unwrap_or_default();
            get_directories()
                .first()
                .map_or("no root".into(), |(root, _)| code(root.symlink_at(to, at).map(|()| "done")))
        }
        "hard-link" => {
            let (of, at) = with.split_once(' ').unwrap_or_default();
            let Some((root, _)) = get_directories().into_iter().next() else { return Some("no root".into()) };
            code(root.link_at(PathFlags::empty(), of, &root, at).map(|()| "done"))
        }
        // A file is opened to be read, and then made shorter.
        "shorten" => said(std::fs::File::open(with).and_then(|file| file.set_len(0)).map(|()| "done")),
        "truncate" => said(std::fs::OpenOptions::new().write(true).truncate(true).open(with).map(|_| "done")),
        _ => return None,
    })
}

/// What waits.
fn clocks(what: &str) -> Option<String> {
    Some(match what {
        "sleep" => {
            std::thread::sleep(Duration::from_secs(3600));
            "slept".into()
        }
        "never" => {
            monotonic_clock::subscribe_duration(u64::MAX).block();
            "woken".into()
        }
        "naps" => {
            (0..200).for_each(|_| monotonic_clock::subscribe_duration(0).block());
            std::thread::sleep(Duration::from_millis(2));
            "woken".into()
        }
        _ => return None,
    })
}

/// Handles of the host, as many as asked for.
fn many(what: &str, with: &str) -> Option<String> {
    Some(match what {
        "pollables" => {
            let held: Vec<_> = (0..number(with)).map(|n| monotonic_clock::subscribe_duration(n << 40)).collect();
            held.len().to_string()
        }
        "files" => {
            let Some((root, _)) = get_directories().pop() else { return Some("no root".into()) };
            let open = |_| root.open_at(PathFlags::empty(), "many", OpenFlags::CREATE, DescriptorFlags::WRITE);
            let opened: Vec<_> = (0..number(with)).map(open).collect();
            format!("{}", opened.iter().filter(|file| file.is_ok()).count())
        }
        // Kept for good, as a guest may; and slowly, so that many instances are at it at once.
        "sockets" => {
            let make = |_| tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4);
            let made: Vec<_> = (0..number(with)).map(make).filter_map(Result::ok).collect();
            monotonic_clock::subscribe_duration(50_000_000).block();
            made.leak().len().to_string()
        }
        "keep-files" => {
            let Some((root, _)) = get_directories().pop() else { return Some("no root".into()) };
            let open = |_| root.open_at(PathFlags::empty(), "many", OpenFlags::CREATE, DescriptorFlags::WRITE);
            // A stream keeps a file open without its descriptor.
            let stream = |file: wasip2::filesystem::types::Descriptor| file.write_via_stream(0).ok();
            let opened: Vec<_> = (0..number(with)).map(open).filter_map(Result::ok).filter_map(stream).collect();
            monotonic_clock::subscribe_duration(50_000_000).block();
            opened.leak().len().to_string()
        }
        "listings" => {
            let Some((root, _)) = get_directories().pop() else { return Some("no root".into()) };
            let held: Vec<_> = (0..number(with)).map(|_| root.read_directory()).collect();
            let refused = held.iter().filter(|listing| listing.is_err()).count();
            format!("{refused} refused")
        }
        _ => return None,
    })
}

/// What can be done with a network.
fn sockets(what: &str, with: &str) -> Option<String> {
    Some(match what {
        "connect" => {
            let (address, port) = with.split_once(' ').unwrap_or_default();
            match address.parse::<Ipv4Addr>() {
                Ok(address) => {
                    let [a, b, c, d] = address.octets();
                    code(greet((a, b, c, d), number(port) as u16))
                }
                Err(_) => code(resolve(address).and_then(|address| greet(address, number(port) as u16))),
            }
        }
        "listen" => code(listen()),
        "datagrams" => code(udp_create_socket::create_udp_socket(IpAddressFamily::Ipv4).map(|_| "done")),
        _ => return None,
    })
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

fn said(outcome: std::io::Result<impl Display>) -> String {
    outcome.map_or_else(|error| format!("error: {error}"), |said| said.to_string())
}

fn code(outcome: Result<impl Display, impl Display>) -> String {
    outcome.map_or_else(|code| format!("error: {code}"), |said| said.to_string())
}

type Octets = (u8, u8, u8, u8);

fn resolve(name: &str) -> Result<Octets, ErrorCode> {
    let lookup = ip_name_lookup::resolve_addresses(&instance_network(), name)?;
    lookup.subscribe().block();
    loop {
        match lookup.resolve_next_address()? {
            Some(IpAddress::Ipv4(address)) => return Ok(address),
            Some(IpAddress::Ipv6(_)) => {}
            None => return Err(ErrorCode::NameUnresolvable),
        }
    }
}

/// Connect, say `hello`, and hear what comes back.
fn greet(address: Octets, port: u16) -> Result<String, ErrorCode> {
    let socket = tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4)?;
    let address = IpSocketAddress::Ipv4(Ipv4SocketAddress { port, address });
    socket.start_connect(&instance_network(), address)?;
    let ready = socket.subscribe();
    let (input, output) = loop {
        match socket.finish_connect() {
            Err(ErrorCode::WouldBlock) => ready.block(),
            connected => break connected?,
        }
    };
    output.blocking_write_and_flush(b"hello").map_err(|_| ErrorCode::ConnectionReset)?;
    let heard = input.blocking_read(100).map_err(|_| ErrorCode::ConnectionReset)?;
    Ok(String::from_utf8_lossy(&heard).into_owned())
}

fn listen() -> Result<String, ErrorCode> {
    let socket = tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4)?;
    let anywhere = IpSocketAddress::Ipv4(Ipv4SocketAddress { port: 0, address: (0, 0, 0, 0) });
    socket.start_bind(&instance_network(), anywhere)?;
    socket.finish_bind()?;
    socket.start_listen()?;
    Ok("listening".into())
}
