//! Programs that builds use: where they are, what to do where they are not, and what they say when they fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Failure, Outcome};
use crate::show;

/// The first of these programs that there is: a path, or a name that is looked for in `PATH`.
pub fn find(candidates: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: &Path| {
        use std::os::unix::fs::PermissionsExt;
        file.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    candidates.iter().find_map(|candidate| {
        if candidate.components().count() > 1 {
            return is_program(candidate).then(|| std::path::absolute(candidate).ok()).flatten();
        }
        std::env::split_paths(&path).map(|folder| folder.join(candidate)).find(|file| is_program(file))
    })
}

/// Run a tool whose own messages are for the author: they are shown as they come.
pub fn run_shown(command: &mut Command, failed: &str) -> Outcome {
    // Standard output is for the result.
    command.stdin(Stdio::null()).stdout(std::io::stderr());
    let status = command.status().map_err(|error| can_not_run(command, &error))?;
    if status.success() { Ok(()) } else { Err(Failure::not(failed)) }
}

/// Run a tool that is busy for long and whose messages are long. They go to `log`; where it fails, `explain` makes one line of them.
pub fn run_logged(
    command: &mut Command,
    doing: &str,
    log: &Path,
    explain: impl FnOnce(&str) -> Option<String>,
) -> Outcome {
    let unable = |error: std::io::Error| Failure::unable(format!("{}: {error}", log.display()));
    let file = std::fs::File::create(log).map_err(unable)?;
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(unable)?).stderr(file);
    let bar = show::spinner(doing);
    let status = command.status();
    bar.finish_and_clear();
    let status = status.map_err(|error| can_not_run(command, &error))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&std::fs::read(log).map_err(unable)?).into_owned();
    let why = explain(&said).unwrap_or_else(|| last_line(&said).unwrap_or("it said nothing").to_owned());
    Err(Failure::not(format!("{doing} failed: {why} (all of it is in {})", log.display())))
}

fn can_not_run(command: &Command, error: &std::io::Error) -> Failure {
    Failure::unable(format!("{} can not be run: {error}", command.get_program().display()))
}

pub fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_path_and_by_name_and_a_folder_is_none() {
        assert!(find(&["no-such-program".into(), "sh".into()]).unwrap().ends_with("sh"));
        assert_eq!(find(&["/bin/sh".into()]).unwrap(), Path::new("/bin/sh"));
        assert_eq!(find(&["/bin".into(), "/etc/passwd".into(), "no-such-program".into()]), None);
    }

    #[test]
    fn what_a_tool_said_last_is_told_with_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut tool = Command::new("sh");
        tool.args(["-c", "echo first; echo second >&2; echo; exit 3"]);
        let Err(Failure::Not(Some(why))) = run_logged(&mut tool, "a tool", &log, |_| None) else { panic!() };
        assert_eq!(why, format!("a tool failed: second (all of it is in {})", log.display()));
        let Err(Failure::Not(Some(why))) =
            run_logged(&mut tool, "a tool", &log, |said| said.contains("first").then(|| "it began".into()))
        else {
            panic!()
        };
        assert!(why.starts_with("a tool failed: it began (all"), "{why}");
    }
}
