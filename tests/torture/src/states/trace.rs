//! What strace wrote, as calls on one folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::script::MARK;

/// What is recorded: all that changes a file system, and what makes it last.
pub const CALLS: &str = "trace=open,openat,openat2,creat,mkdir,mkdirat,write,writev,pwrite64,pwritev,pwritev2,rename,renameat,\
                         renameat2,link,linkat,unlink,unlinkat,rmdir,truncate,ftruncate,fallocate,copy_file_range,sendfile,\
                         fsync,fdatasync,sync_file_range,syncfs,sync";

/// A call that succeeded.
pub struct Call {
    /// How many calls had succeeded when it began.
    pub begun: usize,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    MakeDirectory(PathBuf),
    Open {
        path: PathBuf,
        create: bool,
        truncate: bool,
    },
    /// At an offset, or where the last one ended.
    Write {
        path: PathBuf,
        at: Option<u64>,
        bytes: Vec<u8>,
    },
    Cut {
        path: PathBuf,
        len: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Remove(PathBuf),
    Sync(PathBuf),
    /// The bytes are written, to where a later sync of anything makes them last.
    WriteOut(PathBuf),
    /// A line of the script.
    Said(String),
    /// What the model does not know.
    Unknown {
        name: String,
        paths: Vec<PathBuf>,
    },
}

impl Call {
    pub fn forget_sync(&mut self) {
        if matches!(self.what, What::Sync(_) | What::WriteOut(_)) {
            self.what = What::Said(String::new());
        }
    }
}

/// The calls on what lies in a folder, and the lines of the script, in the order in which they succeeded.
pub fn parse(log: &str, folder: &Path) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    // Calls of threads that others came in between.
    let mut begun: HashMap<&str, (String, usize)> = HashMap::new();
    for line in log.lines() {
        let Some((thread, text)) = line.split_once(' ') else { continue };
        let text = text.trim_start();
        if let Some(start) = text.strip_suffix(" <unfinished ...>") {
            begun.insert(thread, (start.to_owned(), calls.len()));
            continue;
        }
        let (text, at) = match text.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, end)) => match begun.remove(thread) {
                Some((start, at)) => (start + end, at),
                None => continue,
            },
            None => (text.to_owned(), calls.len()),
        };
        if let Some(what) = call(&text).filter(|what| what.concerns(folder)) {
            calls.push(Call { begun: at, what });
        }
    }
    calls
}

impl What {
    fn concerns(&self, folder: &Path) -> bool {
        match self {
            What::Said(_) => true,
            What::Unknown { paths, .. } => paths.iter().any(|path| path.starts_with(folder)),
            What::Rename { from, to } | What::Link { from, to } => from.starts_with(folder) || to.starts_with(folder),
            What::MakeDirectory(path)
            | What::Open { path, .. }
            | What::Write { path, .. }
            | What::Cut { path, .. }
            | What::Remove(path)
            | What::Sync(path)
            | What::WriteOut(path) => path.starts_with(folder),
        }
    }
}

