//! The fenced blocks of a page, and how each is run.
//!
//! An info string is the language alone: with a backtick in it the fence opens no block, and the rest of the page is garbled. How a block is
//! run is in a comment on the line before its fence, which no reader sees. `tests/blackbox/tests/book/README.md` describes these comments.

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
    /// It is the frame of memkv of this name, which the tests of its crate read.
    pub frame: Option<String>,
}

impl How {
    /// What the comment before a block says.
    fn parse(comment: &str) -> Result<Self, String> {
        if let Some(frame) = comment.strip_prefix("frame:") {
            return Ok(How { frame: Some(frame.trim().to_owned()), ..How::default() });
        }
        let (words, unrun) = match comment.split_once("unrun:") {
            Some((words, reason)) if !reason.trim().is_empty() => (words, Some(reason.trim().to_owned())),
            Some(_) => return Err("`unrun:` without a reason".to_owned()),
            None => (comment, None),
        };
        let mut how = How { unrun, ..How::default() };
        for word in words.split_whitespace() {
            match word.split_once('=') {
                None if word == "fails" => how.fails = true,
                None if word == "output" => how.output = true,
                Some(("file", file)) => how.file = Some(file.to_owned()),
                Some(("source", source)) => how.source = Some(source.to_owned()),
                Some(("by", by)) => how.by = Some(by.to_owned()),
                Some(("with", with @ ("redis" | "seaweed" | "former"))) => how.with = Some(with.to_owned()),
                Some(("of", of @ ("cache" | "blocks"))) => how.of = Some(of.to_owned()),
                Some(("needs", needs)) => how.needs = Some(needs.to_owned()),
                Some(("server", ports)) => {
                    let ports = ports.split(',').map(str::parse).collect::<Result<_, _>>();
                    how.server = ports.map_err(|_| format!("{word:?} names no ports"))?;
                }
                _ => return Err(format!("{word:?} is unknown")),
            }
        }
        Ok(how)
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
            "" => Err("a fence names the language".to_owned()),
            _ => Err(format!(
                "the language {language:?} is unknown; what else is said of a block is in a comment before it"
            )),
        }
    }
}

/// What is in a comment that is a line of its own.
pub(super) fn comment(line: &str) -> Option<&str> {
    line.trim().strip_prefix("<!--")?.strip_suffix("-->").map(str::trim)
}

/// The blocks of a page, or what is wrong with one: its line and why.
pub fn blocks(page: &str) -> Result<Vec<Block>, (usize, String)> {
    let (mut blocks, mut lines) = (Vec::new(), (1..).zip(page.lines().chain([""])));
    // The comment on the line before.
    let mut before = None;
    while let Some((line, fence)) = lines.next() {
        let said = before.take();
        let Some(info) = fence.trim_start().strip_prefix("```") else {
            if said.is_some_and(|said| How::parse(said).is_ok_and(|how| how != How::default())) {
                return Err((line - 1, "this says how a block is run, and the next line is no fence".to_owned()));
            }
            before = comment(fence);
            continue;
        };
        let how = How::parse(said.unwrap_or_default()).map_err(|why| (line, why))?;
        let language = info.trim().to_owned();
        how.held(&language).map_err(|why| (line, why))?;
        let indent = fence.len() - fence.trim_start().len();
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
    fn a_block_has_its_text_and_the_comment_before_it_says_how_it_is_run() {
        let page = "a\n   <!-- server=6379,7001 fails -->\n   ```sh\n   one\n     two\n\n   ```\nb\n```toml\n```\n";
        let found = blocks(page).unwrap();
        assert_eq!(found.iter().map(|block| block.line).collect::<Vec<_>>(), [3, 9]);
        assert_eq!(found[0].text, "one\n  two\n\n");
        let how = How { server: vec![6379, 7001], fails: true, ..How::default() };
        assert_eq!((found[0].language.as_str(), &found[0].how), ("sh", &how));
        assert_eq!(found[1].how, How::default());
    }

    #[test]
    fn a_reason_may_hold_anything() {
        let found = blocks("<!-- file=a.c unrun: needs x=1, a `server` -->\n```c\n```\n").unwrap();
        assert_eq!(found[0].how.unrun.as_deref(), Some("needs x=1, a `server`"));
        assert_eq!(found[0].how.file.as_deref(), Some("a.c"));
        let found = blocks("<!-- frame: PUT answer -->\n```text\n```\n").unwrap();
        assert_eq!(found[0].how.frame.as_deref(), Some("PUT answer"));
    }

    #[test]
    fn what_says_nothing_of_how_it_is_run_is_refused() {
        for page in [
            "```\nx\n```\n",
            "```c\nint x;\n```\n",
            "```perl\n```\n",
            "```sh fails\n```\n",
            "```sh unrun: needs a `server`\n```\n",
            "```sh\nnever ends\n",
            // A comment that says how, and no block behind it.
            "<!-- fails -->\n\n```sh\n```\n",
            "<!-- file=a.toml -->",
        ] {
            assert!(blocks(page).is_err_and(|(line, _)| line == 1), "{page}");
        }
        for comment in ["unrun:", "server=x", "fail", "with=mysql"] {
            let page = format!("<!-- {comment} -->\n```sh\n```\n");
            assert!(blocks(&page).is_err_and(|(line, _)| line == 2), "{page}");
        }
        // Others are not for blocks.
        assert_eq!(blocks("<!-- end -->\n\n<!-- Made by a test. -->\n"), Ok(vec![]));
    }
}
