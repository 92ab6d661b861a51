//! A server that answers each line with itself, and ends with the line `bye`: what the guest `edges` asks `net` on.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// A running server; its threads end with the process. Its port.
pub fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(&stream));
        }
    });
    port
}

fn serve(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while line != b"bye\n" && {
        line.clear();
        lines.read_until(b'\n', &mut line)? > 0
    } {
        stream.write_all(&line)?;
    }
    Ok(())
}
