//! A connection's bytes: frames in, each checked before anybody sees it, and answers out.
//!
//! Every wait is bounded: for the next frame by the idle time, for the rest of one by the time that its length is given.

use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::time::Duration;

use memkv_wire::{Fault, HEADER_BYTES, Header, Incoming, Key, Outgoing, TAG_BYTES, Version};

use crate::inflight::{Inflight, SMALL_BYTES, Share};
use crate::os::{Instant, Shutdown, TcpStream};

/// How long a frame may take, besides a second for each MiB of it, and how long a client may not read its answers.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long a frame that holds a share may take for each [`STEP_BYTES`] while another frame waits for one.
const STEP_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether one does.
const LOOK: Duration = Duration::from_secs(1);
/// What a share grows by as a frame comes.
const STEP_BYTES: u64 = 1 << 20;
/// What is read and tagged at once: it is still in the processor's cache when it is tagged.
const PIECE_BYTES: usize = 64 << 10;
/// Answers are sent when there are so many bytes of them, or when no request is waiting.
const OUTPUT_BYTES: usize = 32 << 10;
/// How long, and for how many bytes, a client that was refused is listened to, so that it can read why.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 << 20;

/// A frame whose tag is right.
pub struct Frame<'a> {
    pub header: Header,
    pub fields: Vec<u8>,
    pub value: Vec<u8>,
    /// Its part of what all connections may hold while they receive.
    pub share: Share<'a>,
}

/// Why there is no frame.
pub enum End {
    /// The client has finished, or is gone, or has another session in this one's place, or the server stops: nobody wants an answer.
    Closed,
    /// It ended or stood still within a frame.
    Truncated,
    /// Something was wrong with it.
    Fault(Fault),
    /// Other connections are receiving as much as there is room for.
    Busy,
}

pub struct Input<'a> {
    reader: BufReader<&'a TcpStream>,
    /// The timeout that the socket has now.
    timeout: Option<Duration>,
    idle: Duration,
}

impl<'s> Input<'s> {
    pub fn new(stream: &'s TcpStream, idle: Duration) -> Self {
        Input { reader: BufReader::with_capacity(PIECE_BYTES, stream), timeout: None, idle }
    }

    /// How long the client may take from one frame to the next.
    pub fn set_idle(&mut self, idle: Duration) {
        self.idle = idle;
    }

    /// No request is waiting.
    pub fn is_empty(&self) -> bool {
        self.reader.buffer().is_empty()
    }

