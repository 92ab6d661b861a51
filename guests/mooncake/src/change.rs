//! What a change leaves for a later one of the same key, where its own end is not known: as which client it was made, and until when its
//! requests may be sent.

use kv_store_sdk::system;

use crate::master::Client;

/// A change of this process, as a later one of the same key is told of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    pub client: Client,
    /// Its deadline, in nanoseconds since 1970.
    pub end: u64,
}

impl Change {
    pub fn new() -> Self {
        Change { client: Client::new(), end: system::now().saturating_add(system::remaining()) }
    }

    pub fn token(&self) -> Vec<u8> {
        [&self.client.0[..], &self.end.to_le_bytes()].concat()
    }

    pub fn parse(token: &[u8]) -> Option<Self> {
        let (client, end) = token.split_first_chunk()?;
        Some(Change { client: Client(*client), end: u64::from_le_bytes(end.try_into().ok()?) })
    }

    /// When the last of these is over. 0: there are none.
    pub fn latest(tokens: &[Vec<u8>]) -> u64 {
        tokens.iter().filter_map(|token| Change::parse(token)).map(|change| change.end).max().unwrap_or_default()
    }
}

/// A change that has begun.
pub struct Begun {
    pub client: Client,
    /// Which of its keys a former change had begun to put. Bytes of that may still be on their way to the memory that it had.
    pub given_back: Vec<usize>,
    /// How many former changes may still be carried out.
    pub former: usize,
    /// When former changes are over. 0: there are none.
    pub end: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_is_told_of_the_client_and_of_the_last_deadline() {
        let change = |client, end| Change { client: Client([client; 16]), end };
        let tokens: Vec<Vec<u8>> =
            [change(1, 5), change(2, u64::MAX), change(3, 0)].iter().map(Change::token).collect();
        assert_eq!(Change::parse(&tokens[0]), Some(change(1, 5)));
        assert_eq!((Change::latest(&tokens[..1]), Change::latest(&tokens), Change::latest(&[])), (5, u64::MAX, 0));
        assert_eq!(Change::parse(&tokens[0][..16]), None, "of another version");
    }
}