/// One call, if it succeeded and changes or syncs something.
fn call(text: &str) -> Option<What> {
    let (name, rest) = text.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    let result = result.split(['<', ' ']).next()?.parse::<i64>().ok().filter(|result| *result >= 0)?;
    let parts: Vec<&str> = arguments.split(", ").collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let number = |at: usize| part(at).parse::<u64>().ok();
    let below = |directory: usize| Some(descriptor(part(directory))?.join(path(part(directory + 1))?));
    let open = |path: PathBuf, flags: &str| What::Open {
        path,
        create: flags.contains("O_CREAT"),
        truncate: flags.contains("O_TRUNC"),
    };
    Some(match name {
        "open" => open(path(part(0))?, part(1)),
        "creat" => What::Open { path: path(part(0))?, create: true, truncate: true },
        "openat" | "openat2" => open(below(0)?, part(2)),
        "mkdir" => What::MakeDirectory(path(part(0))?),
        "mkdirat" => What::MakeDirectory(below(0)?),
        "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
            let mut bytes: Vec<u8> = quoted(arguments.split_once(", ")?.1).flat_map(bytes).collect();
            bytes.truncate(result as usize);
            if let Some(said) = bytes.strip_prefix(MARK.as_bytes()) {
                return Some(What::Said(String::from_utf8_lossy(said).trim_end().to_owned()));
            }
            let at = if name.starts_with('p') { Some(parts.last()?.parse().ok()?) } else { None };
            What::Write { path: descriptor(part(0))?, at, bytes }
        }
        "rename" => What::Rename { from: path(part(0))?, to: path(part(1))? },
        "renameat" | "renameat2" => What::Rename { from: below(0)?, to: below(2)? },
        "link" => What::Link { from: path(part(0))?, to: path(part(1))? },
        "linkat" => What::Link { from: below(0)?, to: below(2)? },
        "unlink" | "rmdir" => What::Remove(path(part(0))?),
        "unlinkat" => What::Remove(below(0)?),
        "truncate" => What::Cut { path: path(part(0))?, len: number(1)? },
        "ftruncate" => What::Cut { path: descriptor(part(0))?, len: number(1)? },
        // What the file is not longer for changes nothing that is read.
        "fallocate" if part(1).contains("KEEP_SIZE") => return None,
        "fallocate" if part(1) == "0" => What::Cut { path: descriptor(part(0))?, len: number(2)? + number(3)? },
        "fsync" | "fdatasync" => What::Sync(descriptor(part(0))?),
        "sync_file_range" => match part(3).contains("SYNC_FILE_RANGE_WAIT_AFTER") {
            true => What::WriteOut(descriptor(part(0))?),
            false => return None,
        },
        _ => What::Unknown { name: name.to_owned(), paths: parts.iter().filter_map(|part| descriptor(part)).collect() },
    })
}

/// The texts in quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

/// Bytes in hex, as `-xx` writes them.
fn bytes(text: &str) -> Vec<u8> {
    let digits = text.split("\\x").skip(1);
    digits.map(|digits| u8::from_str_radix(digits, 16).expect("strace writes two digits")).collect()
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

fn path(argument: &str) -> Option<PathBuf> {
    quoted(argument).next().map(|text| to_path(bytes(text)))
}

/// What a descriptor leads to, as `-y` writes it.
fn descriptor(argument: &str) -> Option<PathBuf> {
    let (_, rest) = argument.split_once('<')?;
    Some(to_path(bytes(rest.split('>').next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    #[test]
    fn calls_of_two_threads_are_told_apart() {
        let (folder, file, other) = (hex("/f"), hex("/f/a"), hex("/elsewhere"));
        let (name, data, mark) = (hex("b"), hex("data"), hex("mark done 1 2\n"));
        let log = format!(
            "7  openat(AT_FDCWD<{other}>, \"{file}\", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3<{file}>\n\
             7  write(3<{file}>, \"{data}\", 4) = 3\n\
             8  writev(3<{file}>, [{{iov_base=\"{data}\", iov_len=4}}, {{iov_base=\"{data}\", iov_len=4}}], 2) = 8\n\
             7  fsync(3<{file}> <unfinished ...>\n\
             8  write(1<{other}>, \"{mark}\", 14) = 14\n\
             7  <... fsync resumed>) = 0\n\
             8  renameat(5<{folder}>, \"{name}\", 5<{folder}>, \"{name}\") = -1 ENOENT (No such file or directory)\n\
             8  unlinkat(5<{folder}>, \"{name}\", 0) = 0\n\
             8  unlinkat(5<{other}>, \"{name}\", 0) = 0\n"
        );
        let calls = parse(&log, Path::new("/f"));
        let told: Vec<String> = calls.iter().map(|call| format!("{} {:?}", call.begun, call.what)).collect();
        assert_eq!(
            told,
            [
                "0 Open { path: \"/f/a\", create: true, truncate: false }",
                "1 Write { path: \"/f/a\", at: None, bytes: [100, 97, 116] }",
                "2 Write { path: \"/f/a\", at: None, bytes: [100, 97, 116, 97, 100, 97, 116, 97] }",
                "4 Said(\"done 1 2\")",
                "3 Sync(\"/f/a\")",
                "5 Remove(\"/f/b\")",
            ]
            .map(|line| if line.starts_with("4 Said") { "3 Said(\"done 1 2\")" } else { line })
        );
    }
}
