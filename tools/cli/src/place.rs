//! The store that a command is about: its first argument, or the variable `KV_STORE_URI`.

use std::ffi::OsString;
use std::path::PathBuf;

use kv_store_wasm::{ErrorKind, Host, Store};

use crate::failure::{Failure, Outcome};

/// Names the store of a command that names none.
const VARIABLE: &str = "KV_STORE_URI";

/// Which store.
#[derive(clap::Args)]
pub struct Place {
    /// The store; default: the variable KV_STORE_URI
    #[arg(value_name = "URI")]
    first: Option<String>,
    /// The former spelling, which goes with 0.4
    #[arg(long = "uri", value_name = "URI", hide = true, conflicts_with = "first")]
    former: Option<String>,
}

impl Place {
    /// The URI, where one is given.
    pub fn uri(&self) -> Outcome<String> {
        if let Some(uri) = &self.former {
            tell_former("--uri URI", "the store as the first argument");
            return Ok(uri.clone());
        }
        let of_variable = || std::env::var(VARIABLE).ok().filter(|uri| !uri.is_empty());
        self.first.clone().or_else(of_variable).ok_or_else(|| {
            Failure::unable(format!("which store? give its URI as the first argument, or in the variable {VARIABLE}"))
        })
    }
}

/// Which store, and a file. clap takes two arguments of which the first may be left out only side by side, not around an option.
#[derive(clap::Args)]
pub struct PlaceAndFile {
    /// The store; default: the variable KV_STORE_URI
    #[arg(value_name = "URI")]
    first: OsString,
    /// The file; `-` is standard input or output
    #[arg(value_name = "FILE")]
    second: Option<PathBuf>,
    /// The former spelling, which goes with 0.4
    #[arg(long = "uri", value_name = "URI", hide = true, conflicts_with = "second")]
    former: Option<String>,
}

impl PlaceAndFile {
    /// The URI and the file: where one argument is given, it is the file.
    pub fn both(&self) -> Outcome<(String, PathBuf)> {
        let Some(file) = &self.second else {
            let place = Place { first: None, former: self.former.clone() };
            return Ok((place.uri()?, PathBuf::from(&self.first)));
        };
        let uri = self.first.to_str().ok_or_else(|| Failure::unable(format!("{:?} is no URI", self.first)))?;
        Ok((uri.to_owned(), file.clone()))
    }
}

/// Say on standard error that an option has another spelling now.
pub fn tell_former(former: &str, now: &str) {
    eprintln!("kv-store: {former} is a former spelling and goes with 0.4; write {now}");
}

/// Open a store to write to it: a directory that is not there is made.
pub fn open(uri: &str) -> Outcome<Store> {
    Store::open(uri).map_err(Failure::unable)
}

/// Open a store that is there to show what lies in it, whatever its descriptors are.
pub fn open_as_it_lies(uri: &str) -> Outcome<Store> {
    let store = open_existing(uri)?;
    store.as_it_lies(None).map_err(Failure::unable)?;
    Ok(store)
}

/// Open a store that is there, and make nothing.
pub fn open_existing(uri: &str) -> Outcome<Store> {
    let host = Host::builder().must_exist().build().map_err(Failure::unable)?;
    host.open(uri).map_err(|error| match error.kind() {
        ErrorKind::Missing => Failure::not(error),
        _ => Failure::unable(error),
    })
}
