//! Python: componentize-py, from the project's own `.venv` or from `PATH`.

use std::process::Command;

use super::{Project, Tools, tool};
use crate::failure::{Failure, Outcome};

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let componentize = [project.folder.join(".venv/bin/componentize-py"), "componentize-py".into()];
    let componentize = tool::find(&componentize).ok_or_else(|| {
        let folder = project.folder.display();
        Failure::unable(format!(
            "componentize-py is not installed: in {folder}, python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
        ))
    })?;
    let made = project.made()?;
    // Paths for a process that starts in the project's folder.
    let component = std::path::absolute(made.join("component.wasm")).map_err(Failure::unable)?;
    let mut command = Command::new(componentize);
    command.current_dir(&project.folder).args(["--wit-path", "wit", "--world", "backend", "componentize", "store"]);
    command.args(["--python-path", "src", "--output"]).arg(&component).args(tools.options);
    tool::run_logged(&mut command, "componentize-py", &made.join("componentize-py.log"), explain)?;
    std::fs::read(&component).map_err(|error| Failure::not(format!("{}: {error}", component.display())))
}

/// The reason that componentize-py gives below its trace, and what to do about it.
fn explain(said: &str) -> Option<String> {
    let mut lines = said.lines().map(str::trim);
    lines.find(|line| *line == "Caused by:")?;
    let why = lines.find(|line| !line.is_empty())?;
    let hint = if why.contains("No module named 'wit_world.") {
        "; wit/world.wit does not import that interface"
    } else if why.contains("has no attribute 'Store'") {
        "; src/store.py must have a class Store(exports.Store)"
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
        // As componentize-py 0.25.1 writes it.
        let said = |why: &str| {
            format!(
                "Traceback (most recent call last):\nAssertionError: {why}\n\n\nCaused by:\n    {why}\n\nStack backtrace:\n   0: x\n"
            )
        };
        let syntax = "SyntaxError: '(' was never closed (store.py, line 29)";
        assert_eq!(explain(&said(syntax)).unwrap(), syntax);
        let module = explain(&said("ModuleNotFoundError: No module named 'wit_world.imports.net'")).unwrap();
        assert!(module.ends_with("; wit/world.wit does not import that interface"), "{module}");
        let class = explain(&said("AttributeError: module 'store' has no attribute 'Store'")).unwrap();
        assert!(class.ends_with("class Store(exports.Store)"), "{class}");
        assert_eq!(explain("error: unexpected argument"), None);
    }
}
