//! Why a command did not succeed: the exit code that it ends with, and what is said.

use std::process::ExitCode;

use crate::show;

#[derive(Debug)]
pub enum Failure {
    /// It is not as asked. Where nothing is said, the command's own output has said it.
    Not(Option<String>),
    /// It could not be found out.
    Unable(String),
    /// There was nothing to remove.
    Nothing(String),
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn not(why: impl std::fmt::Display) -> Self {
        Failure::Not(Some(why.to_string()))
    }

    pub fn unable(why: impl std::fmt::Display) -> Self {
        Failure::Unable(why.to_string())
    }

    /// An operation on a store that failed: which, of which URI, and why.
    pub fn of<'a, E: std::fmt::Display>(operation: &'a str, uri: &'a str) -> impl Fn(E) -> Failure + use<'a, E> {
        move |why| Failure::not(format!("{operation} {uri}: {why}"))
    }

    /// The same where it could not be found out.
    pub fn unable_of<'a, E: std::fmt::Display>(operation: &'a str, uri: &'a str) -> impl Fn(E) -> Failure + use<'a, E> {
        move |why| Failure::unable(format!("{operation} {uri}: {why}"))
    }

    /// Say it on standard error, and with `json` as one JSON object on standard output too.
    pub fn report(self, json: bool) -> ExitCode {
        let (code, why) = match self {
            Failure::Not(why) => (1, why),
            Failure::Unable(why) => (2, Some(why)),
            Failure::Nothing(why) => (3, Some(why)),
        };
        if let Some(why) = why {
            if json {
                show::json(&serde_json::json!({ "error": why, "exit_code": code }));
            }
            eprintln!("kv-store: {why}");
        }
        ExitCode::from(code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::unable(format!("{error:#}"))
    }
}
