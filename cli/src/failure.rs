//! Why a command did not succeed: the exit code that it ends with, and what is said.

use std::process::ExitCode;

#[derive(Debug)]
pub enum Failure {
    /// It is not as asked. Where nothing is said, the command's own output has said it.
    Not(Option<String>),
    /// It could not be found out.
    Unable(String),
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn not(why: impl std::fmt::Display) -> Self {
        Failure::Not(Some(why.to_string()))
    }

    pub fn unable(why: impl std::fmt::Display) -> Self {
        Failure::Unable(why.to_string())
    }

    /// Say it on standard error.
    pub fn report(self) -> ExitCode {
        let (code, why) = match self {
            Failure::Not(why) => (1, why),
            Failure::Unable(why) => (2, Some(why)),
        };
        if let Some(why) = why {
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
