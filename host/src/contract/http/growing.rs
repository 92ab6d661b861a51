//! A body whose length nobody says before it ends.

use super::{Body, Quota};
use crate::contract::Reserved;
use crate::error::{Error, ErrorKind};
use crate::payload::Filling;

/// The least room that is made at once.
const LEAST: u64 = 64 << 10;

pub(super) struct Growing<'a> {
    filling: Filling,
    /// As much as there is room.
    reserved: Reserved,
    max_body: u64,
    quota: &'a Quota<'a>,
}

impl<'a> Growing<'a> {
    pub(super) fn new(max_body: u64, quota: &'a Quota<'a>) -> Result<Self, Error> {
        Ok(Growing { filling: Filling::new(0)?, reserved: quota.reserve(0)?, max_body, quota })
    }

    pub(super) fn len(&self) -> u64 {
        self.filling.filled().len() as u64
    }

    /// Take room for bytes before they are copied there.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let len = self.len() + bytes.len() as u64;
        if len > self.max_body {
            let message = format!("the body of the response is longer than {} bytes", self.max_body);
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let room = self.filling.room();
        if len > room {
            let wanted = len.max(LEAST).max(2 * room).min(self.max_body);
            self.reserved.add(self.quota.reserve(wanted - room)?);
            self.filling.resize(wanted)?;
        }
        self.filling.push(bytes);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Body, Error> {
        self.filling.resize(self.len())?;
        Ok(Body::Own(self.filling.finish()?, self.reserved))
    }
}
