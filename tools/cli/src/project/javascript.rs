//! JavaScript: componentize-js, from the project's own `node_modules` or from `PATH`.

use std::process::Command;

use super::{Language, Project, Tools, tool};
use crate::failure::{Failure, Outcome};

/// Parts of the engine that would have the component import what this host does not offer.
const WITHOUT: [&str; 2] = ["http", "fetch-event"];

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let node = tool::find(&["node".into()])
        .ok_or_else(|| Failure::unable("node is not installed: install Node.js 20 or later"))?;
    let componentize = [project.folder.join("node_modules/.bin/componentize-js"), "componentize-js".into()];
    let componentize = tool::find(&componentize).ok_or_else(|| {
        Failure::unable(format!("componentize-js is not installed: npm install in {}", project.folder.display()))
    })?;
    let source = Language::Javascript.source();
    // componentize-js says how many errors there are, and not which.
    let mut check = Command::new(&node);
    check.current_dir(&project.folder).args(["--check", source]);
    tool::run_shown(&mut check, &format!("{source} can not be parsed; node says why above"))?;

    let made = project.made()?;
    // Paths for a process that starts in the project's folder.
    let component = std::path::absolute(made.join("component.wasm")).map_err(Failure::unable)?;
    let mut command = Command::new(componentize);
    command.current_dir(&project.folder).args([source, "--wit", "wit", "--world-name", "backend", "--out"]);
    command.arg(&component).arg("--disable").args(WITHOUT).args(tools.options);
    tool::run_logged(&mut command, "componentize-js", &made.join("componentize-js.log"), explain)?;
    std::fs::read(&component).map_err(|error| Failure::not(format!("{}: {error}", component.display())))
}

/// What componentize-js says, less its trace, and what to do about it.
fn explain(said: &str) -> Option<String> {
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let after = |text: &str| lines.iter().position(|line| line.starts_with(text)).and_then(|at| lines.get(at + 1));
    let missing = lines.iter().find(|line| line.contains("does not export a"));
    let thrown = after("Exception while evaluating top-level script");
    let other = lines.iter().find(|line| line.starts_with("Error: "));
    let why = missing
        .or(thrown)
        .or(other)?
        .trim_start_matches("Error: ")
        .replace("\"source.js\"", Language::Javascript.source());
    let hint = if why.contains("Error loading module \"kv-store:backend/") {
        "; wit/world.wit does not import that interface"
    } else {
        ""
    };
    Some(format!("{why}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn the_reason_is_told_and_not_the_trace() {
        // As componentize-js 0.23.0 writes it.
        let told = |said: &str| {
            explain(&format!(
                "file:///x/componentize.js:616\n    throw new Error(msg);\n          ^\n\n{said}\n    at x\n"
            ))
        };
        let missing = "Error: Unable to extract expected exports list\nError: \"source.js\" does not export a \"store\" interface as expected by \
            the world.\n  Try defining it";
        assert_eq!(
            told(missing).unwrap(),
            "src/store.js does not export a \"store\" interface as expected by the world."
        );
        let thrown = "Error: Failed to initialize component (wizer (/x/wizer)):\nException while evaluating top-level script\nstore.js:67:7 Error: top";
        assert_eq!(told(thrown).unwrap(), "store.js:67:7 Error: top");
        let module = "Error: Failed to initialize component:\nException while evaluating top-level script\nReferenceError: Error loading module \
            \"kv-store:backend/net@1.1.0\" (resolved path)";
        assert!(told(module).unwrap().ends_with("; wit/world.wit does not import that interface"));
        assert_eq!(told("Error: no such option").unwrap(), "no such option");
        assert_eq!(explain(""), None);
    }
}
