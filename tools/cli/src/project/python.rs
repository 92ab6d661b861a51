//! Python: componentize-py, from the project's own `.venv` or from `PATH`.

use std::process::Command;

use super::{Language, Project, Tools, tool};
use crate::failure::{Failure, Outcome};

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let componentize = [project.folder.join(".venv/bin/componentize-py"), "componentize-py".into()];
    let componentize = tool::find(&componentize).ok_or_else(|| {
        let folder = project.folder.display();
        Failure::unable(format!(
            "componentize-py is not installed: in {folder}, python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"
        ))
    })?;
    let source = project.folder.join(Language::Python.source());
    let text = std::fs::read_to_string(&source);
    check_imports(&text.map_err(|error| Failure::unable(format!("{}: {error}", source.display())))?)?;
    let made = project.made()?;
    // Paths for a process that starts in the project's folder.
    let component = std::path::absolute(made.join("component.wasm")).map_err(Failure::unable)?;
    let mut command = Command::new(componentize);
    command.current_dir(&project.folder).args(["--wit-path", "wit", "--world", "backend", "componentize", "store"]);
    command.args(["--python-path", "src", "--output"]).arg(&component).args(tools.options);
    tool::run_logged(&mut command, "componentize-py", &made.join("componentize-py.log"), explain)?;
    std::fs::read(&component).map_err(|error| Failure::not(format!("{}: {error}", component.display())))
}

/// Refuse what was right for the contract of 0.2: a component of it would be made, and trap when it is opened.
fn check_imports(source: &str) -> Outcome {
    let former = |line: &str| line.trim_start().starts_with("from wit_world.exports import store");
    match source.lines().position(former) {
        Some(at) => Err(Failure::not(format!(
            "{}:{}: since 1.0.0-rc of the contract the types of `store` are in wit_world.imports.store_types, and none is in \
             wit_world.exports.store",
            Language::Python.source(),
            at + 1
        ))),
        None => Ok(()),
    }
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
    use super::{check_imports, explain};

    #[test]
    fn types_are_looked_for_where_they_are() {
        let former = check_imports("import os\nfrom wit_world.exports import store as s\n").unwrap_err();
        let told = format!("{former:?}");
        assert!(told.contains("src/store.py:2: ") && told.contains("wit_world.imports.store_types"), "{told}");
        check_imports("from wit_world import exports\nfrom wit_world.imports import store_types as s\n").unwrap();
    }

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
