//! The fenced blocks of a page, and how each is run.
//!
//! `tests/blackbox/tests/book/README.md` describes the info strings for who writes pages.

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of its fence, from 1.
    pub line: usize,
    pub language: String,
    pub how: How,
    /// What is in it, without the indentation of the fence, each line with its end.
    pub text: String,
}

/// How a block is run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Not run, for this reason.
    pub unrun: Option<String>,
    /// It is written to this file before the blocks behind it run.
    pub file: Option<String>,
    /// It is part of this file of the clone, which the tests compile and run.
    pub source: Option<String>,
    /// This test of the clone, which names the page, holds it.
    pub by: Option<String>,
    /// It is run in the background, as a server that listens on these ports.
    pub server: Vec<u16>,
    /// A server that the tests start for the page: `redis` or `seaweed`.
    pub with: Option<String>,
    /// It is skipped, and said so, where this is not there: a module of Python, or a program in the clone.
    pub needs: Option<String>,
    /// It is a config of `cache` or `blocks`, and not of the library.
    pub of: Option<String>,
    /// It must fail.
    pub fails: bool,
    /// It is what the block of commands before it prints; `...` stands for anything.
    pub output: bool,
}

impl How {
    fn parse(info: &str) -> Result<(String, Self), String> {
        let (info, unrun) = match info.split_once("unrun:") {
            Some((info, reason)) if !reason.trim().is_empty() => (info, Some(reason.trim().to_owned())),
            Some(_) => return Err("`unrun:` without a reason".to_owned()),
            None => (info, None),
        };
        let mut words = info.split_whitespace();
        let language = words.next().ok_or("no language: the info string says how a block is run")?.to_owned();
        let mut how = How { unrun, ..How::default() };
        // The frames of memkv are named, and read by the tests of its crate.
        if language == "frame" {
            return Ok((language, how));
        }
        for word in words {
            match word.split_once('=') {
                None if word == "fails" => how.fails = true,
                None if word == "output" => how.output = true,
                Some(("file", file)) => how.file = Some(file.to_owned()),
                Some(("source", source)) => how.source = Some(source.to_owned()),
                Some(("by", by)) => how.by = Some(by.to_owned()),
                Some(("with", with @ ("redis" | "seaweed"))) => how.with = Some(with.to_owned()),
                Some(("of", of @ ("cache" | "blocks"))) => how.of = Some(of.to_owned()),
                Some(("needs", needs)) => how.needs = Some(needs.to_owned()),
                Some(("server", ports)) => {
                    let ports = ports.split(',').map(str::parse).collect::<Result<_, _>>();
                    how.server = ports.map_err(|_| format!("{word:?} names no ports"))?;
                }
                _ => return Err(format!("{word:?} is unknown")),
            }
        }
        how.held(&language).map(|()| (language, how))
    }

    /// Every block is run, or says why not.
    fn held(&self, language: &str) -> Result<(), String> {
        let is_run = self.unrun.is_some() || self.file.is_some() || self.source.is_some() || self.by.is_some();
        match language {
            "sh" | "text" => Ok(()),
            // As a config.
            "toml" => Ok(()),
            "python" if self.needs.is_some() => Ok(()),
            "c" | "cpp" | "rust" | "python" | "conf" | "yaml" | "json" | "wit" | "markdown" if is_run => Ok(()),
            "c" | "cpp" | "rust" | "python" | "conf" | "yaml" | "json" | "wit" | "markdown" => {
                Err(format!("a block of {language} needs `file=`, `source=`, `by=` or `unrun: the reason`"))
            }
            _ => Err(format!("the language {language:?} is unknown")),
        }
    }
}

/// The blocks of a page, or what is wrong with one: its line and why.
pub fn blocks(page: &str) -> Result<Vec<Block>, (usize, String)> {
    let (mut blocks, mut lines) = (Vec::new(), (1..).zip(page.lines()));
    while let Some((line, fence)) = lines.next() {
        let Some(info) = fence.trim_start().strip_prefix("```") else { continue };
        let indent = fence.len() - fence.trim_start().len();
        let (language, how) = How::parse(info).map_err(|why| (line, why))?;
        let mut text = String::new();
        loop {
            let Some((_, inner)) = lines.next() else { return Err((line, "the block does not end".to_owned())) };
            if inner.trim() == "```" {
                break;
            }
            let spaces = inner.len() - inner.trim_start_matches(' ').len();
            text += inner.get(spaces.min(indent)..).unwrap_or_default();
            text += "\n";
        }
        blocks.push(Block { line, language, how, text });
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_its_text_and_says_how_it_is_run() {
        let page = "a\n   ```sh server=6379,7001 fails\n   one\n     two\n\n   ```\nb\n```toml\n```\n";
        let found = blocks(page).unwrap();
        assert_eq!(found.iter().map(|block| block.line).collect::<Vec<_>>(), [2, 8]);
        assert_eq!(found[0].text, "one\n  two\n\n");
        let how = How { server: vec![6379, 7001], fails: true, ..How::default() };
        assert_eq!((found[0].language.as_str(), &found[0].how), ("sh", &how));
    }

    #[test]
    fn a_reason_may_hold_anything() {
        let found = blocks("```c file=a.c unrun: needs x=1, a `server`\n```\n").unwrap();
        assert_eq!(found[0].how.unrun.as_deref(), Some("needs x=1, a `server`"));
        assert_eq!(found[0].how.file.as_deref(), Some("a.c"));
    }

    #[test]
    fn what_says_nothing_of_how_it_is_run_is_refused() {
        for page in [
            "```\nx\n```\n",
            "```c\nint x;\n```\n",
            "```perl\n```\n",
            "```sh unrun:\n```\n",
            "```sh server=x\n```\n",
            "```sh fail\n```\n",
            "```sh with=mysql\n```\n",
            "```sh\nnever ends\n",
        ] {
            assert!(blocks(page).is_err_and(|(line, _)| line == 1), "{page}");
        }
    }
}