    /// The next frame.
    pub fn frame<'a>(&mut self, incoming: &mut Incoming, inflight: &'a Inflight) -> Result<Frame<'a>, End> {
        while self.is_empty() {
            self.wait_at_most(self.idle).map_err(|_| End::Closed)?;
            match self.reader.fill_buf() {
                // The process was stopped and goes on: a wait with a timeout ends then, and what the client has sent is still there.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok([]) | Err(_) => return Err(End::Closed),
                Ok(_) => {}
            }
        }
        let mut deadline = Instant::now() + PATIENCE;
        let bytes = self.array::<HEADER_BYTES>(deadline, None)?;
        let header = incoming.open(&bytes).map_err(End::Fault)?;
        let len = u64::from(header.fields) + header.value;
        deadline += Duration::from_secs(len >> 20);
        let mut share = inflight.share();
        let mut tagger = incoming.key().tagger();
        tagger.update(&bytes);
        let mut parts = [Vec::new(), Vec::new()];
        // A header is only a promise: what it announces is counted as it comes. Small frames always get through.
        let mut due = if len > SMALL_BYTES { len } else { 0 };
        for (part, len) in parts.iter_mut().zip([header.fields.into(), header.value]) {
            // Addresses; memory only where bytes come.
            part.try_reserve_exact(len as usize).map_err(|_| End::Busy)?;
            let mut left: u64 = len;
            while left > 0 {
                let step = left.min(STEP_BYTES);
                let growth = step.min(due);
                if !share.grow(growth, deadline) {
                    return Err(End::Busy);
                }
                due -= growth;
                self.read(step, deadline, Some(&share), |piece| {
                    tagger.update(piece);
                    part.extend_from_slice(piece);
                })?;
                left -= step;
            }
        }
        let tag = self.array::<TAG_BYTES>(deadline, Some(&share))?;
        if !tagger.finish().matches(&tag) {
            return Err(End::Fault(Fault::NotAuthentic));
        }
        let [fields, value] = parts;
        Ok(Frame { header, fields, value, share })
    }

    fn array<const N: usize>(&mut self, deadline: Instant, share: Option<&Share>) -> Result<[u8; N], End> {
        let mut array = [0; N];
        let mut rest = &mut array[..];
        self.read(N as u64, deadline, share, |piece| {
            let (filled, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            filled.copy_from_slice(piece);
            rest = after;
        })?;
        Ok(array)
    }

    /// Hand on the next `len` bytes as they come. A client that sends them drop by drop has no longer than one that does not,
    /// and far less where somebody waits for the share that its frame holds.
    fn read(
        &mut self,
        len: u64,
        deadline: Instant,
        share: Option<&Share>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), End> {
        let share = share.filter(|share| share.bytes() > 0);
        let begun = Instant::now();
        let (mut last, mut left) = (begun, len);
        while left > 0 {
            if self.is_empty() {
                let now = Instant::now();
                if now >= deadline || now.duration_since(last) >= PATIENCE {
                    return Err(End::Truncated);
                }
                let mut patience = (deadline - now).min(PATIENCE);
                if let Some(share) = share {
                    if now.duration_since(begun) >= STEP_PATIENCE && share.is_wanted() {
                        return Err(End::Truncated);
                    }
                    // Then look again whether somebody waits.
                    patience = patience.min(LOOK);
                }
                // To the second, so that the socket is rarely told.
                let patience = Duration::from_secs(patience.as_secs() + 1);
                self.wait_at_most(patience).map_err(|_| End::Truncated)?;
            }
            let came = match self.reader.fill_buf() {
                Ok([]) => return Err(End::Truncated),
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && share.is_some() => continue,
                Err(_) => return Err(End::Truncated),
            };
            last = Instant::now();
            let piece = came.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(came);
            take(piece);
            let count = piece.len();
            self.reader.consume(count);
            left -= count as u64;
        }
        Ok(())
    }

    fn wait_at_most(&mut self, timeout: Duration) -> io::Result<()> {
        if self.timeout != Some(timeout) {
            self.reader.get_ref().set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        Ok(())
    }

    /// Read and forget what the client still sends: to close over unread bytes would take the last answer from it.
    pub fn linger(mut self) {
        let end = Instant::now() + LINGER;
        let mut left = LINGER_BYTES;
        while Instant::now() < end && self.wait_at_most(LINGER).is_ok() {
            match self.reader.fill_buf() {
                Ok([]) | Err(_) => return,
                Ok(bytes) => {
                    let count = bytes.len();
                    self.reader.consume(count);
                    left = left.saturating_sub(count as u64);
                    if left == 0 {
                        return;
                    }
                }
            }
        }
    }
}

pub struct Output<'a> {
    stream: &'a TcpStream,
    pending: Vec<u8>,
    pub outgoing: Outgoing,
}

impl<'a> Output<'a> {
    pub fn new(stream: &'a TcpStream, key: Key) -> io::Result<Self> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Output { stream, pending: Vec::new(), outgoing: Outgoing::new(key, Version::One) })
    }

    /// A frame without a value; sent now or with the next.
    pub fn small(&mut self, header: [u8; HEADER_BYTES], fields: &[u8]) -> io::Result<()> {
        self.pending.extend(self.outgoing.small(header, fields));
        if self.pending.len() >= OUTPUT_BYTES { self.flush() } else { Ok(()) }
    }

    /// A frame with a value, which is sent from where it lies.
    pub fn with_value(&mut self, header: [u8; HEADER_BYTES], value: &[u8]) -> io::Result<()> {
        let tag = self.outgoing.key().tag(&[&header, value]);
        self.pending.extend(header);
        let mut slices = [IoSlice::new(&self.pending), IoSlice::new(value), IoSlice::new(&tag.0)];
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match self.stream.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.pending.clear();
        Ok(())
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }

    /// Say that nothing more comes.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.stream.shutdown(Shutdown::Write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_client_that_sends_drop_by_drop_has_no_longer_than_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let dripping = std::thread::spawn(move || {
            for _ in 0..100 {
                let _ = client.write_all(b".");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut input = Input::new(&stream, PATIENCE);
        let mut came = Vec::new();
        let read =
            input.read(100, Instant::now() + Duration::from_millis(200), None, |piece| came.extend_from_slice(piece));
        assert!(matches!(read, Err(End::Truncated)));
        assert!(!came.is_empty());
        drop(input);
        drop(stream);
        dripping.join().unwrap();
    }
}
