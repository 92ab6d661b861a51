//! A client for Redis that does what a save needs and no more: all questions in one write, all chunks in one vectored write
//! straight from the caller's memory, replies read in bulk.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;

use anyhow::{Result, bail, ensure};

use super::{Saver, write_all};

pub struct NativeClient {
    stream: TcpStream,
    received: Vec<u8>,
    /// Where what was received and not read yet begins.
    begin: usize,
}

impl NativeClient {
    pub fn connect(port: u16, database: u32) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut client = NativeClient { stream, received: Vec::new(), begin: 0 };
        client.command(&[b"SELECT", database.to_string().as_bytes()])?;
        Ok(client)
    }

    fn command(&mut self, arguments: &[&[u8]]) -> Result<Vec<u8>> {
        let mut request = Vec::new();
        push(&mut request, arguments);
        self.stream.write_all(&request)?;
        self.line()
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        loop {
            let waiting = &self.received[self.begin..];
            if let Some(end) = waiting.windows(2).position(|two| two == b"\r\n") {
                let line = waiting[..end].to_vec();
                self.begin += end + 2;
                return Ok(line);
            }
            self.received.drain(..self.begin);
            self.begin = 0;
            let had = self.received.len();
            self.received.resize(had + (16 << 10), 0);
            let count = self.stream.read(&mut self.received[had..])?;
            self.received.truncate(had + count);
            ensure!(count > 0, "the server closed the connection");
        }
    }
}

impl Saver for NativeClient {
    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        let mut request = Vec::new();
        keys.iter().for_each(|key| push(&mut request, &[b"EXISTS", &chunk(key)]));
        self.stream.write_all(&request)?;
        keys.iter().map(|_| Ok(self.line()? == b":1")).collect()
    }

    fn put(&mut self, items: &[(Vec<u8>, &[u8])]) -> Result<()> {
        let headers: Vec<Vec<u8>> = items
            .iter()
            .map(|(key, data)| {
                let mut header = b"*4\r\n".to_vec();
                push_bulk(&mut header, b"SET");
                push_bulk(&mut header, &chunk(key));
                header.extend(format!("${}\r\n", data.len()).into_bytes());
                header
            })
            .collect();
        let mut slices = Vec::with_capacity(items.len() * 3);
        for (header, (_, data)) in headers.iter().zip(items) {
            slices.extend([IoSlice::new(header), IoSlice::new(data), IoSlice::new(b"\r\n$2\r\nNX\r\n")]);
        }
        write_all(&mut self.stream, &mut slices)?;
        for _ in items {
            let line = self.line()?;
            ensure!(line == b"+OK" || line == b"$-1", "SET: {}", String::from_utf8_lossy(&line));
        }
        Ok(())
    }

    fn publish(&mut self, name: &str, data: &[u8], _chunks: &[Vec<u8>]) -> Result<()> {
        match self.command(&[b"SET", &[b"kv:m:", name.as_bytes()].concat(), data])?.as_slice() {
            b"+OK" => Ok(()),
            line => bail!("SET: {}", String::from_utf8_lossy(line)),
        }
    }
}

fn chunk(key: &[u8]) -> Vec<u8> {
    [b"kv:c:", key].concat()
}

fn push(request: &mut Vec<u8>, arguments: &[&[u8]]) {
    request.extend(format!("*{}\r\n", arguments.len()).into_bytes());
    arguments.iter().for_each(|argument| push_bulk(request, argument));
}

fn push_bulk(request: &mut Vec<u8>, argument: &[u8]) {
    request.extend(format!("${}\r\n", argument.len()).into_bytes());
    request.extend(argument);
    request.extend(b"\r\n");
}
